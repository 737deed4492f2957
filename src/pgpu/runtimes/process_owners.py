"""Maps processes to jobs for callers that do not supervise the jobs, from the holders in the ledger.

Marks of a job that are read while its first process lives, such as its mount namespace, are kept until the job is
forgotten, so that its remaining processes are still attributed to it.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pgpu.host.process_identity import identify_unreaped
from pgpu.model import ClaimHolder, ContainerHolder, Holder, Job, ProcessHolder
from pgpu.runtimes.claim_runtime import Viewers
from pgpu.runtimes.lineage import Lineage, hold_mount_namespace


class _Marks(Protocol):
    def owns(self, pid: int) -> bool: ...

    def close(self) -> None: ...


class ProcessOwners:
    """Cache of the marks of jobs."""

    def __init__(self) -> None:
        self._marks: dict[str, _Marks] = {}
        self._owners: dict[ProcessHolder, str] = {}
        """A process never changes its job, so the result is cached."""

    def owner(self, process: ProcessHolder, jobs: Sequence[Job]) -> str | None:
        """Return the ID of the job of a process; None if the process belongs to no job.

        Args:
            process: A living process of the host.
            jobs: All jobs that may hold GPU memory.
        """
        self._remember(jobs)
        known = self._owners.get(process)
        if known is not None:
            return known
        found = next((job_id for job_id, marks in self._marks.items() if marks.owns(process.pid)), None)
        if found is not None:
            self._owners[process] = found
        return found

    def close(self) -> None:
        """Forget all jobs."""
        self._remember(())

    def _remember(self, jobs: Sequence[Job]) -> None:
        known = {job.id: job.holder for job in jobs}
        gone = set(self._marks) - set(known)
        for job_id in gone:
            self._marks.pop(job_id).close()
        if gone:
            self._owners = {process: job_id for process, job_id in self._owners.items() if job_id not in gone}
        for job_id, holder in known.items():
            if job_id not in self._marks and holder is not None:
                self._marks[job_id] = _marks_of(job_id, holder)


class _Container:
    """Matches by control group: its path contains the container's ID."""

    def __init__(self, container_id: str) -> None:
        self._id = container_id

    def owns(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            # Engines name the group `docker-ID.scope`, `libpod-ID.scope` or `/docker/ID`, depending on the cgroup driver.
            return self._id in Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii", errors="replace")
        return False

    def close(self) -> None:
        """No effect: no descriptor is held."""


def _marks_of(job_id: str, holder: Holder) -> _Marks:
    if isinstance(holder, ClaimHolder):
        return Viewers(Path(holder.slice_directory))
    if isinstance(holder, ContainerHolder):
        return _Container(holder.container_id)
    # After the first process has ended, its PID may be another process's, whose namespace must not be attributed to the job.
    is_there = identify_unreaped(holder.pid) == holder
    return Lineage(job_id, holder, hold_mount_namespace(holder.pid) if is_there else None)
