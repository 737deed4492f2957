"""What one ended job leaves: its trace, its run in the history and, after it was refused memory, another try.

A next try after a failure at the job's limit has more memory; the last one has its GPUs alone. No try requests more than could
ever be granted, or it would wait for ever. A job whose size pgpu chose gets what it attempted to hold, at its old place in the queue
(`scheduling.slice_growth`); one with `--retry-oom` half as much again as it had, behind those that wait. If the limit had room and the GPU had none, since an outsider took memory that was
promised, the next try has the same size. It is granted once the GPU has that much room again.

A trace log that cannot be read or written is logged and does not delay the job's end.
"""

import os
import time
import zlib
from contextlib import suppress
from signal import Signals

from pgpu.advising.memory_demand import Basis, retry_bytes
from pgpu.enforcement import trace
from pgpu.engine.context import EngineContext
from pgpu.engine.history.run_history import LargestSlice, MemoryObservation, RunHistory, name_of_gpu
from pgpu.engine.streams.records import STDERR, Record, encode
from pgpu.engine.watch.gpu_time import Sample
from pgpu.errors import PgpuError
from pgpu.gpu import MetricsWatch
from pgpu.host.stderr_log import say
from pgpu.ledger import Decision, Entry, LedgerView
from pgpu.model import Gpu, Job, JobState, Request
from pgpu.profiling.measurement import Measurement, profile_of, summarise_log, with_metrics
from pgpu.scheduling.slice_growth import MOST_ATTEMPTS, next_attempt_bytes
from pgpu.structs import Struct, replace
from pgpu.units import format_memory

MOST_TRIES = MOST_ATTEMPTS
"""Of a job that is refused memory. After failures at its own limit the last one has its GPUs alone, as far as its user's quota
allows."""

_OWN_LIMIT = "it failed at its own limit"
_FULL_GPU = "it failed because its GPU was full, although its slice was not"

ENDING_SIGNALS = frozenset({Signals.SIGHUP, Signals.SIGINT, Signals.SIGQUIT, Signals.SIGTERM})
"""Signals with which a program is asked to end."""

_SIGNAL_EXIT_BASE = 128
_NOT_FAILED = {None, 0, *(_SIGNAL_EXIT_BASE + number for number in {*ENDING_SIGNALS, Signals.SIGKILL})}
"""Exit codes after which there is no next try: a job that was ended from outside (Ctrl-C, `kill`, the host's OOM killer) has not
failed by itself."""

_ZLIB_LEVEL = 1
"""zlib level: a log shrinks to a fifth, at 100 MB/s."""


def begin_metrics(context: EngineContext, job: Job) -> MetricsWatch | None:
    """Start reading the counters of a traced job's first GPU; None where it has none or they cannot be read."""
    if not job.spec.is_traced or job.lease is None:
        return None
    try:
        return context.gpus.watch_metrics(job.lease.slices[0].gpu_uuid)
    except PgpuError as exc:
        say(str(exc))
        return None


def measure_trace(context: EngineContext, job: Job, metrics: MetricsWatch | None = None) -> Measurement | None:
    """Read and store the log of a job after its command has ended; None for a job that was not traced."""
    if not job.spec.is_traced or job.lease is None:
        return None
    try:
        log = context.enforcer.trace(job.lease)
        if log is None:
            return None
        # The slice, with its log, is removed when the lease is released; this copy stays with the job.
        context.places(job.id).trace.write_bytes(zlib.compress(log, _ZLIB_LEVEL))
        found = summarise_log(trace.read(log))
        return found if metrics is None else with_metrics(found, *metrics.finish())
    except (PgpuError, OSError) as exc:
        say(f"the trace of job {job.id} cannot be read: {exc}")
        return None


class NextTry(Struct, frozen=True):
    """A job that is queued again."""

    job: Job
    """As it would have ended."""

    request: Request
    run: "EndedRun"
    warning: str | None = None
    """Why a job is tried again at its old place; None if it goes behind those that wait."""


