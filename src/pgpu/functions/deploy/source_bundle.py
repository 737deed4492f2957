"""A bundle: a source tree in one file, with the same bytes for the same tree on every machine and at any time.

The format is a plain tar without times, owners or modes other than the executable bit. It is not compressed: weights hardly
compress, and the bytes of a compressor differ between its versions. `BundleInspector` applies the same rules to packing and
extraction: a member's directory must precede it as a directory, so nothing is ever written through a link; a link must resolve
to a place inside the tree by its text alone; only files, directories and links are allowed (no devices, hard links, holes).

Hidden files, caches, build output and virtual environments are left out: they hold secrets, or can be made again. A
`.pgpuignore` adds rules in the syntax of a `.gitignore`. `.gitignore` itself is not used, since it usually lists weights, which
the function needs.
"""

import hashlib
import io
import os
import posixpath
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pathspec

from pgpu.errors import NodeError, RequestError
from pgpu.structs import Struct, field
from pgpu.units import MIB, quoted

IGNORE_FILE = ".pgpuignore"
DEFAULT_IGNORED = (".*", "__pycache__/", "*.py[co]", "node_modules/", "venv/", "*.egg-info/", "/build/", "/dist/")
"""Left out unless `.pgpuignore` includes it again with a `!`."""

MOST_BYTES = 100 * MIB
"""Of all files together. Larger weights belong on a volume, or are fetched by the constructor."""

MOST_MEMBERS = 10_000
MOST_PATH_BYTES = 1024
_MOST_NAME_BYTES = 255

# What `tarfile` raises for bytes that are no archive.
_BROKEN = (tarfile.TarError, ValueError, OverflowError, EOFError, KeyError, IndexError, UnicodeError, RecursionError)


class MemberKind(Enum):
    """The type of a member."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"


_TYPES = {
    MemberKind.FILE: tarfile.REGTYPE,
    MemberKind.DIRECTORY: tarfile.DIRTYPE,
    MemberKind.LINK: tarfile.SYMTYPE,
}


class BundleMember(Struct, frozen=True):
    """A file, directory or link of a bundle."""

    path: str
    """Relative to the bundle's root, separated by `/`."""

    kind: MemberKind
    size_bytes: int = 0
    target: str = ""
    """A link's text."""

    is_executable: bool = False


class BundleInspector(Struct):
    """Checks the members of one bundle in their order."""

    most_bytes: int = MOST_BYTES
    most_members: int = MOST_MEMBERS
    _kinds: dict[str, MemberKind] = field(default_factory=lambda: {"": MemberKind.DIRECTORY})
    _bytes: int = 0

    def admit(self, member: BundleMember) -> BundleMember:
        """Return an allowed member unchanged.

        Raises:
            RequestError: It is not allowed, or the bundle is too large; the caller discards what it extracted.
        """
        self._check_path(member.path)
        if member.kind is MemberKind.LINK:
            _check_target(member)
        self._bytes += member.size_bytes
        if member.size_bytes < 0 or self._bytes > self.most_bytes:
            raise RequestError(
                f"the bundle is larger than {self.most_bytes // MIB} MiB (it has {quoted(member.path)})",
                hint="leave files out by .pgpuignore; fetch large weights in the constructor",
            )
        self._kinds[member.path] = member.kind
        return member

    def _check_path(self, path: str) -> None:
        parts = path.split("/")
        is_plain = all(
            part not in {"", ".", ".."} and len(part.encode("utf-8", "replace")) <= _MOST_NAME_BYTES for part in parts
        )
        if not is_plain or not _is_text(path) or len(path.encode()) > MOST_PATH_BYTES:
            raise RequestError(
                f"{quoted(path)} is no path in a bundle", hint="rename it, or leave it out by .pgpuignore"
            )
        if path in self._kinds:
            raise RequestError(f"the bundle has {quoted(path)} twice")
        if self._kinds.get(posixpath.dirname(path)) is not MemberKind.DIRECTORY:
            raise RequestError(f"{quoted(path)} is in no directory of the bundle")
        if len(self._kinds) > self.most_members:
            raise RequestError(
                f"the bundle has more than {self.most_members} files", hint="leave directories out by .pgpuignore"
            )


