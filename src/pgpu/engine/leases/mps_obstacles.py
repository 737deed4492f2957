"""What keeps a job's programs from being clients of MPS, as far as its request shows it.

Apart from `mps_sharing`, since every submission is checked and few processes start a daemon.
"""

import os

from pgpu.errors import RequestError
from pgpu.model import JobSpec, Request, SharingWish


def refuse_what_cannot_join(spec: JobSpec, request: Request) -> None:
    """Raise RequestError for a job with `--sharing mps` that could never be a client, before anything is stored."""
    if request.sharing is SharingWish.MPS:
        refuse_obstacle(spec)


def refuse_obstacle(spec: JobSpec) -> None:
    """Raise RequestError for a job whose programs cannot be clients of MPS."""
    found = mps_obstacle(spec.runtime, spec.user)
    if found is not None:
        raise found


def mps_obstacle(runtime: str, user: str | None) -> RequestError | None:
    """Return why a job's programs cannot be clients of MPS; None where they can, or where only their start shows it.

    Args:
        runtime: Of the job.
        user: Of its container, as requested.
    """
    if runtime == "process":
        return None
    uid, own_uid = requested_uid(user), os.geteuid()
    if not uid.isdigit():
        return RequestError(
            f"under MPS a container's user must be known, and {user} is a name that only its image knows",
            hint="write --user UID[:GID] in numbers",
        )
    if own_uid not in {0, int(uid)}:
        return RequestError(
            f"under MPS a container's user must be the one that runs pgpu, {own_uid}, and is {uid}",
            hint=f"add --user {own_uid}",
        )
    return None


def requested_uid(user: str | None) -> str:
    """Return the UID, or name, under which a container's programs run; without a request that of root.

    An image may have another user; the proof fails then.
    """
    return (user or "0").split(":")[0]
