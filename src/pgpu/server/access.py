"""Who calls, and what they may: every route asks here, and nobody else decides.

A caller over the Unix socket is who the kernel says; a caller over TCP is whose token they show. Root administers, and
so does the user who runs the server. This module refuses to know of HTTP.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pgpu.engine.submission.inheritance import inheritance_of
from pgpu.errors import AccessError, JobNotFoundError, RequestError, UnauthenticatedError
from pgpu.model import Job, JobSpec, Request
from pgpu.server.accounts import Person
from pgpu.server.peer_credentials import Peer


def no_tokens(_token: str) -> int | None:
    """Know no token."""
    return None


def administers(uid: int) -> bool:
    """Whether a user administers this server: root, and whoever runs it."""
    return uid in {0, os.geteuid()}


@dataclass(frozen=True, slots=True)
class Caller:
    """A user who asks."""

    uid: int
    gid: int
    groups: frozenset[int]
    """Supplementary groups."""

    is_admin: bool
    """Whether they see and stop everybody's jobs and set what others may."""

    person: Person | None = field(default=None, compare=False)
    """How they were recognised; None for callers that submit nothing."""

    @property
    def sees_uid(self) -> int | None:
        """Whose jobs they see; None for everybody's."""
        return None if self.is_admin else self.uid


class Access:
    """What each caller may."""

    def __init__(
        self,
        uid_of_token: Callable[[str], int | None] = no_tokens,
        submitters: str = "pgpu",
        limits: Sequence[tuple[str, int, int]] = (),
    ) -> None:
        """Take over the rules.

        Args:
            uid_of_token: Tells whose a token is; None for one that is not valid, or not any more.
            submitters: Name of the group whose members may submit.
            limits: What jobs of token holders have in the place of this process's own limits; see `Account.limits`.
        """
        self.uid_of_token = uid_of_token
        self._limits = tuple(limits)
        self._submitters = submitters

    def caller(self, peer: Peer | None, token: str | None) -> Caller:
        """Tell who calls.

        Args:
            peer: Who is connected over the Unix socket; None for TCP.
            token: What the request showed; None if it showed none. Over the socket it counts for nothing.

        Raises:
            UnauthenticatedError: Nobody can tell.
        """
        person = Person.of_peer(peer) if peer is not None else self._bearer(token)
        return Caller(person.uid, person.gid, person.groups, administers(person.uid), person)

    def _bearer(self, token: str | None) -> Person:
        uid = None if token is None else self.uid_of_token(token)
        if uid is None:
            raise UnauthenticatedError(
                "no token was shown, or one that is not valid", hint="`pgpu admin token create` makes one: PGPU_TOKEN"
            )
        return Person.of_uid(uid)

    def check_submission(self, caller: Caller, spec: JobSpec) -> JobSpec:
        """Refuse what the caller may not run; return what is run for them.

        Raises:
            AccessError: They may not submit.
            RequestError: It does not say where it starts, which only the asker knows, or others than clients ask for such.
        """
        if spec.provisions:
            raise RequestError("what pgpu itself puts into a container is nobody's to ask for", hint="use --volume")
        if spec.runtime == "oci":
            raise RequestError("a container of the runtime oci is Docker's to create", hint="docker run --runtime=pgpu")
        if spec.runtime == "claim":
            raise RequestError("slices without a command are a cluster's to claim", hint="see docs/kubernetes.md")
        self.check_submits(caller)
        if spec.runtime == "process" and not (spec.working_directory or "").startswith("/"):
            raise RequestError("the working directory of a process must be an absolute path")
        return spec

    def check_submits(self, caller: Caller) -> None:
        """Refuse who may not have anything run.

        Raises:
            AccessError: They are neither in the group of submitters nor administer.
        """
        is_member = caller.person is not None and caller.person.is_in(self._submitters)
        if not caller.is_admin and not is_member:
            raise AccessError(
                f"user {caller.uid} may not submit: not in the group {self._submitters}",
                hint=f"ask the administrator: usermod -aG {self._submitters} NAME, then log in anew",
            )

    def check_request(self, caller: Caller, request: Request) -> None:
        """Refuse a place in the queue before everybody else's.

        Raises:
            AccessError: Only an administrator gives one.
        """
        if request.priority > 0 and not caller.is_admin:
            raise AccessError(
                f"priority {request.priority} would go before other users' jobs",
                hint="priorities of yours go from -100 to 0; ask the administrator for more",
            )

    def inherited(self, caller: Caller, claimed: str | None) -> str | None:
        """Return what a job has of its asker, for the ledger; of the client's own words the umask alone is believed.

        Raises:
            AccessError: The asker is gone already.
        """
        return None if caller.person is None else inheritance_of(caller.person.account(claimed, self._limits))

    def check_sees(self, caller: Caller, job: Job) -> None:
        """Refuse a job that is not the caller's, in the words for one that does not exist.

        Raises:
            JobNotFoundError: It is not theirs.
        """
        if caller.sees_uid not in {None, job.owner_uid}:
            raise JobNotFoundError(f"no job has the id or name {job.id!r}", hint="`pgpu ps --all` lists them")

    def check_administers(self, caller: Caller) -> None:
        """Refuse whoever does not administer this machine.

        Raises:
            AccessError: They don't.
        """
        if not caller.is_admin:
            raise AccessError("only an administrator may do this", hint="run it as root")
