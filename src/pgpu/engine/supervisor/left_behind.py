"""Processes that a job left behind at its end and that still hold its memory: removes the holds on their launches.

Turns and trials handle running jobs only, so they do not clear the hold bits that they set for a job that has ended since;
without this module its processes would wait forever. The processes are killed only if the job was asked to stop.
"""

import contextlib
import os
import signal

from pgpu.enforcement.compute_word import Hold
from pgpu.engine.engine import Engine
from pgpu.engine.supervisor.suspension import Suspension
from pgpu.host.process_identity import identify_running
from pgpu.runtimes.process_owners import ProcessOwners
from pgpu.structs import Struct, field


class Marked(Struct):
    """Identifies a job's processes without its runtime, by marks such as their mount namespace."""

    engine: Engine
    job_id: str
    _belonging: ProcessOwners = field(default_factory=ProcessOwners)

    def owns(self, pid: int) -> bool:
        """Whether a process, by host PID, is known to belong to the job; False if its marks cannot be read.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        process = identify_running(pid)
        jobs = [self.engine.ledger.job(self.job_id)]
        return process is not None and self._belonging.owner(process, jobs) is not None

    def kill(self) -> None:
        """Kill those of the job's processes that hold memory of a GPU.

        Raises:
            NodeError: The ledger or a GPU cannot be read.
        """
        for gpu in self.engine.gpus.gpus():
            for process in self.engine.gpus.processes(gpu.uuid):
                if self.owns(process.pid):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Release the marks."""
        self._belonging.close()


def follow_holds(engine: Engine, suspension: Suspension, job_id: str) -> None:
    """Clear an ended job's holds of turns and trials, and continue its suspension only while another job has the place.

    Raises:
        PgpuError: The ledger, the slice or the GPU cannot be read or written.
    """
    with engine.ledger.view() as view:
        job, holding = view.entry(job_id).job, view.holding()
    if job.lease is None:
        return
    for part, word in zip(
        job.lease.slices, engine.enforcer.words(job.lease), strict=False
    ):  # none where the slice is gone
        for hold in (Hold.TURNS, Hold.TRIAL):
            if word.holds & hold:
                engine.enforcer.hold(job.lease, part.gpu_uuid, hold, is_held=False)
    suspension.follow(job, holding)
