"""Determines which processes of this machine belong to a job.

PIDs are reused; a PID with its start time and boot is unique. A job's processes are recognised by three marks, since a program
may lose one of them by accident: the job's private mount namespace (kept by daemons and by `env -i`; without one, its session),
its ancestry, and `PGPU_JOB_ID` in the environment. A program can escape only by dropping all of them deliberately; the lease
still counts it, by the locks in its slice.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pgpu.host.process_identity import ProcessStatus, identify_unreaped, read_status
from pgpu.model import ProcessHolder
from pgpu.structs import Struct

JOB_ID_VARIABLE = "PGPU_JOB_ID"


def mount_namespace(pid: int) -> str | None:
    """Return the name of a process's mount namespace; None if the process is gone or access is denied."""
    for directory in _places(pid):
        try:
            return str((directory / "ns" / "mnt").readlink())
        except PermissionError:
            return None
        except OSError:
            continue
    return None


class HeldNamespace(Struct, frozen=True):
    """An open mount namespace. The descriptor keeps its inode number from being reused."""

    name: str
    descriptor: int

    def close(self) -> None:
        os.close(self.descriptor)


def hold_mount_namespace(pid: int) -> HeldNamespace | None:
    """Open a process's mount namespace; None if it is gone, access is denied, or it is this process's own."""
    for directory in _places(pid):
        try:
            descriptor = os.open(directory / "ns" / "mnt", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        # The name is read from the open descriptor: the process may enter another namespace, or end, at any time.
        name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if name != mount_namespace(os.getpid()):
            return HeldNamespace(name, descriptor)
        os.close(descriptor)
        return None
    return None


class Lineage(Struct, frozen=True):
    """The marks of one job."""

    job_id: str
    main: ProcessHolder
    """Its PID is also its session ID: the launcher made it a session leader."""

    private_namespace: HeldNamespace | None
    """The job's own mount namespace; None if it shares the host's."""

    def close(self) -> None:
        """Close the namespace; no other method may be called afterwards."""
        if self.private_namespace is not None:
            self.private_namespace.close()

    def owns(self, pid: int) -> bool:
        """True if a process or one of its ancestors has a mark of the job."""
        while not self._is_marked(pid):
            status = read_status(pid)
            # PID 1 adopts orphans and is part of no job.
            if status is None or status.parent_pid <= 1:
                return False
            pid = status.parent_pid
        return True

    def members(self) -> set[int]:
        """Return the PIDs of the job's processes, without zombies."""
        # One pass over /proc. Ancestry is computed from this snapshot, in which no parent can vanish in between.
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - names, not paths
        statuses = {pid: status for pid in pids if (status := read_status(pid)) is not None}
        marked = {pid for pid in statuses if self._is_marked(pid)}
        alive = {pid for pid, status in statuses.items() if not status.is_zombie}
        # Never this process: the caller kills all members.
        return {pid for pid in alive if _descends(pid, marked, statuses)} - {os.getpid()}

    def _is_marked(self, pid: int) -> bool:
        if self.private_namespace is not None:
            is_in_place = mount_namespace(pid) == self.private_namespace.name
        else:
            is_in_place = self._is_in_session(pid)
        return is_in_place or f"{JOB_ID_VARIABLE}={self.job_id}".encode() in _environment(pid)

    def _is_in_session(self, pid: int) -> bool:
        """True if a process is in the job's session, and not in a newer one with the same ID after the PID was reused."""
        status = read_status(pid)
        return (
            status is not None
            and status.session_id == self.main.pid
            and status.start_time_ticks >= self.main.start_time_ticks
            and identify_unreaped(self.main.pid) in {None, self.main}
        )


def _descends(pid: int, marked: set[int], statuses: Mapping[int, ProcessStatus]) -> bool:
    """True if a process or an ancestor is marked; the loop is bounded, since reused PIDs could form a cycle."""
    for _ in range(len(statuses)):
        if pid in marked:
            return True
        if pid not in statuses:
            break
        pid = statuses[pid].parent_pid
    return False


def _environment(pid: int) -> list[bytes]:
    for directory in _places(pid):
        try:
            # The block of the last execve; a program's own setenv does not change it.
            if block := (directory / "environ").read_bytes():
                return block.split(b"\0")
        except PermissionError:
            return []
        except OSError:  # ESRCH or empty, depending on the kernel: the thread has ended
            continue
    return []


def _places(pid: int) -> Iterator[Path]:
    """The process's main thread in /proc, then all threads, since an ended thread has no readable entries."""
    yield Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):
        yield from sorted(Path(f"/proc/{pid}/task").iterdir())
