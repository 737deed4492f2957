"""Where a server keeps the bundles and the layers of its users, each at the address of its content.

    bundles/UID/DIGEST/tree      the unpacked source
    bundles/UID/DIGEST/bytes     how much it takes, a block for each file; written last
    layers/UID/DIGEST            packages, installed

All of it is the server's own and nobody else may change it, so that who unpacks a stranger's archive never follows a name
that the stranger can exchange meanwhile. Each user has shelves of their own: what one sent is never served to another, whoever
names its digest. It refuses to believe a digest: it hashes what comes.
"""

import contextlib
import ctypes
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
from pgpu.functions.deploy.bundle_extraction import unpack
from pgpu.functions.deploy.bundle_members import MOST_BYTES, MOST_MEMBERS
from pgpu.functions.deploy.untrusted_tree import BLOCK_BYTES, disk_bytes, remove_tree
from pgpu.units import GIB, KIB, MIB

MOST_OWNER_BYTES = 10 * GIB
"""Of one user's bundles: they are the server's files, which no disk quota of the user counts."""

MOST_LAYERS_BYTES = 20 * GIB
"""Of one user's packages, on the disk of the server's state: two sets of the largest frameworks."""

_MOST_SENT_BYTES = MOST_BYTES + MOST_MEMBERS * 4 * KIB
"""Headers, long names and padding included."""

_OWN_FILES = 4
"""Of each bundle."""

_MOST_AT_ONCE = 4
"""Of one user: what is being sent lies on the disk and is in no account yet."""

_LEFT_AFTER_SECONDS = 3600.0
"""What no version names is kept so long: its deployment may be under way."""


class BundleStore:
    """The shelves of one state directory; safe for many threads and processes."""

    def __init__(
        self,
        directory: Path,
        most_owner_bytes: int = MOST_OWNER_BYTES,
        most_sent_bytes: int = _MOST_SENT_BYTES,
        most_layers_bytes: int = MOST_LAYERS_BYTES,
    ) -> None:
        """Make nothing yet.

        Args:
            directory: Becomes this process's own, closed to others.
            most_owner_bytes: Of all bundles of one user, a block for each file included.
            most_sent_bytes: Of one bundle, as it is sent.
            most_layers_bytes: Of all packages of one user.
        """
        self._directory = directory
        self._most_owner_bytes, self._most_sent_bytes = most_owner_bytes, most_sent_bytes
        self._most_layers_bytes = most_layers_bytes
        self._guard = threading.Lock()
        self._sending: Counter[int] = Counter()

    def has(self, owner_uid: int, digest: str) -> bool:
        """Whether a bundle of this user is there; it stays then for the deployment that asks."""
        with self._guard, contextlib.suppress(OSError):
            os.utime(self._bundle(owner_uid, digest) / "bytes")
            return True
        return False

    def has_layer(self, owner_uid: int, digest: str) -> bool:
        """Whether packages of this digest are there; they stay then for the version that asks."""
        layer = self.layer(owner_uid, digest)
        with self._guard, contextlib.suppress(OSError):
            if stat.S_ISDIR(layer.lstat().st_mode):  # a link of its owner's would be followed by the engine, as root
                os.utime(layer)
                return True
        return False

    def tree(self, owner_uid: int, digest: str) -> Path:
        """Return where a bundle's source lies.

        Raises:
            RequestError: It is not there.
        """
        if not self.has(owner_uid, digest):
            raise RequestError(f"the bundle {digest} is not here", hint="deploy it again")
        return self._bundle(owner_uid, digest) / "tree"

    def layer(self, owner_uid: int, digest: str) -> Path:
        """Return where packages of this digest are installed, or would be."""
        return self._shelf("layers", owner_uid) / _checked(digest)

    def check_layers(self, owner_uid: int) -> None:
        """Refuse what was installed last where it is too much together with what this user has.

        Raises:
            RequestError: It is, or nobody can tell.
        """
        held = disk_bytes(self._shelf("layers", owner_uid))
        if held > self._most_layers_bytes:
            raise RequestError(
                f"your packages would hold {held // MIB} MiB of {self._most_layers_bytes // MIB} MiB",
                hint="pgpu undeploy NAME",
            )

    @contextlib.contextmanager
    def receiving(self, owner_uid: int) -> Iterator["BundleUpload"]:
        """Take in a bundle; nothing is left of one that is not kept.

        Raises:
            CapacityError: There is no room for more of this user's.
            NodeError: It cannot be written.
        """
        shelf = self._shelf("bundles", owner_uid)
        try:
            shelf.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_room(shelf)
            with self._one_of_few(owner_uid), tempfile.TemporaryFile(dir=shelf) as file:
                yield BundleUpload(shelf, cast("BinaryIO", file), self._most_sent_bytes)
        except OSError as exc:
            raise NodeError(f"a bundle cannot be written to {shelf}: {exc.strerror or exc}") from exc

    def sweep(
        self,
        owner_uid: int,
        bundles: Collection[str],
        layers: Collection[str],
        older_seconds: float = _LEFT_AFTER_SECONDS,
    ) -> None:
        """Throw away a user's bundles and layers that no version names, unless they came just now."""
        before_seconds = time.time() - older_seconds
        for kind, kept in (("bundles", bundles), ("layers", layers)):
            for found in self._shelf(kind, owner_uid).glob("*"):
                if found.name not in kept and (taken := self._taken_off(found, before_seconds)) is not None:
                    remove_tree(taken)

    def _taken_off(self, found: Path, before_seconds: float) -> Path | None:
        """Take the name of what came before then; None: it came later, or somebody was just promised it."""
        mark, taken = found / "bytes", found.with_name(f".{secrets.token_hex(8)}")
        with self._guard, contextlib.suppress(OSError):
            if (mark if mark.is_file() else found).stat().st_mtime < before_seconds:
                return found.rename(taken)
        return None

    @contextlib.contextmanager
    def _one_of_few(self, owner_uid: int) -> Iterator[None]:
        with self._guard:
            if self._sending[owner_uid] >= _MOST_AT_ONCE:
                raise CapacityError(f"{_MOST_AT_ONCE} bundles of yours are being sent already", hint="wait for one")
            self._sending[owner_uid] += 1
        try:
            yield
        finally:
            with self._guard:
                self._sending[owner_uid] -= 1

    def _check_room(self, shelf: Path) -> None:
        held = sum(int(mark.read_text("ascii") or 0) for mark in shelf.glob("*/bytes"))
        if held + MOST_BYTES > self._most_owner_bytes:
            raise CapacityError(
                f"your bundles hold {held // MIB} MiB of {self._most_owner_bytes // MIB} MiB", hint="pgpu undeploy NAME"
            )

    def _bundle(self, owner_uid: int, digest: str) -> Path:
        return self._shelf("bundles", owner_uid) / _checked(digest)

    def _shelf(self, kind: str, owner_uid: int) -> Path:
        return self._directory / kind / str(owner_uid)


