"""The account under which a caller's jobs run: as whom, and with which limits.

User and groups are the kernel's word on the socket, or the machine's user database for a token. Limits are read from the
process that connected, since a caller could claim any. Of what a client says only the umask is taken, which gives
nobody more than they have. This module refuses to run anything.
"""

import grp
import json
import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pgpu.errors import AccessError, UnauthenticatedError
from pgpu.model import Account
from pgpu.server.peer_credentials import Peer

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

_USUAL_UMASK = 0o022
_MOST_UMASK = 0o777


@dataclass(frozen=True, slots=True)
class Person:
    """A user with their groups, however they were recognised."""

    uid: int
    gid: int
    groups: frozenset[int]
    peer_pid: int | None = None
    """The process that connected; None for a token, whose jobs get the server's own limits."""

    @classmethod
    def of_peer(cls, peer: Peer) -> "Person":
        """Return who is on the other side of a Unix socket."""
        return cls(peer.uid, peer.gid, peer.groups, peer.pid)

    @classmethod
    def of_uid(cls, uid: int) -> "Person":
        """Return a user of this machine's database.

        Raises:
            UnauthenticatedError: There is none any more.
        """
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            raise UnauthenticatedError(f"this machine has no user {uid} any more") from None
        return cls(uid, entry.pw_gid, frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid)))

    def is_in(self, group: str) -> bool:
        """Whether they are in a group of this machine; nobody is in one that does not exist."""
        try:
            number = grp.getgrnam(group).gr_gid
        except KeyError:
            return False
        return number == self.gid or number in self.groups

    def account(self, claimed: str | None, usual: tuple[tuple[str, int, int], ...]) -> Account:
        """Return the account of their jobs, without the environment.

        Args:
            claimed: What the client says of itself, as `pgpu.engine.submission.inheritance` writes it; only its umask counts.
            usual: Limits where nobody can tell theirs.

        Raises:
            AccessError: The process that connected is gone, so that nobody knows its limits.
        """
        limits = usual if self.peer_pid is None else tuple(_limits_of(self.peer_pid, self.uid))
        return Account(self.uid, self.gid, tuple(sorted(self.groups)), _umask(claimed), limits)


def _umask(claimed: str | None) -> int:
    try:
        umask = json.loads(claimed or "{}").get("umask", _USUAL_UMASK)
    except (ValueError, AttributeError, RecursionError):
        return _USUAL_UMASK
    is_one = isinstance(umask, int) and not isinstance(umask, bool) and 0 <= umask <= _MOST_UMASK
    return umask if is_one else _USUAL_UMASK


def _limits_of(pid: int, uid: int) -> Iterator[tuple[str, int, int]]:
    """A PID that was used again meanwhile is another process of the same user, whose limits are as good, or refused."""
    process = Path(f"/proc/{pid}")
    try:
        text = (process / "limits").read_text(encoding="ascii", errors="replace")
        status = (process / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text, status = "", ""
    if f"Uid:\t{uid}\t{uid}\t" not in status:
        raise AccessError(
            "the process that asked is gone, and with it the limits that its job should have",
            hint="submit from a process that waits for the answer",
        )
    for line in text.splitlines()[1:]:
        name, soft, hard = line[:26].removeprefix("Max ").strip(), *line[26:].split()[:2]
        if name in _LIMITS:
            yield _LIMITS[name], _number(soft), _number(hard)


def _number(text: str) -> int:
    return -1 if text == "unlimited" else int(text)
