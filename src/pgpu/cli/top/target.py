"""Where the jobs are that the view shows, and the changes that its keys make there."""

from pgpu.cli.job_arguments import read_resize
from pgpu.client import Client
from pgpu.errors import RequestError
from pgpu.model import Job
from pgpu.structs import Struct


class Target(Struct, frozen=True):
    """A machine, or a server."""

    client: Client
    place: str
    """Name of the machine, or address of the server."""

    uid: int | None
    """The user whose jobs keys may change; None where the server alone knows it."""

    grace_seconds: float
    """Between SIGTERM and SIGKILL of a stop."""

    def may_change(self, job: Job) -> bool:
        """Whether keys may change a job: one of this user, or any that the server disclosed where it alone knows the user."""
        return not job.is_anonymous and self.uid in {None, job.owner_uid}

    def stop(self, job_id: str) -> str:
        """Begin to stop a job; returns what to show.

        Raises:
            PgpuError: It cannot be stopped; likewise of `resize`.
        """
        return f"job {self.client.request_stop(job_id, self.grace_seconds).id} is being stopped"

    def resize(self, job_id: str, words: str) -> str:
        """Change a job as words describe it, such as `6GiB 50%`; returns what to show."""
        parts = words.split()
        shares = [each for each in parts if each.endswith("%") or each == "none"]
        sizes = [each for each in parts if each not in shares]
        if len(shares) > 1 or len(sizes) > 1:
            raise RequestError("that is more than a size and a share", hint="write 6GiB, 50%, or 6GiB 50%")
        change = read_resize(*(each[0] if each else None for each in (sizes, shares)), is_strict=None)
        return (
            f"job {self.client.resize(job_id, change.memory_bytes, compute_share=change.compute_share).id} was resized"
        )
