"""The engine of one ledger and one kind of GPUs: its decisions on jobs, each one transaction of the ledger.

Any process of pgpu may make them; no daemon is needed. The queue's agent does what takes a process beside the jobs.
"""

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from pgpu.engine.context import EngineContext
from pgpu.engine.settings import EngineSettings
from pgpu.engine.submitter import Submitter
from pgpu.errors import NodeError
from pgpu.ledger import Decision, Entry
from pgpu.model import Job, JobState, Submission
from pgpu.structs import replace

if TYPE_CHECKING:
    from pgpu.engine.admission.rounds import Admissions, Forecast
    from pgpu.engine.admission.situation import SituationReader


class Engine(EngineContext):
    """Grants one kind of GPUs to the jobs of one ledger."""

    def apply(self, settings: EngineSettings) -> None:
        """See `EngineContext`; the next round makes other `admissions`."""
        super().apply(settings)
        self.__dict__.pop("admissions", None)

    @cached_property
    def admissions(self) -> "Admissions":
        """The rounds of this engine; a command on jobs of which none waits needs none, and does not import the scheduler."""
        from pgpu.engine.admission.rounds import Admissions  # noqa: PLC0415 - see above

        return Admissions(self)

    @property
    def rounds(self) -> "SituationReader":
        """Reads the situation that a round decides on; tests and `app` may replace its parts."""
        return self.admissions.reader

    def submit_all(
        self,
        submissions: Sequence[Submission],
        submitter: Submitter | None = None,
        new_id: Callable[[], str] | None = None,
    ) -> list[Job]:
        """Store jobs durably, all or none, and have the agent start those that were granted at once."""
        from pgpu.engine.job_submission import accept, new_job_id  # noqa: PLC0415 - most commands submit nothing

        jobs = accept(self, lambda: self.admissions, submissions, submitter, new_id or new_job_id)
        for job in jobs:
            if job.state is not JobState.STARTING:
                continue
            try:
                self.agents.attend(self.settings.gpu_model, job.id)
            except NodeError as exc:
                with self.deciding() as decision:
                    entry = decision.entry(job.id)
                    failed = replace(entry.job, state=JobState.FAILED, error=str(exc), finished_at_seconds=time.time())
                    decision.put(replace(entry, job=failed, lease_released_at_seconds=time.time()))
                raise  # the job is final in the ledger, so nothing starts it again
        return jobs

    def rehearse(self, submissions: Sequence[Submission], submitter: Submitter | None = None) -> "list[Forecast]":
        """Return the jobs that a submission would store, with their outlook; see `job_submission.rehearse`."""
        from pgpu.engine.job_submission import rehearse  # noqa: PLC0415 - likewise

        return rehearse(self, lambda: self.admissions, submissions, submitter)

    def release(self, job: Job, ended: Callable[[Decision, Entry], Entry] | None = None) -> Job:
        """Return a lease that holds no memory any more, and wake the queue and the jobs beside it.

        Args:
            job: With its lease.
            ended: Makes the job final in the same transaction; None for a job that is.

        Returns:
            The job as it is in the ledger now.

        Raises:
            EnforcementError: The slice's files cannot be removed; the lease is kept.
            LedgerError: The ledger cannot be written; the lease is kept.
        """
        from pgpu.engine.leases.lease_resize import concerned  # noqa: PLC0415 - agents release, commands do not
        from pgpu.engine.leases.mps_sharing import leave_mps  # noqa: PLC0415 - likewise

        # The slice's files go first: a crash here leaves the lease in the ledger, and recovery releases it again.
        if job.lease is not None:
            self.enforcer.release(job.lease)
        with self.deciding() as decision:
            entry = decision.entry(job.id)
            entry = entry if ended is None else ended(decision, entry)
            decision.put(replace(entry, lease_released_at_seconds=time.time(), supervisor=None))
            beside = concerned(entry.job, decision)
        self.wake(beside)
        leave_mps(self.mps, entry.job.lease)
        return entry.job

    def ask_to_stop(self, job_id: str, grace_seconds: float) -> Job:
        """Cancel a waiting job; for a running one, or processes that an ended one left, write a stop request."""
        self.ask_all_to_stop([job_id], grace_seconds)
        return self.ledger.job(job_id)

    def ask_all_to_stop(self, job_ids: Sequence[str], grace_seconds: float) -> None:
        """Stop several jobs in one transaction, so that none starts because another makes room; see `ask_to_stop`."""
        with self.deciding() as decision:
            cancelled = decision.cancel_waiting(job_ids, time.time())
            others = [each for each in job_ids if each not in cancelled]
            for entry in decision.entries_of(others):
                # A job that is supervised by no agent now gets the request, too: the next agent reads it.
                if entry.is_live:
                    decision.put(replace(entry, stop_grace_seconds=grace_seconds))
        # A job that waited has no thread of the agent.
        self.wake(others)
