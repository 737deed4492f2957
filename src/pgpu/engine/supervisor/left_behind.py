"""Lets go on what a job that ended has left behind: processes that still hold its memory, and that somebody had made wait.

Turns and trials know jobs that run alone, so nobody else would take back what they had set for this one. It ends nothing
unless somebody asks to stop the job.
"""

import contextlib
import os
import signal

from pgpu.enforcement.compute_word import Hold
from pgpu.engine.engine import Engine
from pgpu.engine.supervisor.suspension import Suspension
from pgpu.host.process_identity import identify_running
from pgpu.model import Lease
from pgpu.runtimes.process_owners import ProcessOwners
from pgpu.structs import Struct, field


class Marked(Struct):
    """Tells the processes of a job that this supervisor never saw run: by the marks that the job gave them."""

    engine: Engine
    job_id: str
    _belonging: ProcessOwners = field(default_factory=ProcessOwners)

    def owns(self, pid: int) -> bool:
        """Whether a process, by host PID, is part of the job, as far as one can tell.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        process = identify_running(pid)
        jobs = [self.engine.ledger.job(self.job_id)]
        return process is not None and self._belonging.owner(process, jobs) is not None

    def kill(self) -> None:
        """End those of them that hold memory of a GPU.

        Raises:
            NodeError: The ledger or a GPU cannot be read.
        """
        for gpu in self.engine.gpus.gpus():
            for told in self.engine.gpus.processes(gpu.uuid):
                if self.owns(told.pid):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(told.pid, signal.SIGKILL)

    def close(self) -> None:
        """Forget the job."""
        self._belonging.close()


class LeftBehind(Struct, frozen=True):
    """What one supervisor does of it, once the job it looks after has ended."""

    engine: Engine
    suspension: Suspension

    def look(self, job_id: str) -> None:
        """Have it hold still only as long as somebody has its place.

        Raises:
            PgpuError: The ledger, the slice or the GPU cannot be read or written.
        """
        with self.engine.ledger.view() as view:
            job, holding = view.entry(job_id).job, view.holding()
        if job.lease is not None:
            self._end_turns(job.lease)
            self.suspension.follow(job, holding)

    def close(self) -> None:
        """Wait a moment for a move that is under way."""
        self.suspension.leaving.close()

    def _end_turns(self, lease: Lease) -> None:
        words = self.engine.enforcer.words(lease)
        for part, word in zip(lease.slices, words, strict=False):  # none where the slice is gone
            for hold in (Hold.TURNS, Hold.TRIAL):
                if word.holds & hold:
                    self.engine.enforcer.hold(lease, part.gpu_uuid, hold, is_held=False)
