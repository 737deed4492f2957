"""Storage for the bundles, package layers and caches of a server's users, each at an address of its content.

    bundles/UID/DIGEST/tree      the unpacked source
    bundles/UID/DIGEST/bytes     its size on disk, a block for each file; written last
    layers/UID/DIGEST            packages, installed
    caches/UID/NAME@GENERATION   what a command has filled a cache with

The directories belong to the server and are closed to all users, so that a user cannot exchange a path while the server
extracts that user's archive. Users do not share entries: a bundle of one user is never served to another one that has its
digest. Digests are verified: the store hashes what it receives.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import secrets
import stat
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from pgpu.errors import CapacityError, NodeError, RequestError
from pgpu.functions.deploy.source_bundle import MOST_BYTES, MOST_MEMBERS, unpack
from pgpu.units import GIB, KIB, MIB

MOST_OWNER_BYTES = 10 * GIB
"""Of one user's bundles: they are the server's files, so no disk quota of the user counts them."""

MOST_LAYERS_BYTES = 20 * GIB
"""Of one user's packages, on the disk of the server's state: two sets of the largest frameworks."""

MOST_CACHE_BYTES = 20 * GIB
"""Of one user's caches, the generations that are kept for a rollback included."""

BLOCK_BYTES = 4 * KIB
"""Least disk space of a file beside its content: a million empty files take space, too."""

# Headers, long names and padding included.
_MOST_SENT_BYTES = MOST_BYTES + MOST_MEMBERS * 4 * KIB

# Files and directories of the store itself for each bundle.
_OWN_FILES = 4

# Uploads of one user: an upload takes disk space and is not accounted yet.
_MOST_AT_ONCE = 4

# Entries without a version are kept this long: their deployment may still be under way.
_LEFT_AFTER_SECONDS = 3600.0

