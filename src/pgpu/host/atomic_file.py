"""Files that appear whole or not at all: written beside their place and then renamed or linked, so readers need no lock.

Never for the limit file's live words: the meter maps that file, and a rename would give it another inode.
"""

import os
import threading
from pathlib import Path


def write_atomically(path: Path, content: bytes, mode: int, *, is_durable: bool = False) -> None:
    """Create or replace a file.

    Args:
        path: Where it appears.
        content: All of it.
        mode: Permission bits, whatever the umask is.
        is_durable: Whether to return only once the disk has it, so that it survives a loss of power.

    Raises:
        OSError: It cannot be written; the old file is unchanged and the scratch file removed where possible.
    """
    _write_scratch(path, content, mode, is_durable=is_durable).replace(path)
    if is_durable:  # The rename itself is durable only once the directory is synced.
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def create_atomically(path: Path, content: bytes, mode: int) -> None:
    """Create a file where there is none.

    Raises:
        FileExistsError: There is one; it is unchanged.
        OSError: It cannot be written.
    """
    scratch = _write_scratch(path, content, mode)
    try:
        path.hardlink_to(scratch)  # Unlike a rename, a link fails where the name is taken.
    finally:
        scratch.unlink()


def _write_scratch(path: Path, content: bytes, mode: int, *, is_durable: bool = False) -> Path:
    # In the same directory, since a rename works within one file system. The kernel's thread id keeps two writers apart, also
    # threads of one process.
    scratch = path.with_name(f".{threading.get_native_id()}-{path.name}")
    try:
        with scratch.open("wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
    return scratch
