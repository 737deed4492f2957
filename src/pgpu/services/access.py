"""Callers of the services: how each is identified, and what each may do.

A caller over the Unix socket is identified by the kernel (SO_PEERCRED), a caller over TCP by a token. Root and the user
that runs the server administer it. Resource limits of a job are read from the process that connected, since a client could
claim any; of the client's own statement only the umask is used. A local client runs the engine in its own process and is
restricted by file permissions alone.
"""

import grp
import json
import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path

from pgpu.engine.submitter import Submitter, inheritance_of
from pgpu.errors import AccessError, JobNotFoundError, RequestError, UnauthenticatedError
from pgpu.model import Account, Job, JobSpec, Request
from pgpu.structs import Struct

_LIMITS = {
    "cpu time": "RLIMIT_CPU",
    "file size": "RLIMIT_FSIZE",
    "data size": "RLIMIT_DATA",
    "stack size": "RLIMIT_STACK",
    "core file size": "RLIMIT_CORE",
    "resident set": "RLIMIT_RSS",
    "processes": "RLIMIT_NPROC",
    "open files": "RLIMIT_NOFILE",
    "locked memory": "RLIMIT_MEMLOCK",
    "address space": "RLIMIT_AS",
    "pending signals": "RLIMIT_SIGPENDING",
    "msgqueue size": "RLIMIT_MSGQUEUE",
    "nice priority": "RLIMIT_NICE",
    "realtime priority": "RLIMIT_RTPRIO",
    "realtime timeout": "RLIMIT_RTTIME",
}
"""Names in /proc/PID/limits, without their "Max ". Source: proc_pid_limits(5) and getrlimit(2)."""

_DEFAULT_UMASK = 0o022
_MOST_UMASK = 0o777

_REFUSED_RUNTIMES = {
    "oci": ("a container of the runtime oci is Docker's to create", "docker run --runtime=pgpu"),
    "claim": ("slices without a command are a cluster's to claim", "see docs/kubernetes.md"),
}


def administers(uid: int) -> bool:
    """Whether a user administers this server: root, and the user that runs it."""
    return uid in {0, os.geteuid()}


class Identity(Struct, frozen=True):
    """A user and their groups, by socket credentials or by the user database."""

    uid: int
    gid: int
    groups: frozenset[int]
    """Supplementary groups."""

    peer_pid: int | None = None
    """The process that connected; None for a token: its jobs get the limits of `AccessRules`."""

    @classmethod
    def of_uid(cls, uid: int) -> "Identity":
        """Read a user from this machine's database.

        Raises:
            UnauthenticatedError: The user was removed.
        """
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            raise UnauthenticatedError(f"this machine has no user {uid} any more") from None
        return cls(uid, entry.pw_gid, frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid)))

    def is_in(self, group: str) -> bool:
        """Whether the user is in a group; False if the group does not exist."""
        try:
            number = grp.getgrnam(group).gr_gid
        except KeyError:
            return False
        # The primary group need not be among the supplementary ones.
        return number == self.gid or number in self.groups

    def account(self, claimed: str | None, default_limits: tuple[tuple[str, int, int], ...]) -> Account:
        """Return the account of this user's jobs, without the environment.

        Args:
            claimed: The client's statement in the format of `pgpu.engine.submitter`; only its umask is used.
            default_limits: (name, soft, hard) where no connected process is known.

        Raises:
            AccessError: The process that connected has exited, so its limits are unknown.
        """
        limits = default_limits if self.peer_pid is None else tuple(_limits_of(self.peer_pid, self.uid))
        return Account(self.uid, self.gid, tuple(sorted(self.groups)), _parse_umask(claimed), limits)


def _parse_umask(claimed: str | None) -> int:
    try:
        umask = json.loads(claimed or "{}").get("umask", _DEFAULT_UMASK)
    except (ValueError, AttributeError, RecursionError):
        return _DEFAULT_UMASK
    is_valid = isinstance(umask, int) and not isinstance(umask, bool) and 0 <= umask <= _MOST_UMASK
    return umask if is_valid else _DEFAULT_UMASK


