"""Trees that a stranger made: what they take of a disk, and their end, however deep they are.

Python's own walks go one call, and some one descriptor, further with each level, so that a thousand directories in each other
end them. It refuses to follow a link, also one that takes a directory's place meanwhile.
"""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from pgpu.errors import RequestError
from pgpu.units import KIB

BLOCK_BYTES = 4 * KIB
"""What a file takes of a disk beside its content, at least: a million empty ones are not nothing."""

_UNIT_BYTES = 512
"""Of `st_blocks`, whatever the file system's block is. Source: stat(2)."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def disk_bytes(tree: Path) -> int:
    """Return what is in a directory, as far as it can be read.

    Raises:
        RequestError: It is deeper than paths are long, so that nobody can tell.
    """
    size_bytes, left = 0, [os.fspath(tree)]
    while left:
        with _as_far_as_it_goes(), os.scandir(left.pop()) as found:
            for each in found:
                with _as_far_as_it_goes():
                    size_bytes += max(BLOCK_BYTES, each.stat(follow_symlinks=False).st_blocks * _UNIT_BYTES)
                    if each.is_dir(follow_symlinks=False):
                        left.append(each.path)
    return size_bytes


@contextlib.contextmanager
def _as_far_as_it_goes() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise RequestError("what was installed has directories that are nested too deep") from error


def remove_tree(tree: Path) -> None:
    """Remove a directory with all that is in it; what cannot be removed, stays.

    Each directory further down is moved to the top before it is emptied.
    """
    with contextlib.suppress(OSError), _opened(os.fspath(tree)) as top:
        left = [*_emptied(top, top)]
        while left:
            name = left.pop()
            with contextlib.suppress(OSError):
                with _opened(name, top) as directory:
                    left += _emptied(directory, top)
                os.rmdir(name, dir_fd=top)
    with contextlib.suppress(OSError):
        tree.rmdir()


def _emptied(directory: int, top: int) -> list[str]:
    """Unlink a directory's files, move its directories to the top, and return their names there."""
    moved = []
    for name in os.listdir(directory):
        with contextlib.suppress(OSError):
            try:
                os.unlink(name, dir_fd=directory)
            except IsADirectoryError:
                moved.append(secrets.token_hex(16))
                os.rename(name, moved[-1], src_dir_fd=directory, dst_dir_fd=top)
    return moved


@contextlib.contextmanager
def _opened(name: str, above: int | None = None) -> Iterator[int]:
    descriptor = os.open(name, _DIRECTORY, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
