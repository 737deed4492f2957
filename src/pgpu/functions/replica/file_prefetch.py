"""Has the kernel read a function's large files while its module is still being imported: weights, most of all.

A disk that is slow works then, while the processor does; what is in the page cache already costs nothing. It refuses to read
anything itself, and to say what is needed.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from pgpu.units import MIB

LARGE_BYTES = MIB
MOST_FILES = 5000
"""Looked at: a source tree is small, and one that is not must not hold up the start."""


def read_ahead(source: Path) -> list[Path]:
    """Ask for the large files below a directory; return which they are. Files that cannot be read are left out."""
    return [path for path in islice(_files(source), MOST_FILES) if _is_asked_for(path)]


def _files(source: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(source):
        yield from (Path(folder, name) for name in names)


def _is_asked_for(path: Path) -> bool:
    with suppress(OSError):
        if path.is_file() and path.stat().st_size >= LARGE_BYTES:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
            return True
    return False
