"""Who a process is and whether it still lives, in terms that survive the reuse of a PID and a reboot.

It reads /proc alone, and refuses to end anybody.
"""

import os
from functools import cache
from pathlib import Path

from pgpu.model import ProcessHolder

_STATE, _THREAD_COUNT, _START_TIME = 0, 17, 19
"""Indices of fields 3, 20 and 22 of /proc/PID/stat in what follows the command's name, which is field 2. Source: proc(5)."""

_DEAD = {"Z", "X", "x"}
"""Of the main thread: one that called pthread_exit looks like this too, while others of its process live on."""


@cache
def boot_id() -> str:
    """Return the identity of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def identify(pid: int) -> ProcessHolder | None:
    """Return the process that has this PID now; None if there is none, or if it only waits to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].decode("ascii").split()
    if fields[_STATE] in _DEAD and int(fields[_THREAD_COUNT]) <= 1:
        return None
    return ProcessHolder(pid, int(fields[_START_TIME]), boot_id())


def myself() -> ProcessHolder:
    """Return this process."""
    found = identify(os.getpid())
    if found is None:
        raise LookupError("/proc does not show this process")
    return found


def is_alive(holder: ProcessHolder) -> bool:
    """Whether exactly this process still runs."""
    return holder.boot_id == boot_id() and identify(holder.pid) == holder


def open_pidfd(holder: ProcessHolder) -> int | None:
    """Return a descriptor that polls readable once this process ended; None if it has already."""
    if holder.boot_id != boot_id():
        return None
    try:
        descriptor = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return None
    if is_alive(holder):
        return descriptor
    os.close(descriptor)
    return None
