"""The board: a directory with one file for each job, in which it tells of its GPU time, and that all jobs see read-only.

Each file has an opaque name and lies on a small tmpfs of the board's own, so that no tenant fills the machine's memory by
growing its file; what one has grown is cut back when the next file is made. It belongs to no room, as `capped_tmpfs`.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence

from pgpu.capped_tmpfs import mount_capped, unmount

FILE_BYTES = 4096
"""Of each job's file (native/include/board_abi.h)."""

BOARD = "board"
TIME = "time"
"""Names beside the usage file that lead to the board and to the job's own file on it."""

_MOST_JOBS = 1024
_MODE = 0o666
_TAG_DIGITS = 8


def join(runtime_directory: str, meter_directory: str, gpu_uuids: Sequence[str] = ()) -> None:
    """Make a job's file on the board, and links to it and to the board beside its usage file.

    Args:
        runtime_directory: Where the board is.
        meter_directory: Of the job.
        gpu_uuids: Those of its lease, as NVML writes them, by which jobs on other GPUs know that it does not concern them; none
            where they are not known yet.

    Raises:
        OSError: The board is full or cannot be written.
    """
    board = f"{runtime_directory}/{BOARD}"
    path = f"{board}/{os.urandom(12).hex()}{''.join(map(_tag, gpu_uuids))}"
    with _alone(runtime_directory):
        _make(board)
        _cut_back(board)
        os.symlink(path, f"{meter_directory}/{TIME}")  # first: what is made can then be found and removed
        os.symlink(board, f"{meter_directory}/{BOARD}")
        _allocate(path)


def leave(runtime_directory: str, meter_directory: str) -> None:
    """Remove a job's file from the board, and the board's own tmpfs with the last; does nothing where it is gone."""
    try:
        path = os.readlink(f"{meter_directory}/{TIME}")
    except OSError:
        return
    with _alone(runtime_directory), contextlib.suppress(FileNotFoundError):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        if not os.listdir(os.path.dirname(path)):
            with contextlib.suppress(OSError):  # One that stays is empty, and the next job's file is made on it.
                unmount(os.path.dirname(path))


def _tag(gpu_uuid: str) -> str:
    return f"-{gpu_uuid.partition('-')[2][:_TAG_DIGITS].lower()}"


@contextlib.contextmanager
def _alone(runtime_directory: str) -> Iterator[None]:
    descriptor = os.open(f"{runtime_directory}/{BOARD}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make(board: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(board, 0o755)
    if not os.path.ismount(board) and not os.listdir(board):
        mount_capped(board, _MOST_JOBS * FILE_BYTES, _MOST_JOBS + 1)
    os.chmod(board, 0o755)  # noqa: S103 - jobs of every user read it


def _cut_back(board: str) -> None:
    with os.scandir(board) as entries:
        for entry in entries:
            if entry.stat(follow_symlinks=False).st_size > FILE_BYTES:
                os.truncate(entry.path, FILE_BYTES)


def _allocate(path: str) -> None:
    """All its memory now, as a usage file's: a page that is taken at first touch may not be there any more."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, _MODE)
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
    finally:
        os.close(descriptor)
