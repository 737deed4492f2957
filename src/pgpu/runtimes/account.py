"""What is different for a job that root starts under another user's account.

Its streams and its usage file are that user's, and its limits are the ones that the user's own process had. The switch
itself is the launcher's (`native/launcher/credentials.c`). This module refuses to open anything that the user named.
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
    """Whether the job's process must become another one than this process is.

    Raises:
        RuntimeUnavailableError: It must, and only root could.
    """
    if account is None or account.uid == os.geteuid():
        return False
    if os.geteuid() != 0:
        raise RuntimeUnavailableError(
            f"a job of user {account.uid} cannot be started by user {os.geteuid()}", hint="run `pgpu serve` as root"
        )
    return True


def launcher_words(account: Account | None) -> Iterator[str]:
    """Return the launcher's options that make it switch."""
    if account is None:
        return
    if switches(account):
        groups = ",".join(map(str, account.groups))
        yield from ("--as", f"{account.uid}:{account.gid}:{groups}")
    yield from ("--umask", f"{account.umask:o}")
    for name, soft, hard in account.limits:
        yield from ("--limit", f"{getattr(resource, name)}:{soft}:{hard}")


def give_streams(stdio: Stdio, account: Account) -> None:
    """Let the job open its own standard streams anew, as `/dev/stdout` does."""
    for descriptor in {stdio.stdin, stdio.stdout, stdio.stderr}:
        # Not /dev/null, which stands for no input: its owner is the whole machine's affair.
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode) or os.isatty(descriptor):
            os.fchown(descriptor, account.uid, -1)


def give_usage(delivery: Delivery, account: Account) -> None:
    """Let this user alone write the slice's usage file and what the job tells; the latter is read by other jobs.

    Raises:
        RuntimeUnavailableError: Their file system knows no owners.
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
