"""Tmpfs mounts for files that jobs write, so that no job fills the machine's memory: of a usage file, and the board.

A capped tmpfs is mounted only by root, and only where a container engine sees the mount: not in a mount namespace that keeps
its mounts to itself (a systemd unit with PrivateTmp). Otherwise the files lie on the runtime tmpfs.

The board is a directory with one file for each job, in which it publishes its GPU time; all jobs can read it. Each file has a
random name behind its owner's number; a file that its job has grown is truncated when the next one is made.

The module is in no room: the creation of a container has milliseconds and imports it without any room.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence

# Room for a usage file, which has 836 KiB (native/include/meter_abi.h).
CAP_BYTES = 1 << 20

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MNT_DETACH = 2
_ALREADY_UNMOUNTED = {errno.EINVAL, errno.ENOENT}

_libc = ctypes.CDLL(None, use_errno=True)


def mount_capped(directory: str | os.PathLike[str], cap_bytes: int = CAP_BYTES, most_files: int = 4) -> bool:
    """Mount a tmpfs of limited size over a directory; return False if that is not possible here."""
    if os.geteuid() != 0 or _stays_private(directory):
        return False
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    options = f"size={cap_bytes},nr_inodes={most_files},mode=0700".encode()
    return bool(_libc.mount(b"pgpu", os.fsencode(directory), b"tmpfs", flags, options) == 0)


def unmount(directory: str | os.PathLike[str]) -> None:
    """Detach the capped tmpfs; jobs with the file open keep it until they close it.

    Raises:
        OSError: It could not be detached.
    """
    if _libc.umount2(os.fsencode(directory), _MNT_DETACH) != 0:
        number = ctypes.get_errno()
        # Users other than root get EPERM for any directory; none of theirs is mounted.
        if number not in _ALREADY_UNMOUNTED and _is_mounted(directory):
            raise OSError(number, os.strerror(number), os.fspath(directory))


def _is_mounted(directory: str | os.PathLike[str]) -> bool:
    # Not `os.path.ismount`, which resolves the path for mounts of one file system in two places.
    try:
        return os.lstat(directory).st_dev != os.lstat(os.path.dirname(directory)).st_dev
    except FileNotFoundError:
        return False


_private: dict[int, bool] = {}
"""By file system: the list of mounts has a line for each slice, and is read once for all of them."""


def _stays_private(directory: str | os.PathLike[str]) -> bool:
    """Whether mounts below a directory do not propagate to the namespace that this one was made from."""
    device = os.stat(directory).st_dev
    if device not in _private:
        _private[device] = _reads_as_private(directory)
    return _private[device]


def _reads_as_private(directory: str | os.PathLike[str]) -> bool:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.split(" ") for line in file]
    real = f"{os.path.realpath(directory)}/"
    # proc_pid_mountinfo(5): the mount point is the fifth field, optional fields begin at the seventh.
    above = [fields for fields in mounts if real.startswith(f"{fields[4].rstrip('/')}/")]
    nearest = max(above, key=lambda fields: len(fields[4]))
    return any(word.startswith("master:") for word in nearest[6 : nearest.index("-")])


# Size of each job's file (native/include/board_abi.h).
FILE_BYTES = 4096

BOARD = "board"

# Names of the links beside the usage file, to the board and to the job's own file.
TIME = "time"

_MOST_JOBS = 1024
_TAG_DIGITS = 8


def join_board(runtime_directory: str, meter_directory: str, owner_uid: int, gpu_uuids: Sequence[str] = ()) -> None:
    """Create a job's file on the board, and links to it and to the board beside its usage file.

    Args:
        runtime_directory: The directory with the board.
        meter_directory: The job's directory with the usage file.
        owner_uid: The job's owner, by which jobs tell whose their neighbours are.
        gpu_uuids: The GPUs of its lease, as NVML writes them: jobs on other GPUs skip the file. Empty if not known yet.

    Raises:
        OSError: The board is full or cannot be written.
    """
    board = f"{runtime_directory}/{BOARD}"
    tags = (f"-{uuid.partition('-')[2][:_TAG_DIGITS].lower()}" for uuid in gpu_uuids)
    path = f"{board}/{owner_uid:08x}{os.urandom(8).hex()}{''.join(tags)}"
    # The lock excludes `leave_board` of the last job, which unmounts the board.
    with _lock_board(runtime_directory):
        _make_board(board)
        os.symlink(path, f"{meter_directory}/{TIME}")  # First: after a crash, `leave_board` finds the file through it.
        os.symlink(board, f"{meter_directory}/{BOARD}")
        _allocate(path)


def leave_board(runtime_directory: str, meter_directory: str) -> None:
    """Remove a job's file from the board, and with the last file the board's tmpfs; a missing file is no error."""
    try:
        path = os.readlink(f"{meter_directory}/{TIME}")
    except OSError:
        return
    with _lock_board(runtime_directory), contextlib.suppress(FileNotFoundError):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        if not os.listdir(os.path.dirname(path)):
            with contextlib.suppress(OSError):  # A mount that stays is empty and is used again.
                unmount(os.path.dirname(path))


@contextlib.contextmanager
def _lock_board(runtime_directory: str) -> Iterator[None]:
    descriptor = os.open(f"{runtime_directory}/{BOARD}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make_board(board: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(board, 0o755)
    is_capped = _is_mounted(board)
    if not is_capped and not os.listdir(board):
        is_capped = mount_capped(board, _MOST_JOBS * FILE_BYTES, _MOST_JOBS + 1)
    os.chmod(board, 0o755)  # noqa: S103 - jobs of every user read it
    # Each job owns its file and may grow it; the others' room is taken back here. The capped tmpfs has these files alone, so
    # that its counts show whether one of them has grown; its root is an inode without a block.
    found = os.statvfs(board)
    allocated_bytes = (found.f_blocks - found.f_bfree) * found.f_frsize
    if is_capped and allocated_bytes <= (found.f_files - found.f_ffree - 1) * FILE_BYTES:
        return
    with os.scandir(board) as entries:
        for entry in entries:
            if entry.stat(follow_symlinks=False).st_size > FILE_BYTES:
                os.truncate(entry.path, FILE_BYTES)


def _allocate(path: str) -> None:
    """Allocate all pages now: one that is allocated at the first write could be missing when the tmpfs is full."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o666)  # The mode of `open` is subject to the umask.
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
    finally:
        os.close(descriptor)