# Of `st_blocks`, whatever the file system's block size is. Source: stat(2).
_STAT_UNIT_BYTES = 512

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class BundleStore:
    """The store in one state directory; safe for many threads, and for processes that share it."""

    def __init__(
        self,
        directory: Path,
        most_owner_bytes: int = MOST_OWNER_BYTES,
        most_sent_bytes: int = _MOST_SENT_BYTES,
        most_layers_bytes: int = MOST_LAYERS_BYTES,
        most_cache_bytes: int = MOST_CACHE_BYTES,
    ) -> None:
        """Set the limits; directories are made at first use.

        Args:
            directory: Owned by this process's user and closed to others.
            most_owner_bytes: Of all bundles of one user, a block for each file included.
            most_sent_bytes: Of one bundle, as it is sent.
            most_layers_bytes: Of all packages of one user.
            most_cache_bytes: Of all caches of one user.
        """
        self._directory = directory
        self._most_owner_bytes, self._most_sent_bytes = most_owner_bytes, most_sent_bytes
        self._most_layers_bytes, self._most_cache_bytes = most_layers_bytes, most_cache_bytes
        # Held while an entry's time is checked or renewed, so that `sweep` does not remove what `has` has just confirmed.
        self._guard = threading.Lock()
        self._uploads: Counter[int] = Counter()

    def has(self, owner_uid: int, digest: str) -> bool:
        """Whether this user has a bundle; renews it, so that it stays for the deployment that follows."""
        # The time is set under the lock: after True, sweep() finds a new time and keeps the bundle.
        with self._guard, contextlib.suppress(OSError):
            os.utime(self._bundle(owner_uid, digest) / "bytes")
            return True
        return False

    def has_layer(self, owner_uid: int, digest: str) -> bool:
        """Whether this user has packages of this digest; renews them, so that they stay for the version that follows."""
        return self._has_directory(self.layer(owner_uid, digest))

    def has_cache(self, owner_uid: int, label: str) -> bool:
        """Whether this user has a generation of a cache."""
        return self._has_directory(self.cache(owner_uid, label))

    def _has_directory(self, directory: Path) -> bool:
        with self._guard, contextlib.suppress(OSError):
            if stat.S_ISDIR(directory.lstat().st_mode):  # the engine, as root, would follow a link that the owner made
                os.utime(directory)
                return True
        return False

    def tree(self, owner_uid: int, digest: str) -> Path:
        """Return the directory of a bundle's source.

        Raises:
            RequestError: The user has no such bundle.
        """
        if not self.has(owner_uid, digest):
            raise RequestError(f"the bundle {digest} is not here", hint="deploy it again")
        return self._bundle(owner_uid, digest) / "tree"

    def layer(self, owner_uid: int, digest: str) -> Path:
        """Return the directory of packages of this digest, whether or not it exists."""
        return self._directory / "layers" / str(owner_uid) / _check_digest(digest)

    def cache(self, owner_uid: int, label: str) -> Path:
        """Return the directory of a generation of a cache, whether or not it exists; `label` is a `CacheUse.label`."""
        return self._directory / "caches" / str(owner_uid) / label

    def check_caches(self, owner_uid: int, labels: Collection[str]) -> None:
        """Check these generations of a user's caches together against the limit.

        Raises:
            RequestError: They are too large, or their size cannot be determined.
        """
        held = sum(disk_bytes(self.cache(owner_uid, label)) for label in labels)
        if held > self._most_cache_bytes:
            raise RequestError(
                f"your caches would hold {held // MIB} MiB of {self._most_cache_bytes // MIB} MiB",
                hint="pgpu function undeploy NAME",
            )

    def hide_caches(self, owner_uid: int, labels: Collection[str]) -> None:
        """Rename all of a user's caches but these generations, and what fills them; `sweep` removes them."""
        for found in (self._directory / "caches" / str(owner_uid)).glob("[!.]*"):
            if found.name not in labels:
                with contextlib.suppress(OSError):  # another thread was first
                    found.rename(found.with_name(f".{secrets.token_hex(8)}"))

    def check_layers(self, owner_uid: int) -> None:
        """Check a user's packages, the last installed ones included, against the limit.

        Raises:
            RequestError: They are too large, or their size cannot be determined.
        """
        held = disk_bytes(self._directory / "layers" / str(owner_uid))
        if held > self._most_layers_bytes:
            raise RequestError(
                f"your packages would hold {held // MIB} MiB of {self._most_layers_bytes // MIB} MiB",
                hint="pgpu function undeploy NAME",
            )

    @contextlib.contextmanager
    def receive(self, owner_uid: int) -> Iterator["IncomingBundle"]:
        """Receive a bundle into a temporary file, which is removed at the end; `IncomingBundle.keep` stores the bundle.

        Raises:
            CapacityError: The user has no room left, or too many uploads at once.
            NodeError: It cannot be written.
        """
        directory = self._directory / "bundles" / str(owner_uid)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = sum(int(mark.read_text("ascii") or 0) for mark in directory.glob("*/bytes"))
            if held + MOST_BYTES > self._most_owner_bytes:
                raise CapacityError(
                    f"your bundles hold {held // MIB} MiB of {self._most_owner_bytes // MIB} MiB",
                    hint="pgpu function undeploy NAME",
                )
            # The file has no name, so the kernel frees it even if the server is killed.
            with self._limit_uploads(owner_uid), tempfile.TemporaryFile(dir=directory) as file:
                yield IncomingBundle(directory, cast("BinaryIO", file), self._most_sent_bytes)
        except OSError as exc:
            raise NodeError(f"a bundle cannot be written to {directory}: {exc.strerror or exc}") from exc

    def sweep(
        self,
        owner_uid: int,
        bundles: Collection[str],
        layers: Collection[str],
        older_seconds: float = _LEFT_AFTER_SECONDS,
    ) -> None:
        """Remove a user's hidden caches, and the bundles and layers that no version uses, unless they are recent."""
        for hidden in (self._directory / "caches" / str(owner_uid)).glob(".*"):
            remove_tree(hidden)
        before_seconds = time.time() - older_seconds
        for kind, kept in (("bundles", bundles), ("layers", layers)):
            for found in (self._directory / kind / str(owner_uid)).glob("*"):
                if found.name not in kept and (taken := self._hide_if_old(found, before_seconds)) is not None:
                    remove_tree(taken)

    def _hide_if_old(self, found: Path, before_seconds: float) -> Path | None:
        """Rename an entry that was not used since `before_seconds` and return its new path; None: it was used since."""
        # Renamed in one step, removed afterwards without the lock: an upload of the same bundle finds no partial directory.
        mark, taken = found / "bytes", found.with_name(f".{secrets.token_hex(8)}")
        with self._guard, contextlib.suppress(OSError):
            if (mark if mark.is_file() else found).stat().st_mtime < before_seconds:
                return found.rename(taken)
        return None

    @contextlib.contextmanager
    def _limit_uploads(self, owner_uid: int) -> Iterator[None]:
        with self._guard:
            if self._uploads[owner_uid] >= _MOST_AT_ONCE:
                raise CapacityError(f"{_MOST_AT_ONCE} bundles of yours are being sent already", hint="wait for one")
            self._uploads[owner_uid] += 1
        try:
            yield
        finally:
            with self._guard:
                self._uploads[owner_uid] -= 1

    def _bundle(self, owner_uid: int, digest: str) -> Path:
        return self._directory / "bundles" / str(owner_uid) / _check_digest(digest)


