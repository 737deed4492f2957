"""Differences for a job that root starts under another user's account.

Its streams and its usage file are owned by that user, and its resource limits are those of the user's client process. The
launcher switches the credentials (`native/launcher/credentials.c`). Paths named by the user are not opened here.
"""

import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

from pgpu.errors import RuntimeUnavailableError
from pgpu.model import Account, Delivery
from pgpu.runtimes import Stdio


def switches(account: Account | None) -> bool:
    """True if the job runs under another user than this process.

    Raises:
        RuntimeUnavailableError: It does, and this process is not root.
    """
    if account is None or account.uid == os.geteuid():
        return False
    if os.geteuid() != 0:
        raise RuntimeUnavailableError(
            f"a job of user {account.uid} cannot be started by user {os.geteuid()}", hint="run `pgpu serve` as root"
        )
    return True


def launcher_words(account: Account | None) -> Iterator[str]:
    """Yield the launcher's options for the account."""
    if account is None:
        return
    if switches(account):
        groups = ",".join(map(str, account.groups))
        yield from ("--as", f"{account.uid}:{account.gid}:{groups}")
    yield from ("--umask", f"{account.umask:o}")
    for name, soft, hard in account.limits:
        yield from ("--limit", f"{getattr(resource, name)}:{soft}:{hard}")


def give_streams(stdio: Stdio, account: Account) -> None:
    """Make the user owner of the standard streams, so that the job can reopen them through `/dev/stdout`."""
    for descriptor in {stdio.stdin, stdio.stdout, stdio.stderr}:
        # Pipes and terminals only: /dev/null, which stands for no input, is shared by the whole machine.
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode) or os.isatty(descriptor):
            os.fchown(descriptor, account.uid, -1)


def give_usage(delivery: Delivery, account: Account) -> None:
    """Make the user owner of the usage file and of the board file; other jobs read the latter.

    Raises:
        RuntimeUnavailableError: Their file system does not support owners.
    """
    _give(delivery.usage_path, account, 0o600)
    if delivery.time_path is not None:
        _give(delivery.time_path, account, 0o644)


def _give(path: Path, account: Account, mode: int) -> None:
    try:
        os.chown(path, account.uid, account.gid)
        path.chmod(mode)
    except OSError as exc:
        raise RuntimeUnavailableError(f"{path} cannot be given to user {account.uid}: {exc.strerror}") from exc