class EndedRun(Struct, frozen=True):
    """What was measured of one job until its end."""

    history: RunHistory
    observed: MemoryObservation
    gpus: tuple[Gpu, ...]
    """Every GPU of the engine; empty if they could not be read at the end: then nothing is learnt from the run."""

    measured: Measurement | None = None
    """Of a traced job."""

    last_sample: Sample | None = None
    """Of its GPU time; None if it was not sampled."""

    def learn(self, decision: Decision, job: Job) -> None:
        """Write the run into the history, in the transaction in which the job ends."""
        self.history.remember(decision, job, self.observed, self.gpus, self.last_sample)
        name, measured = name_of_gpu(job, self.gpus), self.measured
        # A profile holds for the next run if the job succeeded, used the GPU and had the caches for itself.
        is_representative = job.exit_code == 0 and job.spec.carve_out_percent is None
        if measured is not None and measured.duration_seconds > 0 and name is not None and is_representative:
            decision.profiles.add(profile_of(measured, job, name, time.time()), job.id)

    def follow(self, view: LedgerView, job: Job) -> NextTry | str | None:
        """Decide whether a job that failed at its own limit is tried again.

        Args:
            view: Of the ledger.
            job: As it would end, with its exit code.

        Returns:
            Its next try, or one line on why there is none; None for a job that did not fail so, or without retries.
        """
        failed = job.exit_code not in _NOT_FAILED and self.observed.refusals > 0
        if not (failed and job.request.retries_out_of_memory):
            return None
        # A resize may have given it more after the refusal, and it failed with that.
        slice_bytes = max(self.observed.refused_at_bytes, job.request.memory_bytes)
        if not self.gpus:
            return f"{_OWN_LIMIT}, {format_memory(slice_bytes)}, and was not tried again: its GPUs could not be read"
        most = self.history.most(view, job.owner_uid, self.gpus, job.request)
        if job.request.has_chosen_size:
            found = self._with_attempted(view, job, most)
            if found is not None:
                return found
        else:
            request = _next_request(job, slice_bytes, self.observed.attempted_bytes, most)
            if request is not None:
                return NextTry(job, request, self)
        if job.attempt >= MOST_TRIES:
            why = f"this was the last of {MOST_TRIES} tries"
        elif most.is_quota:
            why = f"its owner's quota allows no larger slice than {format_memory(most.memory_bytes)}"
        else:
            why = f"no slice can be larger than {format_memory(most.memory_bytes)}"
        return f"{_OWN_LIMIT}, {format_memory(slice_bytes)}, and was not tried again: {why}"

    def _with_attempted(self, view: LedgerView, job: Job, most: LargestSlice) -> NextTry | None:
        # Not known where memory that had to stay on the device was refused, and of a file that its job has changed.
        attempted_bytes = max(self.observed.attempted_bytes, self.observed.refused_at_bytes)
        name = name_of_gpu(job, self.gpus)
        known = None if name is None else self.history.estimate(view, job.signature, job.owner_uid, name).memory_bytes
        found = next_attempt_bytes(job.attempt, attempted_bytes, known, most.memory_bytes)
        if found is None:
            return None
        memory_bytes, is_alone = found
        basis = Basis.ALONE if is_alone else Basis.RETRY
        again = "all of its GPU" if is_alone else format_memory(memory_bytes)
        warning = (
            f"asked for {format_memory(attempted_bytes)} with {format_memory(self.observed.refused_at_bytes)} reserved by pgpu; "
            f"queued again with {again} (attempt {job.attempt + 1} of {MOST_TRIES})"
        )
        return NextTry(job, replace(job.request, memory_bytes=memory_bytes, basis=basis.value), self, warning)

    def follow_full_gpu(self, entry: Entry, *, is_promised: bool) -> NextTry | str | None:
        """Decide whether a job that failed within its limit, on a full GPU, is started again with the same size.

        Args:
            entry: As it would end, with its exit code.
            is_promised: See `EngineContext.keeps_memory_of`.

        Returns:
            Its next try, or one line on why there is none; None for a job that did not fail so.
        """
        job, deadline_seconds = entry.job, entry.wait_deadline_seconds
        if job.exit_code in _NOT_FAILED or not self.observed.device_refusals or job.lease is None:
            return None
        if not is_promised:
            why = "pgpu does so only for jobs for which headroom yields"
        elif job.spec.runtime not in {"process", "docker"} or job.spec.serves is not None:
            why = "only its container engine or its function starts it"
        elif job.spec.wants_tty or job.spec.wants_stdin:
            why = "its terminal or its input cannot be repeated"
        elif deadline_seconds is not None and deadline_seconds <= job.lease.granted_at_seconds:
            why = "its time limit for waiting is used up"
        elif job.attempt >= MOST_TRIES:
            why = f"this was the last of {MOST_TRIES} tries"
        else:
            again = f"{_FULL_GPU}: it is started again (try {job.attempt + 1} of {MOST_TRIES}) once there is room"
            return NextTry(job, job.request, self, again)
        return f"{_FULL_GPU}; it was not started again: {why}"


