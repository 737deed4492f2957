"""Determines which processes of this machine belong to a job.

PIDs are reused; a PID with its start time and boot is unique. A job's processes are recognised by three marks, since a program
may lose one of them by accident: the job's private mount namespace (kept by daemons and by `env -i`; without one, its session),
its ancestry, and `PGPU_JOB_ID` in the environment. A program can escape only by dropping all of them deliberately; the lease
still counts it, by the locks in its slice.
"""

import os

from pgpu.host.process_identity import identify_unreaped, read_status
from pgpu.model import ProcessHolder
from pgpu.runtimes.process_table import job_ids_of, mount_namespace, places, read_processes
from pgpu.structs import Struct


class HeldNamespace(Struct, frozen=True):
    """An open mount namespace. The descriptor keeps its inode number from being reused."""

    name: str
    descriptor: int

    def close(self) -> None:
        os.close(self.descriptor)


def hold_mount_namespace(pid: int) -> HeldNamespace | None:
    """Open a process's mount namespace; None if it is gone, access is denied, or it is this process's own."""
    for directory in places(pid):
        try:
            descriptor = os.open(f"{directory}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        # The name is read from the open descriptor: the process may enter another namespace, or end, at any time.
        name = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - for each job
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
        table = read_processes()
        marked = list(table.job_ids.get(self.job_id, ()))
        if self.private_namespace is not None:
            marked += table.namespaces.get(self.private_namespace.name, ())
        else:
            marked += filter(self._is_in_session, table.sessions.get(self.main.pid, ()))
        # Never this process: the caller kills all members.
        return table.with_descendants(marked) - {os.getpid()}

    def _is_marked(self, pid: int) -> bool:
        if self.private_namespace is not None:
            is_in_place = mount_namespace(pid) == self.private_namespace.name
        else:
            is_in_place = self._is_in_session(pid)
        return is_in_place or self.job_id in job_ids_of(pid)

    def _is_in_session(self, pid: int) -> bool:
        """True if a process is in the job's session, and not in a newer one with the same ID after the PID was reused."""
        status = read_status(pid)
        return (
            status is not None
            and status.session_id == self.main.pid
            and status.start_time_ticks >= self.main.start_time_ticks
            and identify_unreaped(self.main.pid) in {None, self.main}
        )
