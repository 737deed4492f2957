"""A small tmpfs for what a job may write, so that no tenant fills the machine's memory through its usage file.

Only root can mount one, and only where a container engine sees it too: not in a mount namespace whose mounts stay its own
(a systemd unit with PrivateTmp). Elsewhere the usage file lies on the runtime tmpfs itself. It belongs to no room, since the
creation of a container, which has milliseconds, needs it without loading one.
"""

import ctypes
import errno
import os

CAP_BYTES = 1 << 20
"""A usage file takes 836 KiB (native/include/meter_abi.h)."""

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MNT_DETACH = 2
_TAKEN_AWAY_MEANWHILE = {errno.EINVAL, errno.ENOENT}

_libc = ctypes.CDLL(None, use_errno=True)


def mount_capped(directory: str | os.PathLike[str], cap_bytes: int = CAP_BYTES, most_files: int = 4) -> bool:
    """Cover a directory with a capped tmpfs where that is possible; say whether it was."""
    if os.geteuid() != 0 or _stays_private(directory):
        return False
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    options = f"size={cap_bytes},nr_inodes={most_files},mode=0700".encode()
    return bool(_libc.mount(b"pgpu", os.fsencode(directory), b"tmpfs", flags, options) == 0)


def unmount(directory: str | os.PathLike[str]) -> None:
    """Take the capped tmpfs away; jobs that still have the file keep it until they close it.

    Raises:
        OSError: It is there and stays.
    """
    if os.path.ismount(directory) and _libc.umount2(os.fsencode(directory), _MNT_DETACH) != 0:
        number = ctypes.get_errno()
        if number not in _TAKEN_AWAY_MEANWHILE:
            raise OSError(number, os.strerror(number), os.fspath(directory))


def _stays_private(directory: str | os.PathLike[str]) -> bool:
    """Whether what is mounted below a directory is hidden from the namespace that this one was made from."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.split(" ") for line in file]
    real = f"{os.path.realpath(directory)}/"
    # proc_pid_mountinfo(5): the mount point is the fifth field, optional fields begin at the seventh.
    above = [fields for fields in mounts if real.startswith(f"{fields[4].rstrip('/')}/")]
    nearest = max(above, key=lambda fields: len(fields[4]))
    return any(word.startswith("master:") for word in nearest[6 : nearest.index("-")])
