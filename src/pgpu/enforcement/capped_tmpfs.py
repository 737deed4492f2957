"""A small tmpfs for what a job may write, so that no tenant fills the machine's memory through its usage file.

Only root can mount one, and only in the machine's own mount namespace, where a container engine sees it too. Elsewhere
the usage file lies on the runtime tmpfs itself, which is the user's own.
"""

import ctypes
import os
from pathlib import Path

_CAP_OPTIONS = b"size=1m,nr_inodes=4,mode=0700"
"""A usage file takes 836 KiB (native/include/meter_abi.h)."""

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def mount_capped(directory: Path) -> bool:
    """Cover a directory with a capped tmpfs where that is possible; say whether it was."""
    if os.geteuid() != 0 or not _is_machines_own_namespace():
        return False
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    return bool(_libc.mount(b"pgpu", os.fsencode(directory), b"tmpfs", flags, _CAP_OPTIONS) == 0)


def unmount(directory: Path) -> None:
    """Take the capped tmpfs away; jobs that still have the file keep it until they close it."""
    if os.path.ismount(directory):
        _libc.umount2(os.fsencode(directory), _MNT_DETACH)


def _is_machines_own_namespace() -> bool:
    try:
        return Path("/proc/self/ns/mnt").readlink() == Path("/proc/1/ns/mnt").readlink()
    except OSError:
        return False
