"""What one ended job leaves behind: its run in the history, and where it hit its own limit another try in the queue."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pgpu.engine.engine import Engine
from pgpu.engine.history.job_profiles import TraceMeasurement
from pgpu.engine.history.retry_policy import next_try, why_no_more
from pgpu.engine.history.run_history import MemoryObservation, RunHistory, name_of_gpu
from pgpu.errors import PgpuError
from pgpu.ledger import Decision, Entry, View
from pgpu.model import Gpu, Job, JobState, Request

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NextTry:
    """A job that goes back to the queue."""

    job: Job
    """As it would have ended."""

    request: Request
    lesson: "EndedRun"


@dataclass(frozen=True, slots=True)
class EndedRun:
    """What was seen of one job until its end."""

    learning: RunHistory
    observed: MemoryObservation
    gpus: tuple[Gpu, ...]
    measured: TraceMeasurement | None = None
    """Of a traced job."""

    def learn(self, decision: Decision, job: Job) -> None:
        """Write it into the history, in the transaction in which the job ended."""
        self.learning.remember(decision, job, self.observed, self.gpus)
        name = name_of_gpu(job, self.gpus)
        if self.measured is not None and name is not None and self.measured.is_telling(job):
            decision.profiles.add(self.measured.profile(job, name), job.id)

    def follow(self, view: View, job: Job) -> NextTry | str | None:
        """Say what follows for a job that failed at its own limit and asked to be tried again.

        Args:
            view: Of the ledger.
            job: As it would end, with its exit code.

        Returns:
            Its next try, or in one line why there is none; None for every other job.
        """
        failed = job.exit_code not in {0, None} and self.observed.refusals > 0
        if not (failed and job.request.retries_out_of_memory):
            return None
        most = self.learning.most(view, job.owner_uid, self.gpus, job.request.gpu_count)
        # It may have been given more after the refusal, and it failed in that.
        slice_bytes = max(self.observed.refused_at_bytes, job.request.memory_bytes)
        request = next_try(job, slice_bytes, self.observed.attempted_bytes, most)
        return why_no_more(job, slice_bytes, most) if request is None else NextTry(job, request, self)


def observe_end(
    engine: Engine, observed: MemoryObservation, measured: TraceMeasurement | None = None
) -> EndedRun | None:
    """Return what there is to learn of a job; None while the GPUs cannot be read, which must not hold up its end."""
    try:
        gpus: Sequence[Gpu] = engine.gpus.gpus()
    except PgpuError as exc:
        _LOG.warning("%s", exc)
        return None
    return EndedRun(engine.learning, observed, tuple(gpus), measured)


def queue_again(engine: Engine, again: NextTry) -> None:
    """Put a job back into the queue with what it asks for now; one that was asked to stop meanwhile ends instead.

    Its memory must be free and its supervisor at its end.

    Raises:
        PgpuError: The ledger cannot be written; who recovers the job finds it lost.
    """
    lease = again.job.lease
    if lease is not None:
        engine.enforcer.release(lease)
    with engine.deciding() as decision:
        entry = decision.entry(again.job.id)
        again.lesson.learn(decision, again.job)
        if entry.stop_grace_seconds is not None:
            decision.put(replace(entry, job=again.job, supervisor=None, lease_released_at_seconds=time.time()))
            return
        now_seconds = time.time()
        decision.begin_again(entry.job.id, now_seconds, _deadline_seconds(entry, now_seconds))
        decision.put(_waiting(entry, again.request))


def _deadline_seconds(entry: Entry, now_seconds: float) -> float | None:
    """What an earlier try left of the time that the job may wait, all its tries together, is left for the next one."""
    deadline_seconds, lease = entry.wait_deadline_seconds, entry.job.lease
    if deadline_seconds is None or lease is None:
        return deadline_seconds
    return now_seconds + max(0.0, deadline_seconds - lease.granted_at_seconds)


def _waiting(entry: Entry, request: Request) -> Entry:
    job = replace(
        entry.job,
        state=JobState.WAITING,
        request=request,
        attempt=entry.job.attempt + 1,
        lease=None,
        holder=None,
        started_at_seconds=None,
        warning=None,
        offered_value=None,
        parked_at_seconds=None,
        wanted_at_seconds=None,
    )
    return replace(entry, job=job, supervisor=None, spawned_at_seconds=None, lease_released_at_seconds=None)
