"""Who a process is and whether it still lives, in terms that survive the reuse of a PID and a reboot.

It reads /proc alone, and refuses to end anybody.
"""

import os
from functools import cache
from pathlib import Path

from pgpu.model import ProcessHolder

_START_TIME = 19
"""Index of field 22 of /proc/PID/stat in what follows the command's name, which is field 2. Source: proc(5)."""

_DEAD = {"Z", "X", "x"}


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
    if fields[0] in _DEAD:
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
