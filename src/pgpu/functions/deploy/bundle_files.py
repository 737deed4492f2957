"""The files of a source tree that go into its bundle.

Hidden files, caches, build output and virtual environments are left out: they hold secrets, or can be made again. A
`.pgpuignore` adds rules in the syntax of a `.gitignore`. `.gitignore` itself is not used, since it usually lists weights, which
the function needs.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pathspec

from pgpu.errors import RequestError
from pgpu.functions.deploy.source_bundle import BundleMember, MemberKind, PackedBundle, pack
from pgpu.units import quoted

IGNORE_FILE = ".pgpuignore"
DEFAULT_IGNORED = (".*", "__pycache__/", "*.py[co]", "node_modules/", "venv/", "*.egg-info/", "/build/", "/dist/")
"""Left out unless `.pgpuignore` includes it again with a `!`."""


def pack_tree(root: Path, out: BinaryIO) -> PackedBundle:
    """Write the bundle of a source tree.

    Raises:
        RequestError: The tree holds a member that is not allowed, cannot be read, or changes meanwhile.
    """

    def read(member: BundleMember) -> bytes:
        try:
            return (root / member.path).read_bytes()
        except OSError as exc:
            raise RequestError(f"{quoted(member.path)} cannot be read: {exc.strerror}") from exc

    return pack(list_members(root), read, out)


def list_members(root: Path) -> list[BundleMember]:
    """List the members of a tree's bundle, in the order of `sort_members`.

    Raises:
        RequestError: The tree or its `.pgpuignore` cannot be read, or it holds a device, socket or pipe.
    """
    if not root.is_dir():
        raise RequestError(f"there is no directory {quoted(str(root))}")
    rules = _read_rules(root)
    try:
        found = list(_walk(root, "", rules))
    except OSError as exc:
        raise RequestError(f"{exc.filename} cannot be read: {exc.strerror}") from exc
    return sort_members(found)


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
    with os.scandir(root / directory) as found:
        entries = list(found)
    for entry in entries:
        path = f"{directory}/{entry.name}" if directory else entry.name
        member = _member_of(entry, path)
        is_directory = member.kind is MemberKind.DIRECTORY
        is_environment = is_directory and Path(entry.path, "pyvenv.cfg").exists()
        if is_environment or rules.match_file(f"{path}/" if is_directory else path):
            continue
        yield member
        if is_directory:
            yield from _walk(root, path, rules)


def _member_of(entry: "os.DirEntry[str]", path: str) -> BundleMember:
    if entry.is_symlink():
        return BundleMember(path, MemberKind.LINK, target=str(Path(entry.path).readlink()))
    if entry.is_dir(follow_symlinks=False):
        return BundleMember(path, MemberKind.DIRECTORY)
    status = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        raise RequestError(f"{quoted(path)} is neither a file nor a directory", hint=f"leave it out by {IGNORE_FILE}")
    return BundleMember(path, MemberKind.FILE, status.st_size, is_executable=bool(status.st_mode & stat.S_IXUSR))
