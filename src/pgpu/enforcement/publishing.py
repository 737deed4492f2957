"""Files that appear whole or not at all, since other processes read a slice while it is being made.

It refuses to change a file in place: a live word of a limit file is the meter's to store.
"""

import os
from pathlib import Path


def publish(path: Path, content: bytes, mode: int) -> None:
    """Put a file in place, over one that is there.

    Args:
        path: Where it appears.
        content: All of it.
        mode: Permission bits, whatever the umask says.

    Raises:
        OSError: It cannot be written; nothing is left behind where that can be helped.
    """
    scratch = _scratch(path, content, mode)
    scratch.replace(path)


def publish_new(path: Path, content: bytes, mode: int) -> None:
    """Put a file in place where there is none.

    Raises:
        FileExistsError: There is one; it was left alone.
        OSError: It cannot be written.
    """
    scratch = _scratch(path, content, mode)
    try:
        path.hardlink_to(scratch)
    finally:
        scratch.unlink()


def _scratch(path: Path, content: bytes, mode: int) -> Path:
    scratch = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        scratch.write_bytes(content)
        scratch.chmod(mode)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
    return scratch
