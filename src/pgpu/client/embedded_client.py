"""The client with the engine in its own process: there is no daemon, and such processes coordinate through the ledger.

Methods import what they alone need, since each command is a new process.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

from pgpu.client.protocol import Client
from pgpu.engine.engine import Engine
from pgpu.engine.leases.recovery import recover
from pgpu.engine.submitter import inheritance
from pgpu.host.process_identity import myself
from pgpu.ledger import ChangeWatch
from pgpu.model import Bandwidths, Job, JobState, Submission
from pgpu.services.access import Caller
from pgpu.services.engine_pool import EnginePool
from pgpu.services.job_service import JobService
from pgpu.services.messages import Ask, JobReport, QueueReport

if TYPE_CHECKING:
    from pgpu.advising.contention import Constants
    from pgpu.client.monitor_offer import MonitorOffer
    from pgpu.engine.agent.doorstep import Doorstep

_PAGE = 256
"""Jobs that are read at a time while all of them have ended; after each change of the ledger the first one is read alone."""

_PAGE_GROWTH = 4

_PAUSE_SECONDS = 0.05
"""Between two reads of a ledger that changes all the time."""

_RECOVER_SECONDS = 1.0


class EmbeddedClient(Client, JobService):
    """The `Client` of one engine: its `JobService`, and the operations that wait for jobs."""

    def __init__(self, engine: Engine, engine_of: Callable[[str | None], Engine] | None = None) -> None:
        """Use an engine of this process.

        Args:
            engine: Grants the GPUs of this client's jobs.
            engine_of: Makes the engine of another `EngineSettings.gpu_model` on the same ledger, for jobs that run on
                other GPUs; None where there are no others.
        """
        JobService.__init__(self, EnginePool(engine, engine_of), Caller.this_process())
        self._engine = engine
        self._doorsteps: dict[str, Doorstep] = {}
        self._offers: dict[str, MonitorOffer] = {}

    def submit_all(self, submissions: Sequence[Submission]) -> Sequence[Job]:
        """Accept several jobs, all or none; see `Client.submit_all`."""
        return self.submit_batch(Ask(tuple(submissions)))

    def dry_run(self, submissions: Sequence[Submission]) -> Sequence[QueueReport]:
        """Forecast a submission; see `Client.dry_run`."""
        return self.rehearse_batch(Ask(tuple(submissions)))

    def submit_attached(self, submission: Submission) -> Job:
        """Accept one job and offer its agent a monitor that this process starts; see `Client.submit_attached`."""
        from pgpu.client.monitor_offer import MonitorOffer, may_offer

        if submission.spec.runtime != "process" or not may_offer():
            return self.submit_all([submission])[0]
        ask = Ask((submission,), environment=tuple(os.environ.items()), inherited=inheritance(starter=myself()))
        [job] = self.submit_batch(ask)
        offer = self._offers[job.id] = MonitorOffer(self._engine.agents, job.id, job.gpu_model)
        offer.renew()
        # What `attach` needs, imported while the agent starts the job.
        import pgpu.client.following
        import pgpu.client.terminal  # noqa: F401

        return job

    def attach(self, job_id: str, stdin: BinaryIO | None, stdout: BinaryIO, stderr: BinaryIO) -> Job:
        """Connect a terminal to a job until it ends; see `Client.attach`."""
        from pgpu.client.following import Follower
        from pgpu.client.job_stream import require_grant
        from pgpu.client.terminal import attach

        job = self.ledger.job(job_id)
        offer = self._offers.get(job_id)
        stream = Follower(self._engine, job, holds_back=True, offer=offer)
        try:
            attach(stream, job.spec, stdin=stdin, stdout=stdout, stderr=stderr)
        finally:
            if offer is not None:
                self._offers.pop(job_id).close()
        return require_grant(self.ledger.job(job_id))

    def jobs(self, *, include_final: bool) -> Sequence[JobReport]:
        """List jobs; see `Client.jobs`."""
        return self.page(include_final=include_final)[0]

    def still_waits(self, job_id: str, *, timeout_seconds: float) -> str | None:
        """Wait for a job's grant; see `Client.still_waits`."""
        from pgpu.engine.agent.doorstep import Doorstep

        deadline = time.monotonic() + timeout_seconds
        while (job := self.ledger.job(job_id)).state is JobState.WAITING:
            doorstep = self._doorsteps.setdefault(job_id, Doorstep(self._engine, job_id, job.gpu_model))
            if job_id in self._offers:
                doorstep.on_connected = self._offers[job_id].renew
            # The doorstep waits at the agent's socket; it is kept for the next call, which continues to wait at it.
            left_seconds = deadline - time.monotonic()
            if left_seconds <= 0:
                return doorstep.reason
            doorstep.rest(left_seconds)
        if job_id in self._doorsteps:
            self._doorsteps.pop(job_id).close()
        return None

    def wait(self, id_or_name: str) -> Job:
        """Wait for a job's end; see `Client.wait`."""
        from pgpu.client.following import FROM_NOW_ON, Follower

        job = self.ledger.find(id_or_name).job
        if job.state is JobState.CANCELLED:  # it never started: nothing of it ends
            return job
        for _ in Follower(self._engine, job, offset=FROM_NOW_ON).records():
            pass
        return self.ledger.job(job.id)

    def wait_all(self, job_ids: Sequence[str]) -> Iterator[Job]:
        """Wait for the ends of jobs; see `Client.wait_all`."""
        if len(job_ids) == 1:  # its monitor reports its end, so that commits on other jobs wake nothing here
            yield self.wait(job_ids[0])
            return
        left, count, recover_at_seconds = list(job_ids), 1, 0.0
        with ChangeWatch(self.ledger.path) as watch:
            while left:
                watch.clear()
                page = left[:count]
                ended, change_seconds = self.ended(page)
                yield from ended
                del left[: len(ended)]
                if len(ended) == len(page):  # the next page is longer: those behind it may all have ended meanwhile
                    count = min(_PAGE_GROWTH * count, _PAGE)
                    continue
                count = 1
                if time.monotonic() >= recover_at_seconds:
                    recover(self._engine)  # after a crash, nothing else may be there that ends or starts a job
                    recover_at_seconds = time.monotonic() + _RECOVER_SECONDS
                if watch.wait(max(0.0, min(change_seconds, recover_at_seconds - time.monotonic()))):
                    threading.Event().wait(_PAUSE_SECONDS)

    def logs(self, id_or_name: str, *, follow: bool, tail_lines: int | None = None) -> Iterator[tuple[str, bytes]]:
        """Read a job's output; see `Client.logs`."""
        from pgpu.client.following import Follower
        from pgpu.services.output_log import last_lines

        follower = Follower(self._engine, self.ledger.find(id_or_name).job)
        if tail_lines is not None:
            yield from last_lines(follower.stored_records(), tail_lines)
        elif not follow:
            yield from ((record.stream, record.payload) for record in follower.stored_records())
        if follow:
            yield from ((record.stream, record.payload) for record in follower.records())

    def check_calibration(self) -> None:
        """Check that this engine can keep calibrated constants; see `Client.check_calibration`."""
        from pgpu.engine.history.sharing_advice import check_calibration

        check_calibration(self._engine)

    def keep_constants(self, gpu_uuid: str, constants: "Constants", bandwidths: Bandwidths) -> None:
        """Store calibrated constants; see `Client.keep_constants`."""
        from pgpu.engine.history.sharing_advice import keep_constants

        keep_constants(self._engine, gpu_uuid, constants, bandwidths)
