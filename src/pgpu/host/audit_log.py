"""The audit log of a state directory: what administrators changed, tokens that were made and revoked, and refused logins.

Each entry is a line of JSON in `audit.log`, written by the process that made the change, once the change is durable. Entries of root
go to systemd's journal as well, where there is one: `journalctl SYSLOG_IDENTIFIER=pgpu-audit`. The file is renamed to `audit.log.1`
at 16 MiB, in place of the one before. Users make tokens of functions as they like, so these have a file of their own: they push out no
other entry.
"""

import errno
import fcntl
import json
import os
import time
from contextlib import suppress
from pathlib import Path

from pgpu.host.stderr_log import say

NAME = "audit.log"
OF_FUNCTIONS = "audit-functions.log"
MOST_BYTES = 16 << 20
JOURNAL = Path("/run/systemd/journal/socket")

_NOTICE = 5  # syslog(3)
_AUTHPRIV = 10


class AuditLog:
    """Appends entries; a failure to write is logged, since the change was made."""

    def __init__(self, state_directory: Path, journal: Path = JOURNAL, name: str = NAME) -> None:
        """Open nothing yet.

        Args:
            state_directory: Of the ledger.
            journal: Socket of systemd's journal.
            name: Of the file.
        """
        self._path = state_directory / name
        self._journal = journal

    def write(self, action: str, **details: object) -> None:
        """Add one entry.

        Args:
            action: What was done, as `token.create`.
            details: By whom, with `Caller.actor`, and to what; None values are kept as null.
        """
        now_seconds = time.time()
        now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_seconds)) + f".{int(now_seconds % 1 * 1000):03}Z"
        line = json.dumps({"time": now, "action": action, **details})
        try:
            self._append(f"{line}\n".encode())
        except OSError as exc:
            say(f"{self._path} cannot be written: {exc.strerror}: {line}")
        if os.geteuid() == 0:
            with suppress(OSError):
                self._send(action, line)

    def _append(self, line: bytes) -> None:
        while True:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                found = os.fstat(descriptor)
                with suppress(FileNotFoundError):
                    # Else another process has renamed it while this one waited for the lock.
                    if os.path.samestat(found, self._path.stat()):
                        if found.st_size + len(line) <= MOST_BYTES or not found.st_size:
                            if os.write(descriptor, line) == len(line):
                                return
                            # The disk is full, and the next entry must begin a line.
                            os.ftruncate(descriptor, found.st_size)
                            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                        self._path.rename(self._path.with_name(f"{self._path.name}.1"))
            finally:
                os.close(descriptor)

    def _send(self, action: str, line: str) -> None:
        """Send an entry to the journal. Source: https://systemd.io/JOURNAL_NATIVE_PROTOCOL."""
        import socket  # noqa: PLC0415 - takes 3 ms to import

        fields = {"MESSAGE": line, "PRIORITY": _NOTICE, "SYSLOG_FACILITY": _AUTHPRIV, "PGPU_ACTION": action}
        text = "".join(f"{name}={value}\n" for name, value in fields.items()) + "SYSLOG_IDENTIFIER=pgpu-audit\n"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(0)
            sender.sendto(text.encode(), str(self._journal))