def observe_end(
    context: EngineContext,
    observed: MemoryObservation,
    measured: Measurement | None = None,
    last_sample: Sample | None = None,
) -> EndedRun:
    """Return the run of a job that ends; without GPUs if they cannot be read, which must not delay its end."""
    gpus: tuple[Gpu, ...] = ()
    try:
        gpus = tuple(context.recent_gpus())
    except PgpuError as exc:
        say(str(exc))
    return EndedRun(context.learning, observed, gpus, measured, last_sample)


def _next_request(job: Job, slice_bytes: int, attempted_bytes: int, most: LargestSlice) -> Request | None:
    """Return the request of a job's next try; None after the last one.

    A try alone on its GPUs requests the least that could do; each round raises that to all there is.

    Args:
        job: As it would end.
        slice_bytes: Size that was too small.
        attempted_bytes: What it would have held without the refusal; 0 if that is not known.
        most: Largest slice that it could have.
    """
    if job.attempt >= MOST_TRIES or slice_bytes >= most.memory_bytes:
        return None
    wanted_bytes = retry_bytes(slice_bytes, attempted_bytes)
    if job.attempt + 1 == MOST_TRIES or wanted_bytes >= most.memory_bytes:
        least_bytes = attempted_bytes if slice_bytes < attempted_bytes <= most.memory_bytes else slice_bytes
        return replace(job.request, memory_bytes=least_bytes, basis=Basis.ALONE.value)
    return replace(job.request, memory_bytes=wanted_bytes, basis=Basis.RETRY.value)


def queue_again(context: EngineContext, again: NextTry) -> None:
    """Put a job back into the queue with its next request; a job with a stop request ends instead.

    Its memory must be free, and its thread about to end.

    Raises:
        PgpuError: The ledger cannot be written. If it never is, recovery ends the job with the exit code of this try.
    """
    lease = again.job.lease
    if lease is not None:
        # Before the transaction: from its commit on the job waits, and its memory may be granted to another one.
        context.enforcer.release(lease)
    with context.deciding() as decision:
        entry = decision.entry(again.job.id)
        # The failed run is learnt in the same transaction, so that the next estimate is above it.
        again.run.learn(decision, again.job)
        now_seconds = time.time()
        if entry.stop_grace_seconds is not None:
            decision.put(replace(entry, job=again.job, supervisor=None, lease_released_at_seconds=now_seconds))
            return
        deadline_seconds = entry.wait_deadline_seconds
        if deadline_seconds is not None and entry.job.lease is not None:
            # The wait time is that of all tries together: what the tries before have left of it is left for this one.
            deadline_seconds = now_seconds + max(0.0, deadline_seconds - entry.job.lease.granted_at_seconds)
        # A size that pgpu chose, or promised and did not keep, is no reason to lose the place.
        since_seconds = now_seconds if again.warning is None else None
        decision.requeue(entry.job.id, since_seconds, deadline_seconds)
        job = replace(
            entry.job,
            state=JobState.WAITING,
            request=again.request,
            attempt=entry.job.attempt + 1,
            lease=None,
            holder=None,
            started_at_seconds=None,
            reason=None,
            warning=again.warning,
            offered_value=None,
            parked_at_seconds=None,
            wanted_at_seconds=None,
            hit_time_limit=False,
        )
        decision.put(
            replace(
                entry,
                job=job,
                supervisor=None,
                spawned_at_seconds=None,
                growth=None,
                lease_released_at_seconds=None,
            )
        )
    # Once it is queued, since this is repeated until it is. Behind the output of this try, whose monitor has ended; that of the next one,
    # which no thread starts before this one has ended, continues the file.
    if again.warning is not None:
        with suppress(OSError), context.places(again.job.id).log.open("r+b") as log:
            log.seek(0, os.SEEK_END)
            log.write(encode(Record(STDERR, f"pgpu: {again.warning}\n".encode(), time.time_ns())))
