"""Removal of directory trees that no other user can change meanwhile."""

import os
from contextlib import suppress
from pathlib import Path


def remove_tree(directory: str | Path) -> None:
    """Remove a directory and all that is in it; symbolic links are removed, not followed.

    Only for a tree below a directory that is closed to other users: `shutil.rmtree` guards against a user who exchanges its
    subdirectories, with twice the system calls. What another process removes meanwhile is no error.

    Raises:
        OSError: Something in it cannot be removed; the rest may be gone.
    """
    with suppress(FileNotFoundError):
        with os.scandir(directory) as found:
            entries = list(found)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
            else:
                with suppress(FileNotFoundError):
                    os.unlink(entry.path)  # noqa: PTH108 - entries have text
        os.rmdir(directory)  # noqa: PTH106 - as above
