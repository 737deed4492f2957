"""Secrets of a server's users: one file for each, and copies on a tmpfs for the jobs that get them.

    secrets/UID/NAME    the value; the user's file (0600) in a directory of the server (0700), so that no user reaches it by path

Values are in no ledger, bundle, command line or answer of the server. A job gets a directory on the tmpfs with copies (0400) of its
secrets alone.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pgpu.errors import NodeError, RequestError
from pgpu.functions.api import check_secret_name
from pgpu.host.atomic_file import write_atomically
from pgpu.model import Account
from pgpu.units import KIB, quoted

MOST_SECRET_BYTES = 64 * KIB
_MOST_SECRETS = 100
"""Of one user."""


class SecretStore:
    """The secrets in one state directory; safe for many threads of one server."""

    def __init__(self, directory: Path) -> None:
        """Set the directory, which is made at first use, owned by this process's user and closed to others."""
        self._directory = directory

    def put(self, owner_uid: int, name: str, value: bytes) -> None:
        """Create or replace a secret, durably. Jobs that run keep the value before.

        Raises:
            RequestError: The name is not valid, the value is empty or too long, or the user has too many.
            NodeError: It cannot be written.
        """
        file = self._file(owner_uid, name)
        if not 0 < len(value) <= MOST_SECRET_BYTES:
            raise RequestError(f"a secret has 1 to {MOST_SECRET_BYTES} bytes, not {len(value)}")
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if len(self.names(owner_uid).keys() | {name}) > _MOST_SECRETS:
                raise RequestError(f"you have {_MOST_SECRETS} secrets", hint="pgpu secret rm NAME")
            write_atomically(file, value, 0o600, is_durable=True)
            if os.geteuid() == 0:
                os.chown(file, owner_uid, -1)
        except OSError as exc:
            raise NodeError(f"the secret {name} cannot be written: {exc.strerror or exc}") from exc

    def names(self, owner_uid: int) -> dict[str, float]:
        """Return a user's secrets: when each was set, in seconds since the epoch, by name."""
        found = {}
        for file in sorted((self._directory / str(owner_uid)).glob("[!.]*")):
            with suppress(FileNotFoundError):
                found[file.name] = file.stat().st_mtime
        return found

    def remove(self, owner_uid: int, name: str) -> None:
        """Remove a secret.

        Raises:
            RequestError: There is none of this name.
        """
        file = self._file(owner_uid, name)
        try:
            file.unlink()
        except FileNotFoundError:
            raise _missing(name) from None

    def check(self, owner_uid: int, names: Iterable[str]) -> None:
        """Raise RequestError unless the user has these secrets."""
        for name in names:
            if not self._file(owner_uid, name).is_file():
                raise _missing(name)

    def deliver(self, owner_uid: int, names: Iterable[str], directory: Path, account: Account | None) -> None:
        """Make a directory with copies of secrets for a job.

        Args:
            owner_uid: The user that has the secrets.
            names: Of the secrets.
            directory: Must not exist; on a tmpfs, below a directory that is closed to others.
            account: The job's; None for this process's own.

        Raises:
            RequestError: A secret is gone.
            NodeError: The directory cannot be made.
        """
        try:
            directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.mkdir(mode=0o700)
            for name in names:
                try:
                    value = self._file(owner_uid, name).read_bytes()
                except FileNotFoundError:
                    raise _missing(name) from None
                descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o400)
                with os.fdopen(descriptor, "wb") as copy:
                    copy.write(value)
                if account is not None:
                    os.chown(directory / name, account.uid, account.gid)
            if account is not None:
                os.chown(directory, account.uid, account.gid)
        except OSError as exc:
            raise NodeError(f"{directory} cannot be made: {exc.strerror or exc}") from exc

    def _file(self, owner_uid: int, name: str) -> Path:
        return self._directory / str(owner_uid) / check_secret_name(name)


def _missing(name: str) -> RequestError:
    return RequestError(f"you have no secret {quoted(name)}", hint=f"pgpu secret set {name} < FILE")
