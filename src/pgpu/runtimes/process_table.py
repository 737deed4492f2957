"""All processes of the machine at one moment, with the marks by which jobs own them; threads that need one together share it.

When an array of jobs is killed, each of their threads needs the processes of its own job, and a pass over /proc takes as long as
there are processes. So one thread makes the pass, and all that asked before it began use what it found.
"""

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic_ns

from pgpu.host.process_identity import read_status
from pgpu.host.thread_turns import pause
from pgpu.structs import Struct, field

JOB_ID_VARIABLE = "PGPU_JOB_ID"


class ProcessTable(Struct, frozen=True):
    """What one pass over /proc found; without zombies, which have no processes below them."""

    children: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """PIDs by that of the parent."""

    sessions: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    namespaces: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By the name of the mount namespace."""

    job_ids: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By the value of `PGPU_JOB_ID` in the environment."""

    def with_descendants(self, pids: Sequence[int]) -> set[int]:
        """Return these processes and all below them. PIDs that were reused during the pass may form a cycle."""
        found: set[int] = set()
        left = list(pids)
        while left:
            pid = left.pop()
            if pid not in found:
                found.add(pid)
                left += self.children.get(pid, ())
        return found


class ProcessScans:
    """Passes over /proc that threads share."""

    def __init__(self, scan: Callable[[], ProcessTable], now_ns: Callable[[], int] = monotonic_ns) -> None:
        """Make no pass yet.

        Args:
            scan: Makes one.
            now_ns: Monotonic clock.
        """
        self._scan = scan
        self._now_ns = now_ns
        self._scanning = threading.Lock()
        self._began_at_ns = -1
        self._latest = ProcessTable()

    def read(self) -> ProcessTable:
        """Return a table whose pass began after this call; waits for a pass under way, and may share the next one."""
        asked_at_ns = self._now_ns()
        with pause(), self._scanning:
            if self._began_at_ns < asked_at_ns:
                began_at_ns = self._now_ns()
                self._latest = self._scan()
                self._began_at_ns = began_at_ns
            return self._latest


def scan_processes() -> ProcessTable:
    """Make a pass over /proc."""
    table = ProcessTable()
    for pid in [int(name) for name in os.listdir("/proc") if name.isdecimal()]:  # noqa: PTH208 - names, not paths
        status = read_status(pid)
        if status is None or status.is_zombie:
            continue
        table.children[status.parent_pid].append(pid)
        table.sessions[status.session_id].append(pid)
        if status.is_kernel_thread:
            continue
        if (namespace := mount_namespace(pid)) is not None:
            table.namespaces[namespace].append(pid)
        for job_id in job_ids_of(pid):
            table.job_ids[job_id].append(pid)
    return table


read_processes = ProcessScans(scan_processes).read


def mount_namespace(pid: int) -> str | None:
    """Return the name of a process's mount namespace; None if the process is gone or access is denied."""
    for directory in places(pid):
        try:
            return os.readlink(f"{directory}/ns/mnt")  # noqa: PTH115 - of all processes, in half the time
        except PermissionError:
            return None
        except OSError:
            continue
    return None


def job_ids_of(pid: int) -> list[str]:
    """Return the values of `PGPU_JOB_ID` in a process's environment; usually one or none."""
    prefix = f"{JOB_ID_VARIABLE}=".encode()
    for directory in places(pid):
        try:
            # The block of the last execve; a program's own setenv does not change it.
            with open(f"{directory}/environ", "rb", buffering=0) as file:  # noqa: PTH123 - of all processes
                block = file.read()
        except PermissionError:
            return []
        except OSError:  # ESRCH, where the thread has ended; on some kernels the block is empty instead
            continue
        if block:
            words = block.split(b"\0") if prefix in block else ()
            return [os.fsdecode(word.removeprefix(prefix)) for word in words if word.startswith(prefix)]
    return []


def places(pid: int) -> Iterator[str]:
    """Yield a process's directories in /proc: of its main thread, then of all, since an ended thread has no readable entries."""
    yield f"/proc/{pid}"
    with suppress(OSError):
        yield from sorted(map(str, Path(f"/proc/{pid}/task").iterdir()))
