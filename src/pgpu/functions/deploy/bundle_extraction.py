"""A bundle that somebody sent, back into a tree, believing nothing of it.

Each member passes `members.Inspector` and then Python's own filter for data before anything of it is written, into a
directory that nobody else can write. It refuses archives that are compressed: what is counted is what is written.
"""

import os
import shutil
import tarfile
from pathlib import Path
from typing import BinaryIO, NamedTuple

from pgpu.errors import NodeError, RequestError
from pgpu.functions.deploy.bundle_members import BundleInspector, BundleMember, MemberKind
from pgpu.units import quoted

_BROKEN = (tarfile.TarError, ValueError, OverflowError, EOFError, KeyError, IndexError, UnicodeError, RecursionError)
"""What `tarfile` raises of bytes that are no archive."""


class UnpackedBundle(NamedTuple):
    """What came out of a bundle."""

    size_bytes: int
    """Of all files."""

    members: int


def unpack(bundle: BinaryIO, directory: Path) -> UnpackedBundle:
    """Write a bundle's tree.

    Args:
        bundle: Can be sought in.
        directory: Is made; it and all above it are nobody's to change but ours.

    Raises:
        RequestError: It is no bundle; what was written until then is left behind for the caller to throw away.
        NodeError: It cannot be written.
    """
    if not hasattr(tarfile, "data_filter"):
        raise NodeError("this Python cannot unpack a stranger's archive safely", hint="use Python 3.11.4 or newer")
    try:
        return _unpack(bundle, directory)
    except _BROKEN as exc:
        raise RequestError(f"this is no bundle: {exc}", hint="pack it with `pgpu deploy`") from exc
    except OSError as exc:
        raise NodeError(f"a bundle cannot be written to {directory}: {exc.strerror}") from exc


def _unpack(bundle: BinaryIO, directory: Path) -> UnpackedBundle:
    _make(directory)
    inspector, size_bytes, members = BundleInspector(), 0, 0
    bundle.seek(0)
    with tarfile.open(fileobj=bundle, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
        for header in archive:
            member = inspector.admit(_member(header))
            tarfile.data_filter(header, str(directory))
            _write(archive, header, member, directory / member.path)
            size_bytes += member.size_bytes
            members += 1
            archive.members = []  # type: ignore[attr-defined] # else all headers stay in memory
    return UnpackedBundle(size_bytes, members)


def _member(header: tarfile.TarInfo) -> BundleMember:
    if header.isdir():
        return BundleMember(header.name, MemberKind.DIRECTORY)
    if header.issym():
        return BundleMember(header.name, MemberKind.LINK, target=header.linkname)
    if header.type not in {tarfile.REGTYPE, tarfile.AREGTYPE} or header.issparse():
        raise RequestError(f"{quoted(header.name)} is no file, directory or link", hint="pack it with `pgpu deploy`")
    return BundleMember(header.name, MemberKind.FILE, header.size, is_executable=bool(header.mode & 0o100))


def _write(archive: tarfile.TarFile, header: tarfile.TarInfo, member: BundleMember, path: Path) -> None:
    if member.kind is MemberKind.DIRECTORY:
        _make(path)
    elif member.kind is MemberKind.LINK:
        path.symlink_to(member.target)
    else:
        content = archive.extractfile(header)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            os.fchmod(descriptor, 0o755 if member.is_executable else 0o644)
            if content is not None:
                shutil.copyfileobj(content, out)
            if out.tell() != member.size_bytes:
                raise RequestError(f"the bundle ends within {quoted(member.path)}")


def _make(directory: Path) -> None:
    """Whoever runs the function reads it, whatever this process's umask is; who may come here is said further up."""
    directory.mkdir(mode=0o700)
    directory.chmod(0o755)