def _limits_of(pid: int, uid: int) -> Iterator[tuple[str, int, int]]:
    # The kernel may have reused the PID since `connect`. A process of the same user has equally valid limits; one of
    # another user fails the check on the status file.
    process = Path(f"/proc/{pid}")
    try:
        text = (process / "limits").read_text(encoding="ascii", errors="replace")
        status = (process / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text, status = "", ""
    if f"Uid:\t{uid}\t{uid}\t" not in status:
        raise AccessError(
            "the process that sent the request is gone, and the resource limits for its job with it",
            hint="submit from a process that waits for the answer",
        )
    for line in text.splitlines()[1:]:
        # The kernel prints the name in 25 columns, then the soft and the hard limit.
        name, *values = line[:26].removeprefix("Max ").strip(), *line[26:].split()[:2]
        if name in _LIMITS:
            # RLIM_INFINITY is -1 in `resource`.
            soft, hard = (-1 if value == "unlimited" else int(value) for value in values)
            yield _LIMITS[name], soft, hard


class AccessRules(Struct, frozen=True):
    """Settings of one server: the group that may submit, and limits of jobs."""

    uid_of_token: Callable[[str], int | None] = lambda _token: None
    """Returns the user of a valid token, None for any other text."""

    submitters: str = "pgpu"
    """Members of this group may submit."""

    limits: tuple[tuple[str, int, int], ...] = ()
    """(name, soft, hard): limits of jobs of token holders; see `Account.limits`."""

    def authenticate(self, peer: Identity | None, token: str | None, address: str | None = None) -> "Caller":
        """Return the caller of a request.

        Args:
            peer: The user at the other end of the Unix socket; None for TCP.
            token: From the request's header, used for TCP only.
            address: Of a caller over TCP.

        Raises:
            UnauthenticatedError: Over TCP, without a valid token.
        """
        if peer is None:
            uid = None if token is None else self.uid_of_token(token)
            if uid is None:
                raise UnauthenticatedError(
                    "no token was sent, or one that is not valid",
                    hint="`pgpu admin token create` makes one: PGPU_TOKEN",
                )
            peer = Identity.of_uid(uid)
        return Caller(peer.uid, administers(peer.uid), peer, self, address)


class Caller(Struct, frozen=True):
    """The user for which a service acts."""

    uid: int
    is_admin: bool
    """Whether all jobs are visible and all settings may be changed."""

    identity: Identity | None = None
    """None for the user of this process, with the engine in it: nothing is checked then."""

    rules: AccessRules = AccessRules()

    address: str | None = None
    """Of a caller over TCP."""

    @classmethod
    def this_process(cls) -> "Caller":
        """Return the caller for a client with the engine in its own process."""
        return cls(os.getuid(), is_admin=True)

    @property
    def is_local(self) -> bool:
        """Whether the engine runs in the caller's own process."""
        return self.identity is None

    def actor(self) -> dict[str, int | str | None]:
        """Return the fields of the audit log that name this caller."""
        return {
            "uid": self.uid,
            "pid": os.getpid() if self.identity is None else self.identity.peer_pid,
            "address": self.address,
        }

    @property
    def sees_uid(self) -> int | None:
        """The only user with visible jobs; None for all users."""
        return None if self.is_admin else self.uid

    def sees(self, uid: int | None) -> bool:
        """Whether jobs of a user are visible."""
        return self.is_admin or uid == self.uid

    def check_sees(self, job: Job) -> None:
        """Refuse an invisible job exactly as one that does not exist.

        Raises:
            JobNotFoundError: The job is another user's.
        """
        if not self.sees(job.owner_uid):
            raise JobNotFoundError(f"no job has the id or name {job.id!r}", hint="`pgpu ps --all` lists them")

    def check_administers(self) -> None:
        """Refuse callers that are not administrators.

        Raises:
            AccessError: The caller is none.
        """
        if not self.is_admin:
            raise AccessError("only an administrator may do this", hint="run it as root")

    def check_submits(self) -> None:
        """Refuse callers that may not start anything.

        Raises:
            AccessError: The caller is neither an administrator nor in the group of submitters.
        """
        group = self.rules.submitters
        if not self.is_admin and not (self.identity is not None and self.identity.is_in(group)):
            raise AccessError(
                f"user {self.uid} may not submit: not in the group {group}",
                hint=f"ask the administrator: usermod -aG {group} NAME, then log in anew",
            )

    def check_submission(self, spec: JobSpec, request: Request) -> None:
        """Refuse a job that this caller may not run.

        Raises:
            AccessError: The caller may not submit, or not with this priority.
            RequestError: The working directory is not absolute, or only pgpu itself may ask for such a job.
        """
        if self.is_local:
            return
        if spec.provisions:
            raise RequestError("files that pgpu itself puts into a container cannot be requested", hint="use --volume")
        if spec.runtime in _REFUSED_RUNTIMES:
            message, hint = _REFUSED_RUNTIMES[spec.runtime]
            raise RequestError(message, hint=hint)
        self.check_submits()
        if spec.runtime == "process" and not (spec.working_directory or "").startswith("/"):
            raise RequestError("the working directory of a process must be an absolute path")
        if request.priority > 0 and not self.is_admin:
            raise AccessError(
                f"priority {request.priority} would go before other users' jobs",
                hint="priorities of yours go from -100 to 0; ask the administrator for more",
            )

    def inheritance(self, claimed: str | None) -> str | None:
        """Return the account of this caller's jobs in the ledger's format; None for the account of this process.

        Raises:
            AccessError: The process that connected has exited.
        """
        return None if self.identity is None else inheritance_of(self.identity.account(claimed, self.rules.limits))

    def submitter(self, environment: tuple[tuple[str, str], ...], claimed: str | None) -> Submitter | None:
        """Return the owner of submitted jobs; None for this process's own user and environment.

        Raises:
            AccessError: As of `inheritance`.
        """
        if self.is_local:
            return None if claimed is None else Submitter(self.uid, environment, claimed)
        return Submitter(self.uid, environment, self.inheritance(claimed))