class BundleUpload:
    """A bundle that is being sent."""

    def __init__(self, shelf: Path, file: BinaryIO, most_bytes: int) -> None:
        self._shelf = shelf
        self._most_bytes = most_bytes
        self._file = file
        self._sum = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Take more of it.

        Raises:
            RequestError: It is too long.
        """
        if self._file.tell() + len(data) > self._most_bytes:
            raise RequestError(f"the bundle is longer than {self._most_bytes // MIB} MiB")
        self._sum.update(data)
        self._file.write(data)

    def keep(self, digest: str) -> None:
        """Unpack all of it, durably.

        Raises:
            RequestError: It is not what its digest says, or no bundle.
        """
        if self._sum.hexdigest() != _checked(digest):
            raise RequestError(
                f"what came is not {digest}: its SHA-256 is {self._sum.hexdigest()}", hint="send it again"
            )
        made = self._shelf / f".{secrets.token_hex(8)}"
        made.mkdir(mode=0o700)
        try:
            unpacked = unpack(self._file, made / "tree")
            size_bytes = unpacked.size_bytes + (unpacked.members + _OWN_FILES) * BLOCK_BYTES
            (made / "bytes").write_text(str(size_bytes), "ascii")
            _sync(made)
            with contextlib.suppress(OSError):  # it came twice at once: both are the same
                made.rename(self._shelf / digest)
            _sync(self._shelf)
        finally:
            remove_tree(made)


def _sync(directory: Path) -> None:
    """Write a whole file system out: a bundle has thousands of files, and a version must not outlive a half of one."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)


def _checked(digest: str) -> str:
    if len(digest) != hashlib.sha256().digest_size * 2 or not set(digest) <= set("0123456789abcdef"):
        raise RequestError(f"{digest[:80]!r} is no SHA-256", hint="64 hexadecimal digits")
    return digest
