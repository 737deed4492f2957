"""A small tmpfs for files that jobs can write, so that no job fills the machine's memory through its usage file.

It is mounted only by root, and only where a container engine sees the mount: not in a mount namespace that keeps its
mounts to itself (a systemd unit with PrivateTmp). Otherwise the usage file lies on the runtime tmpfs. The module is in no
room: the creation of a container has milliseconds and imports it without any room.
"""

import ctypes
import errno
import os

CAP_BYTES = 1 << 20
"""Room for a usage file, which has 836 KiB (native/include/meter_abi.h)."""

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
    if os.path.ismount(directory) and _libc.umount2(os.fsencode(directory), _MNT_DETACH) != 0:
        number = ctypes.get_errno()
        if number not in _ALREADY_UNMOUNTED:
            raise OSError(number, os.strerror(number), os.fspath(directory))


def _stays_private(directory: str | os.PathLike[str]) -> bool:
    """Whether mounts below a directory do not propagate to the namespace that this one was made from."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.split(" ") for line in file]
    real = f"{os.path.realpath(directory)}/"
    # proc_pid_mountinfo(5): the mount point is the fifth field, optional fields begin at the seventh.
    above = [fields for fields in mounts if real.startswith(f"{fields[4].rstrip('/')}/")]
    nearest = max(above, key=lambda fields: len(fields[4]))
    return any(word.startswith("master:") for word in nearest[6 : nearest.index("-")])
