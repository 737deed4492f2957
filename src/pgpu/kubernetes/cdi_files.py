"""The CDI files of held claims, one each: a container runtime reads them when it creates or restarts a container.

A container may restart at any time without a call to this driver, so a file that is missing or was changed is written again.
Files that do not belong to claims are left alone.
"""

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pgpu.errors import NodeError
from pgpu.structs import Struct

KIND = "pgpu.io/gpu"

_PREFIX = "pgpu.io-claim-"
_SUFFIX = ".json"
_VERSION = "0.6.0"
_VERSION_WITH_GROUPS = "0.7.0"
_MODE = 0o644


def device_id(uid: str) -> str:
    """Return the fully qualified CDI name of a claim's device."""
    return f"{KIND}={uid}"


def content_of(uid: str, edits: Mapping[str, list[Any]]) -> bytes:
    """Return a CDI file with one device."""
    version = _VERSION_WITH_GROUPS if edits.get("additionalGids") else _VERSION
    device = {"name": uid, "containerEdits": edits}
    return json.dumps({"cdiVersion": version, "kind": KIND, "devices": [device]}, indent=1).encode()


class _WantedFile(Struct):
    content: bytes
    identity: tuple[int, int, int, int] | None = None
    """Of the file when it was written; None before."""


class CdiFiles:
    """A directory that a container runtime reads, and the seals that its files name. Thread-safe."""

    def __init__(self, folder: Path, seals: Path) -> None:
        """Write nothing yet.

        Args:
            folder: Usually `/var/run/cdi`.
            seals: Directory of the seals: a path that means the same on the host and here.
        """
        self._folder = folder
        self._seals = seals
        self._wanted: dict[str, _WantedFile] = {}
        self._guard = threading.Lock()

    def seal_of(self, uid: str) -> Path:
        """Return the file that only this claim has; see `container_edits`."""
        return self._seals / uid / uid

    def path_of(self, uid: str) -> Path:
        """Return the path of a claim's CDI file."""
        return self._folder / f"{_PREFIX}{uid}{_SUFFIX}"

    def put(self, uid: str, content: bytes) -> None:
        """Write a claim's file; from now on `mend` restores it. An unchanged file is not written again.

        Container runtimes read all files anew whenever one of them changes.

        Raises:
            NodeError: It cannot be written.
        """
        with self._guard:
            # Remembered before it is written: if the write fails, `mend` tries again.
            wanted = self._wanted.setdefault(uid, _WantedFile(content))
            if wanted.content != content or not self._is_intact(uid, wanted):
                wanted.content = content
                self._write(uid, wanted)

    def take(self, uid: str) -> None:
        """Remove a claim's file, if there is one.

        Raises:
            NodeError: It cannot be removed.
        """
        with self._guard:
            # Forgotten first: if the removal fails, `mend` removes the file later instead of writing it again.
            self._wanted.pop(uid, None)
            self._remove(uid)

    def mend(self, *, is_complete: bool) -> list[str]:
        """Write missing or changed files again, remove those of claims that are not held, and return a line for each change.

        Args:
            is_complete: Whether the files of all held claims were put; else nothing is removed.

        Raises:
            NodeError: The directory cannot be written.
        """
        changes = []
        with self._guard:
            for uid, wanted in self._wanted.items():
                if not self._is_intact(uid, wanted):
                    self._write(uid, wanted)
                    changes.append(f"the CDI file of claim {uid} was missing or changed, and is made again")
            with _translated_errors(self._folder):
                found = sorted(self._folder.glob(f"{_PREFIX}*{_SUFFIX}")) if is_complete else []
            for path in found:
                uid = path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
                if uid not in self._wanted:
                    self._remove(uid)
                    changes.append(f"a CDI file of claim {uid}, which is not held, is removed")
        return changes

    def _is_intact(self, uid: str, wanted: _WantedFile) -> bool:
        is_same = wanted.identity is not None and _identity(self.path_of(uid)) == wanted.identity
        return is_same and self.seal_of(uid).exists()

    def _write(self, uid: str, wanted: _WantedFile) -> None:
        path, seal = self.path_of(uid), self.seal_of(uid)
        with _translated_errors(path):
            # The seal first: a file that names a missing seal would keep its container from starting.
            seal.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            seal.parent.chmod(0o755)
            seal.touch(mode=0o444)
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            _write_durably(path, wanted.content)
            # Taken after the rename, under the lock: any later change is by another process.
            wanted.identity = _identity(path)

    def _remove(self, uid: str) -> None:
        path, seal = self.path_of(uid), self.seal_of(uid)
        with _translated_errors(path):
            path.unlink(missing_ok=True)
            # The CDI file went first: from here on no new container can name the seal.
            seal.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                seal.parent.rmdir()


def _write_durably(path: Path, content: bytes) -> None:
    """Replace a file atomically, and return when file and directory entry are on disk: the node may lose power at once."""
    # One scratch name for each claim: after a crash the next write replaces it. A leftover under another name would
    # be a second definition of the device for runtimes that read hidden .json files.
    scratch = path.with_name(f".{path.name}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(descriptor, _MODE)  # the umask may have taken bits
        os.fsync(descriptor)
    scratch.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _identity(path: Path) -> tuple[int, int, int, int] | None:
    """Return what changes with each change of a file; None: there is none. Inode numbers are reused, so times count too."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size


@contextlib.contextmanager
def _translated_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise NodeError(f"{exc.filename or path} cannot be written: {exc.strerror}") from exc