class IncomingBundle:
    """A bundle that is being received."""

    def __init__(self, directory: Path, file: BinaryIO, most_bytes: int) -> None:
        self._directory, self._file, self._most_bytes = directory, file, most_bytes
        self._sum = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Append a piece.

        Raises:
            RequestError: The bundle is too long.
        """
        if self._file.tell() + len(data) > self._most_bytes:
            raise RequestError(f"the bundle is longer than {self._most_bytes // MIB} MiB")
        self._sum.update(data)
        self._file.write(data)

    def keep(self, digest: str) -> None:
        """Verify the digest, extract the bundle and write it out to disk.

        It is extracted under a temporary name and renamed at the end, so a crash never leaves a partial entry.

        Raises:
            RequestError: The content has another digest, or is no bundle.
        """
        if self._sum.hexdigest() != _check_digest(digest):
            raise RequestError(
                f"the content is not {digest}: its SHA-256 is {self._sum.hexdigest()}", hint="send it again"
            )
        made = self._directory / f".{secrets.token_hex(8)}"
        made.mkdir(mode=0o700)
        try:
            unpacked = unpack(self._file, made / "tree")
            size_bytes = unpacked.size_bytes + (unpacked.members + _OWN_FILES) * BLOCK_BYTES
            (made / "bytes").write_text(str(size_bytes), "ascii")
            # Content before the rename, the rename before the caller's commit: after a power failure a version in the ledger
            # always has its complete bundle.
            _sync_file_system(made)
            with contextlib.suppress(OSError):  # a parallel upload of the same bundle was first: both are equal
                made.rename(self._directory / digest)
            _sync_file_system(self._directory)
        finally:
            remove_tree(made)


def disk_bytes(tree: Path) -> int:
    """Return the disk usage of a directory, as far as it can be read.

    Iterative and by paths: Python's own walks recurse, or hold a descriptor, for each level, and the tree is untrusted.

    Raises:
        RequestError: Its directories are nested deeper than a path can be long, so the size is unknown.
    """
    # Links are not followed, so no path leads out of the tree and no directory is counted twice.
    size_bytes, left = 0, [os.fspath(tree)]
    while left:
        with _skip_unreadable(), os.scandir(left.pop()) as found:
            for each in found:
                with _skip_unreadable():
                    size_bytes += max(BLOCK_BYTES, each.stat(follow_symlinks=False).st_blocks * _STAT_UNIT_BYTES)
                    if each.is_dir(follow_symlinks=False):
                        left.append(each.path)
    return size_bytes


@contextlib.contextmanager
def _skip_unreadable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise RequestError("the packages have directories that are nested too deep") from error


def remove_tree(tree: Path) -> None:
    """Remove an untrusted directory of any depth without following links; what cannot be removed stays.

    Nested directories are moved to the top before they are emptied, so depth needs neither recursion nor long paths.
    """
    with contextlib.suppress(OSError), _open_directory(os.fspath(tree)) as top:
        left = _empty(top, top)
        while left:
            name = left.pop()
            with contextlib.suppress(OSError):
                with _open_directory(name, top) as directory:
                    left += _empty(directory, top)
                os.rmdir(name, dir_fd=top)
    with contextlib.suppress(OSError):
        tree.rmdir()


def _empty(directory: int, top: int) -> list[str]:
    """Unlink a directory's files, move its directories to the top, and return their names there."""
    moved = []
    for name in os.listdir(directory):
        with contextlib.suppress(OSError):
            try:
                os.unlink(name, dir_fd=directory)
            except IsADirectoryError:
                # A random name: the tree's own names at the top cannot collide with it.
                moved.append(secrets.token_hex(16))
                os.rename(name, moved[-1], src_dir_fd=directory, dst_dir_fd=top)
    return moved


@contextlib.contextmanager
def _open_directory(name: str, above: int | None = None) -> Iterator[int]:
    # O_NOFOLLOW: the owner may replace a directory by a link at any moment; the descriptor then stays in the tree.
    descriptor = os.open(name, _DIRECTORY, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sync_file_system(directory: Path) -> None:
    # syncfs: a bundle has thousands of files, and a version in the ledger must not outlive a part of them.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)


def _check_digest(digest: str) -> str:
    if len(digest) != hashlib.sha256().digest_size * 2 or not set(digest) <= set("0123456789abcdef"):
        raise RequestError(f"{digest[:80]!r} is no SHA-256", hint="64 hexadecimal digits")
    return digest
