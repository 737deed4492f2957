"""Which files of a source tree go into its bundle.

Hidden files, caches, builds and virtual environments stay out: they hold secrets, or what is made anew. A `.pgpuignore`
says more, in the words of a `.gitignore`; `.gitignore` itself is not asked, since weights stand in it and are needed. It
refuses to open any file but that one.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pathspec

from pgpu.errors import RequestError
from pgpu.functions.deploy.bundle_members import BundleMember, MemberKind
from pgpu.units import quoted

IGNORE_FILE = ".pgpuignore"
DEFAULT_IGNORED = (".*", "__pycache__/", "*.py[co]", "node_modules/", "venv/", "*.egg-info/", "/build/", "/dist/")
"""Left out unless `.pgpuignore` takes it back with a `!`."""


def list_members(root: Path) -> list[BundleMember]:
    """List what a bundle of this tree holds, each directory before what is in it, in the order of the bytes of their paths.

    Raises:
        RequestError: The tree or its `.pgpuignore` cannot be read, or it holds what no bundle may.
    """
    if not root.is_dir():
        raise RequestError(f"there is no directory {quoted(str(root))}")
    rules = _rules(root)
    try:
        found = list(_walk(root, "", rules))
    except OSError as exc:
        raise RequestError(f"{exc.filename} cannot be read: {exc.strerror}") from exc
    return sort_members(found)


def sort_members(members: Iterable[BundleMember]) -> list[BundleMember]:
    """Sort members so that the same tree is the same bundle everywhere: by the parts of their paths, parents first."""
    return sorted(members, key=lambda member: os.fsencode(member.path).split(b"/"))


def _rules(root: Path) -> pathspec.GitIgnoreSpec:
    try:
        own: Sequence[str] = (root / IGNORE_FILE).read_text("utf-8").splitlines()
    except FileNotFoundError:
        own = ()
    except (OSError, UnicodeDecodeError) as exc:
        raise RequestError(f"{IGNORE_FILE} cannot be read: {exc}") from exc
    try:
        return pathspec.GitIgnoreSpec.from_lines([*DEFAULT_IGNORED, *own])
    except ValueError as exc:  # pathspec's own class of it: a pattern such as `!` alone
        raise RequestError(f"{IGNORE_FILE}: {exc}", hint="its lines are those of a .gitignore") from exc


def _walk(root: Path, directory: str, rules: pathspec.GitIgnoreSpec) -> Iterator[BundleMember]:
    with os.scandir(root / directory) as found:
        entries = list(found)
    for entry in entries:
        path = f"{directory}/{entry.name}" if directory else entry.name
        member = _member(entry, path)
        if rules.match_file(f"{path}/" if member.kind is MemberKind.DIRECTORY else path) or _is_environment(entry):
            continue
        yield member
        if member.kind is MemberKind.DIRECTORY:
            yield from _walk(root, path, rules)


def _member(entry: "os.DirEntry[str]", path: str) -> BundleMember:
    if entry.is_symlink():
        return BundleMember(path, MemberKind.LINK, target=str(Path(entry.path).readlink()))
    if entry.is_dir(follow_symlinks=False):
        return BundleMember(path, MemberKind.DIRECTORY)
    status = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        raise RequestError(f"{quoted(path)} is neither a file nor a directory", hint=f"leave it out by {IGNORE_FILE}")
    return BundleMember(path, MemberKind.FILE, status.st_size, is_executable=bool(status.st_mode & stat.S_IXUSR))


def _is_environment(entry: "os.DirEntry[str]") -> bool:
    return entry.is_dir(follow_symlinks=False) and Path(entry.path, "pyvenv.cfg").exists()
