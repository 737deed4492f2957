"""Processes identified by PID, start time and boot id, so that an identity survives the reuse of a PID and a reboot.

Reads /proc only. `identify_running` and `identify_unreaped` differ in zombies: a process that has ended but was not reaped.
"""

import fcntl
import os
import select
import struct
from functools import cache
from pathlib import Path

from pgpu.model import ProcessHolder
from pgpu.structs import Struct

# Fields of /proc/PID/stat after the name in parentheses, which may itself hold spaces and parentheses: proc(5).
_STATE, _PARENT, _SESSION, _FLAGS, _THREAD_COUNT, _START_TIME = 0, 1, 3, 6, 17, 19

_DEAD_STATES = {"Z", "X", "x"}

_PF_KTHREAD = 0x00200000
"""Flag of threads of the kernel; Source: include/linux/sched.h."""

_PIDFD_INFO_BYTES = 64
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO_BYTES << 16 | 0xFF << 8 | 11


class ProcessStatus(Struct, frozen=True):
    """The fields of /proc/PID/stat that pgpu uses."""

    is_zombie: bool
    """Whether all threads have ended and the parent has not reaped the process."""

    parent_pid: int
    session_id: int
    start_time_ticks: int
    """Since boot, in clock ticks."""

    is_kernel_thread: bool = False


@cache
def boot_id() -> str:
    """Return the kernel's random id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def read_status(pid: int) -> ProcessStatus | None:
    """Return the status of the process that has this PID now; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - of all processes, in half the time
            text = file.read().decode("utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return ProcessStatus(
        # The state is that of the main thread. After pthread_exit it is Z while other threads of the process still run.
        is_zombie=fields[_STATE] in _DEAD_STATES and int(fields[_THREAD_COUNT]) <= 1,
        parent_pid=int(fields[_PARENT]),
        session_id=int(fields[_SESSION]),
        start_time_ticks=int(fields[_START_TIME]),
        is_kernel_thread=bool(int(fields[_FLAGS]) & _PF_KTHREAD),
    )


def identify_running(pid: int) -> ProcessHolder | None:
    """Return the process that has this PID now; None if there is none, or if it is a zombie."""
    status = read_status(pid)
    return None if status is None or status.is_zombie else ProcessHolder(pid, status.start_time_ticks, boot_id())


def identify_unreaped(pid: int) -> ProcessHolder | None:
    """Return the process that has this PID now, running or a zombie; None if there is none."""
    status = read_status(pid)
    return None if status is None else ProcessHolder(pid, status.start_time_ticks, boot_id())


def myself() -> ProcessHolder:
    """Return the identity of this process."""
    return _identify_own(os.getpid())


@cache
def _identify_own(pid: int) -> ProcessHolder:
    # By the PID: a forked child must not take its parent's identity.
    found = identify_running(pid)
    if found is None:
        raise LookupError("/proc does not show this process")
    return found


def is_alive(holder: ProcessHolder) -> bool:
    """Whether exactly this process still runs; False for a zombie."""
    return holder.boot_id == boot_id() and identify_running(holder.pid) == holder


def open_pidfd(holder: ProcessHolder) -> int | None:
    """Return a descriptor that becomes readable when this process ends; None if it has ended already."""
    if holder.boot_id != boot_id():
        return None
    try:
        descriptor = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return None
    # The PID may have been reused before pidfd_open. From here on the descriptor pins the process, so this check is final.
    if is_alive(holder):
        return descriptor
    os.close(descriptor)
    return None


def has_ended(pidfd: int, timeout_seconds: float | None = 0.0) -> bool:
    """Wait at most so long for the end of a process, None for without limit, and return whether it has ended.

    By poll(2): select(2) takes no descriptor above 1023, and an agent may have many.
    """
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(None if timeout_seconds is None else timeout_seconds * 1000))


def reaped_status(pidfd: int) -> int | None:
    """Return the wait status of a process that its parent, any process, has reaped.

    None before that, and before Linux 6.15, which keeps it for the pidfds that were opened before the reaping. Source:
    struct pidfd_info in include/uapi/linux/pidfd.h.
    """
    info = bytearray(_PIDFD_INFO_BYTES)
    struct.pack_into("=Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    (mask,), (status,) = struct.unpack_from("=Q", info), struct.unpack_from("=i", info, _PIDFD_INFO_BYTES - 4)
    return status if mask & _PIDFD_INFO_EXIT else None
