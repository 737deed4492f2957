"""The CDI files of held claims, one each: what a container runtime reads when a container is created or started again.

A container may start again at any time, and nobody asks for its file then: one that is missing or was changed is made again.
It refuses to touch files that are not of claims.
"""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgpu.errors import NodeError
from pgpu.host.atomic_file import write_atomically

KIND = "pgpu.io/gpu"

_PREFIX = "pgpu.io-claim-"
_SUFFIX = ".json"
_VERSION = "0.6.0"
_VERSION_WITH_GROUPS = "0.7.0"
_MODE = 0o644


def device_id(uid: str) -> str:
    """Return the CDI name of a claim's device."""
    return f"{KIND}={uid}"


def content_of(uid: str, edits: Mapping[str, list[Any]]) -> bytes:
    """Return a CDI file with one device."""
    version = _VERSION_WITH_GROUPS if edits.get("additionalGids") else _VERSION
    device = {"name": uid, "containerEdits": edits}
    return json.dumps({"cdiVersion": version, "kind": KIND, "devices": [device]}, indent=1).encode()


@dataclass(slots=True)
class _Wanted:
    content: bytes
    seen: tuple[int, int, int, int] | None = None
    """Of the file as it was written; another one there is not ours any more."""


class CdiFiles:
    """A folder that a container runtime reads, and the seals that its files name. Safe for many threads."""

    def __init__(self, folder: Path, seals: Path) -> None:
        """Args: the folder, usually `/var/run/cdi`, and where seals lie, on the same host path as everybody sees it."""
        self._folder = folder
        self._seals = seals
        self._wanted: dict[str, _Wanted] = {}
        self._guard = threading.Lock()

    def seal_of(self, uid: str) -> Path:
        """Return the file that is a claim's alone."""
        return self._seals / uid / uid

    def path_of(self, uid: str) -> Path:
        """Return where a claim's CDI file lies."""
        return self._folder / f"{_PREFIX}{uid}{_SUFFIX}"

    def put(self, uid: str, content: bytes) -> None:
        """Write a claim's file, over another one that is there; it stays until it is taken.

        What is there already is left alone: container runtimes read all files again whenever one changes.

        Raises:
            NodeError: It cannot be written.
        """
        with self._guard:
            wanted = self._wanted.setdefault(uid, _Wanted(content))
            if wanted.content != content or not self._is_there(uid, wanted):
                wanted.content = content
                self._make(uid, wanted)

    def take(self, uid: str) -> None:
        """Remove a claim's file, if there is one.

        Raises:
            NodeError: It cannot be removed.
        """
        with self._guard:
            self._wanted.pop(uid, None)
            with _explaining(self.path_of(uid)):
                self.path_of(uid).unlink(missing_ok=True)
                self._break_seal(uid)

    def mend(self, *, is_complete: bool) -> list[str]:
        """Make again what is missing or was changed, and remove files of claims that nobody holds; say what was done.

        Args:
            is_complete: Whether all that are held were put here; else nothing is removed.

        Raises:
            NodeError: The folder cannot be written.
        """
        with self._guard:
            return [*self._made_again(), *(self._removed() if is_complete else ())]

    def _made_again(self) -> Iterator[str]:
        for uid, wanted in self._wanted.items():
            if not self._is_there(uid, wanted):
                self._make(uid, wanted)
                yield f"the CDI file of claim {uid} was missing or changed, and is made again"

    def _is_there(self, uid: str, wanted: _Wanted) -> bool:
        is_intact = wanted.seen is not None and _identity(self.path_of(uid)) == wanted.seen
        return is_intact and self.seal_of(uid).exists()

    def _removed(self) -> Iterator[str]:
        with _explaining(self._folder):
            for path in sorted(self._folder.glob(f"{_PREFIX}*{_SUFFIX}")):
                uid = path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
                if uid not in self._wanted:
                    path.unlink(missing_ok=True)
                    self._break_seal(uid)
                    yield f"a CDI file of claim {uid}, which nobody holds, is removed"

    def _make(self, uid: str, wanted: _Wanted) -> None:
        path = self.path_of(uid)
        with _explaining(path):
            self._seal(uid)
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_atomically(path, wanted.content, _MODE, is_durable=True)
            wanted.seen = _identity(path)

    def _seal(self, uid: str) -> None:
        seal = self.seal_of(uid)
        seal.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        seal.parent.chmod(0o755)
        seal.touch(mode=0o444)

    def _break_seal(self, uid: str) -> None:
        seal = self.seal_of(uid)
        seal.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            seal.parent.rmdir()


def _identity(path: Path) -> tuple[int, int, int, int] | None:
    """Return what changes whenever a file does; None where there is none. Inodes are used again, so times count too."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size


@contextlib.contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise NodeError(f"{exc.filename or path} cannot be written: {exc.strerror}") from exc
