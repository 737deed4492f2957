"""Whose files this process uses: its own user's alone, and those that only the machine's root could have written.

A ledger names commands that are executed as its reader, and a settings file names a server that gets its reader's environment. So a
file that another user owns or can write is refused, as git, ssh and sudo do: root with another user's HOME must not run what
that user queued.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

from pgpu.errors import NodeError

PARTS = {"kubernetes"}
"""What pgpu itself makes in a state directory before the directory is used: that of a node's driver, by the kubelet with mode 0755."""


def check_own(path: Path, name: str, *, is_only_read: bool = False, descriptor: int | None = None) -> None:
    """Refuse a file or directory that another user owns, or that its group or others can write; a missing one is no error.

    Args:
        path: Links are followed.
        name: What it is, for the message.
        is_only_read: Whether it may be root's, and if it is not, be written by its group, as a settings file is with the umask 002.
        descriptor: Of the opened file; None where nothing of it is read before the next check.

    Raises:
        NodeError: It is refused.
    """
    try:
        found = path.stat() if descriptor is None else os.fstat(descriptor)
    except OSError:
        return  # missing, or the caller's own access fails with the reason
    if found.st_uid != os.geteuid() and not (is_only_read and found.st_uid == 0):
        raise _foreign(f"{name} {path}", found.st_uid)
    if found.st_mode & (stat.S_IWOTH if is_only_read and found.st_uid != 0 else stat.S_IWGRP | stat.S_IWOTH):
        raise NodeError(f"{name} {path} can be written by other users", hint=f"chmod go-w {path}")


def check_state_directory(path: Path) -> None:
    """Refuse a state directory that is not this user's alone, and close an empty one to readers.

    For root also where another user owns a directory above it and could put another one in its place.

    Raises:
        NodeError: It is refused.
    """
    check_own(path, "the state directory")
    if os.geteuid() == 0:
        # In a user namespace the machine's root has another number: that of the owner of "/".
        roots = {0, Path("/").stat().st_uid}
        # Above a link and above what it leads to.
        for parent in dict.fromkeys((*path.absolute().parents, *path.resolve().parents)):
            with suppress(OSError):
                if (owner := parent.stat().st_uid) not in roots:
                    raise _foreign(f"{parent}, above the state directory {path.name},", owner)
    with suppress(OSError):  # missing, no directory, or a file system without modes
        # One with files, such as /etc or a home directory, stays open to those who use it.
        is_open = path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        if is_open and PARTS.issuperset(each.name for each in path.iterdir()):
            path.chmod(stat.S_IRWXU)


def _foreign(what: str, uid: int) -> NodeError:
    import pwd  # noqa: PLC0415 - only for the message

    try:
        owner = pwd.getpwuid(uid).pw_name
    except KeyError:
        owner = f"user {uid}"
    is_root = os.geteuid() == 0
    hint = "sudo -H uses root's own; --state-dir names another" if is_root else "name one of your own: --state-dir"
    return NodeError(f"{what} belongs to {owner}", hint=hint)
