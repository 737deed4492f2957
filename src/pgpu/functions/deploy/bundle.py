"""A source tree as one file, the same bytes for the same tree on every machine and at every time.

A plain tar: no times, no owners, no modes but whether a file may be executed; not compressed, since weights are not made
smaller by it and the bytes of a compressor differ between its versions. It refuses what `members` does not admit.
"""

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pgpu.errors import RequestError
from pgpu.functions.deploy.bundle_files import list_members
from pgpu.functions.deploy.bundle_members import BundleInspector, BundleMember, MemberKind
from pgpu.units import quoted

_TYPES = {MemberKind.FILE: tarfile.REGTYPE, MemberKind.DIRECTORY: tarfile.DIRTYPE, MemberKind.LINK: tarfile.SYMTYPE}


@dataclass(frozen=True, slots=True)
class PackedBundle:
    """A bundle that was written."""

    digest: str
    """SHA-256 in hexadecimal digits: its address."""

    size_bytes: int
    paths: tuple[str, ...]
    """Of its files."""


def pack_tree(root: Path, out: BinaryIO) -> PackedBundle:
    """Write a source tree's bundle.

    Raises:
        RequestError: It holds what no bundle may, cannot be read, or changes meanwhile.
    """

    def read(member: BundleMember) -> bytes:
        try:
            return (root / member.path).read_bytes()
        except OSError as exc:
            raise RequestError(f"{quoted(member.path)} cannot be read: {exc.strerror}") from exc

    return pack(list_members(root), read, out)


def pack(members: Iterable[BundleMember], read: Callable[[BundleMember], bytes], out: BinaryIO) -> PackedBundle:
    """Write a bundle of members that are in order.

    Args:
        members: As `choosing.in_order` sorts them.
        read: Returns the content of a file.
        out: Takes the bundle; its other bytes are not touched.

    Raises:
        RequestError: A member may not be there, or has another size than it said.
    """
    inspector, paths, hashing = BundleInspector(), [], _Hashing(out)
    with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8") as archive:
        for member in members:
            inspector.admit(member)
            archive.addfile(_header(member), io.BytesIO(_content(member, read)))
            if member.kind is not MemberKind.DIRECTORY:
                paths.append(member.path)
    return PackedBundle(hashing.digest, hashing.size_bytes, tuple(paths))


def _content(member: BundleMember, read: Callable[[BundleMember], bytes]) -> bytes:
    content = read(member) if member.kind is MemberKind.FILE else b""
    if len(content) != member.size_bytes:
        raise RequestError(f"{quoted(member.path)} changed while it was packed", hint="deploy again")
    return content


def _header(member: BundleMember) -> tarfile.TarInfo:
    header = tarfile.TarInfo(member.path)
    header.type, header.size, header.linkname = _TYPES[member.kind], member.size_bytes, member.target
    header.mode = 0o755 if member.is_executable or member.kind is MemberKind.DIRECTORY else 0o644
    return header


class _Hashing(io.RawIOBase):
    """Passes bytes on and counts and hashes them."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._sum = hashlib.sha256()
        self.size_bytes = 0

    @property
    def digest(self) -> str:
        return self._sum.hexdigest()

    def write(self, data: bytes) -> int:  # type: ignore[override] # tarfile writes bytes alone
        self._sum.update(data)
        self.size_bytes += len(data)
        self._out.write(data)
        return len(data)