def _check_target(member: BundleMember) -> None:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(member.path), member.target))
    leaves = member.target.startswith("/") or target == ".." or target.startswith("../")
    if leaves or not member.target or not _is_text(member.target) or len(member.target.encode()) > MOST_PATH_BYTES:
        raise RequestError(
            f"the link {quoted(member.path)} leads out of the bundle",
            hint="copy what it leads to, or leave it out by .pgpuignore",
        )
    # `..` after a name: the name may be a link, and `..` would then start at its destination.
    parts = [part for part in member.target.split("/") if part not in {"", "."}]
    ups = next((place for place, part in enumerate(parts) if part != ".."), len(parts))
    if ".." in parts[ups:]:
        raise RequestError(f"the link {quoted(member.path)} has .. after a name", hint="write its target without that")


def _is_text(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


class PackedBundle(Struct, frozen=True):
    """A bundle that was written."""

    digest: str
    """SHA-256 in hexadecimal digits, the bundle's address."""

    size_bytes: int
    paths: tuple[str, ...]
    """Of its files and links."""


def pack(members: Iterable[BundleMember], read: Callable[[BundleMember], bytes], out: BinaryIO) -> PackedBundle:
    """Write a bundle.

    Args:
        members: In the order of `sort_members`.
        read: Returns the content of a file.
        out: Gets the bundle, from its current position on.

    Raises:
        RequestError: A member is not allowed, or its content has another size than the member.
    """
    inspector, paths, hashing = BundleInspector(), [], _HashingWriter(out)
    # PAX: names of any length and letters in UTF-8; ustar ends at 256 bytes.
    # "w|": tarfile writes without seeking, so that the digest covers the bytes in their final order.
    with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8") as archive:
        for member in members:
            inspector.admit(member)
            content = read(member) if member.kind is MemberKind.FILE else b""
            if len(content) != member.size_bytes:
                raise RequestError(f"{quoted(member.path)} changed while it was packed", hint="deploy again")
            header = tarfile.TarInfo(member.path)
            header.type, header.size, header.linkname = _TYPES[member.kind], member.size_bytes, member.target
            header.mode = 0o755 if member.is_executable or member.kind is MemberKind.DIRECTORY else 0o644
            archive.addfile(header, io.BytesIO(content))
            if member.kind is not MemberKind.DIRECTORY:
                paths.append(member.path)
    return PackedBundle(hashing.sum.hexdigest(), hashing.size_bytes, tuple(paths))


class _HashingWriter(io.RawIOBase):
    """Forwards bytes, counts and hashes them."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self.sum = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes) -> int:  # type: ignore[override] # tarfile writes bytes alone
        self.sum.update(data)
        self.size_bytes += len(data)
        self._out.write(data)
        return len(data)


def pack_tree(root: Path, out: BinaryIO) -> PackedBundle:
    """Write the bundle of a source tree.

    Raises:
        RequestError: The tree or its `.pgpuignore` cannot be read, holds a member that is not allowed, or changes meanwhile.
    """
    if not root.is_dir():
        raise RequestError(f"there is no directory {quoted(str(root))}")
    rules = _read_rules(root)
    try:
        members = sort_members(_walk(root, "", rules))
    except OSError as exc:
        raise RequestError(f"{exc.filename} cannot be read: {exc.strerror}") from exc

    def read(member: BundleMember) -> bytes:
        try:
            return (root / member.path).read_bytes()
        except OSError as exc:
            raise RequestError(f"{quoted(member.path)} cannot be read: {exc.strerror}") from exc

    return pack(members, read, out)


def sort_members(members: Iterable[BundleMember]) -> list[BundleMember]:
    """Sort members by the bytes of their paths' parts, parents first, so that the same tree gives the same bundle everywhere."""
    return sorted(members, key=lambda member: os.fsencode(member.path).split(b"/"))


def _read_rules(root: Path) -> pathspec.GitIgnoreSpec:
    try:
        own: Sequence[str] = (root / IGNORE_FILE).read_text("utf-8").splitlines()
    except FileNotFoundError:
        own = ()
    except (OSError, UnicodeDecodeError) as exc:
        raise RequestError(f"{IGNORE_FILE} cannot be read: {exc}") from exc
    try:
        return pathspec.GitIgnoreSpec.from_lines([*DEFAULT_IGNORED, *own])
    except ValueError as exc:  # base class of pathspec's error for a pattern such as `!` alone
        raise RequestError(f"{IGNORE_FILE}: {exc}", hint="its lines are those of a .gitignore") from exc


def _walk(root: Path, directory: str, rules: pathspec.GitIgnoreSpec) -> Iterator[BundleMember]:
    # Read whole before the recursion: one open descriptor at a time, however deep the tree is.
    with os.scandir(root / directory) as found:
        entries = list(found)
    for entry in entries:
        path = f"{directory}/{entry.name}" if directory else entry.name
        member = _member_of_entry(entry, path)
        is_directory = member.kind is MemberKind.DIRECTORY
        # Virtual environments have this file, whatever their name is.
        is_environment = is_directory and Path(entry.path, "pyvenv.cfg").exists()
        if is_environment or rules.match_file(f"{path}/" if is_directory else path):
            continue
        yield member
        if is_directory:
            yield from _walk(root, path, rules)


def _member_of_entry(entry: "os.DirEntry[str]", path: str) -> BundleMember:
    if entry.is_symlink():
        return BundleMember(path, MemberKind.LINK, target=str(Path(entry.path).readlink()))
    if entry.is_dir(follow_symlinks=False):
        return BundleMember(path, MemberKind.DIRECTORY)
    status = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        raise RequestError(f"{quoted(path)} is neither a file nor a directory", hint=f"leave it out by {IGNORE_FILE}")
    return BundleMember(path, MemberKind.FILE, status.st_size, is_executable=bool(status.st_mode & stat.S_IXUSR))


class UnpackedBundle(NamedTuple):
    """An extracted bundle."""

    size_bytes: int
    """Of all files."""

    members: int


def unpack(bundle: BinaryIO, directory: Path) -> UnpackedBundle:
    """Extract an untrusted bundle.

    Each member passes the inspector before anything of it is written, and then Python's `data` filter, where there is one (from
    3.11.4 on). Compressed archives are rejected, so the counted size is the written size.

    Args:
        bundle: Seekable.
        directory: Is created. Other users must not be able to change it or a directory above it.

    Raises:
        RequestError: It is no valid bundle; the caller discards what was extracted so far.
        NodeError: It cannot be written.
    """
    inspector, size_bytes, members = BundleInspector(), 0, 0
    try:
        _make_readable(directory)
        bundle.seek(0)
        with tarfile.open(fileobj=bundle, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
            for header in archive:
                member = inspector.admit(_member_of_header(header))
                if hasattr(tarfile, "data_filter"):
                    tarfile.data_filter(header, str(directory))
                path = directory / member.path
                if member.kind is MemberKind.DIRECTORY:
                    _make_readable(path)
                elif member.kind is MemberKind.LINK:
                    path.symlink_to(member.target)
                else:
                    _write_file(archive, header, member, path)
                size_bytes += member.size_bytes
                members += 1
                archive.members = []  # type: ignore[attr-defined] # else all headers stay in memory
    except _BROKEN as exc:
        raise RequestError(f"this is no bundle: {exc}", hint="pack it with `pgpu function deploy`") from exc
    except OSError as exc:
        raise NodeError(f"a bundle cannot be written to {directory}: {exc.strerror}") from exc
    return UnpackedBundle(size_bytes, members)


def _member_of_header(header: tarfile.TarInfo) -> BundleMember:
    if header.isdir():
        return BundleMember(header.name, MemberKind.DIRECTORY)
    if header.issym():
        return BundleMember(header.name, MemberKind.LINK, target=header.linkname)
    if header.type not in {tarfile.REGTYPE, tarfile.AREGTYPE} or header.issparse():
        raise RequestError(
            f"{quoted(header.name)} is no file, directory or link", hint="pack it with `pgpu function deploy`"
        )
    return BundleMember(header.name, MemberKind.FILE, header.size, is_executable=bool(header.mode & 0o100))


def _write_file(archive: tarfile.TarFile, header: tarfile.TarInfo, member: BundleMember, path: Path) -> None:
    content = archive.extractfile(header)
    # O_EXCL and O_NOFOLLOW: the name must not exist, not even as a link. fchmod, since the umask would change the mode of open.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        os.fchmod(descriptor, 0o755 if member.is_executable else 0o644)
        if content is not None:
            shutil.copyfileobj(content, out)
        if out.tell() != member.size_bytes:
            raise RequestError(f"the bundle ends within {quoted(member.path)}")


def _make_readable(directory: Path) -> None:
    # chmod, since the umask must not keep the function's user from reading; the directories above restrict access.
    directory.mkdir(mode=0o700)
    directory.chmod(0o755)
