"""Idle leases: a job that serves a function offers its own, claims it back, and loses it where it is taken for one that waits.

Who loses it ends, or lives on without it if it is one that parks: then its claim puts it among those who wait, for the GPU
that it was on. Each of these is one transaction of the ledger, so exactly one of claim and taking comes first, whoever asks. It refuses to
judge what a lease is worth, which its holder says, and who gets it, which `scheduling` does.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pgpu.errors import CapacityError, PgpuBug, RequestError
from pgpu.ledger import Decision, Entry
from pgpu.model import Job, JobState, Lease
from pgpu.scheduling.preemption import EvictableLease

if TYPE_CHECKING:
    from pgpu.engine.engine import Engine

RECLAIM_GRACE_SECONDS = 1.5
"""Between SIGTERM and SIGKILL of a job whose lease was taken: with what a supervisor needs to see and clear away, within the two
seconds that a job waits for it at most."""

PATIENCE_SECONDS = 10.0
"""A lease that was taken so long ago and is still held counts again: whoever was granted its memory goes back to the queue."""

RECLAIMED = "it was idle, and its lease was taken for a job that waited"


def mark_evictable(engine: "Engine", job_id: str, value: float) -> Job:
    """Let a job's lease be taken from now on, and see whether anybody waits for it; see `Client.offer`."""
    if not (math.isfinite(value) and value >= 0):
        raise RequestError(f"{value} is no value of a lease", hint="0 or more")
    with engine.deciding() as decision:
        entry = decision.entry(job_id)
        if entry.job.spec.serves is None:
            raise RequestError(f"job {job_id} serves no function: only those that do offer their leases")
        _refuse_what_is_lost(entry)
        return _put(decision, entry, value)


def reacquire(engine: "Engine", job_id: str) -> Job:
    """Keep a job's lease from now on, or wait for it if it is parked; see `Client.claim`."""
    with engine.deciding() as decision:
        entry = decision.entry(job_id)
        if entry.job.is_aside and entry.stop_grace_seconds is None:
            return _wanted(decision, entry)
        _refuse_what_is_lost(entry)
        return _put(decision, entry, None)


def park(engine: "Engine", job_id: str) -> Job:
    """Have an idle job do without its lease; see `Client.park`."""
    with engine.deciding() as decision:
        entry = decision.entry(job_id)
        if not entry.job.can_park:
            raise RequestError(f"job {job_id} cannot be parked: only functions on one GPU, in time slices, can")
        if entry.job.is_aside:
            return entry.job
        _refuse_what_is_lost(entry)
        if entry.job.suspended_by is not None:
            raise CapacityError(f"job {job_id} is suspended, and leaves its GPU for another job")
        entry = mark_taken(entry, time.time())
        decision.put(entry)
    engine.wake([job_id])
    return entry.job


def mark_parked(entry: Entry, now_seconds: float) -> Entry:
    """Return a job that has left its GPU."""
    job = replace(entry.job, parked_at_seconds=now_seconds, reclaimed_at_seconds=None, offered_value=None)
    return replace(entry, job=job)


def regrant(entry: Entry, lease: Lease) -> Entry:
    """Return a parked job that was granted its place again: the slice that it had, for its files say so."""
    if entry.job.lease is None:
        raise PgpuBug(f"job {entry.job.id} is parked and has no lease")
    lease = replace(entry.job.lease, granted_at_seconds=lease.granted_at_seconds)
    return replace(entry, job=replace(entry.job, lease=lease, parked_at_seconds=None, wanted_at_seconds=None))


def mark_restarting(entry: Entry) -> Entry:
    """Return a parked job that ends, since another GPU than its own has room for one like it."""
    return replace(entry, stop_grace_seconds=RECLAIM_GRACE_SECONDS)


def evictable_leases(entries: Sequence[Entry]) -> tuple[EvictableLease, ...]:
    """Return the leases that may be taken.

    Args:
        entries: Every job that holds a lease.
    """
    used_by = {entry.job.suspended_by for entry in entries}
    return tuple(
        EvictableLease(entry.job.id, entry.job.request.priority, entry.job.offered_value or 0.0)
        for entry in entries
        if entry.job.is_offered and _may_be_taken(entry) and entry.job.id not in used_by
    )


def counts_in_round(job: Job, now_seconds: float) -> bool:
    """Whether a job that holds a lease counts in a round: it is neither parked nor leaving."""
    return job.parked_at_seconds is None and not is_leaving(job, now_seconds)


def is_leaving(job: Job, now_seconds: float) -> bool:
    """Whether a job's lease was taken just now, so that others are granted what it holds and wait for its end."""
    return job.reclaimed_at_seconds is not None and abs(now_seconds - job.reclaimed_at_seconds) < PATIENCE_SECONDS


def mark_taken(entry: Entry, now_seconds: float) -> Entry:
    """Return a job whose lease was taken, so that it ends, or parks."""
    job = replace(entry.job, reclaimed_at_seconds=now_seconds)
    return replace(entry, job=job, stop_grace_seconds=None if job.can_park else RECLAIM_GRACE_SECONDS)


def awaited_departures(entries: Sequence[Entry], job: Job) -> tuple[str, ...]:
    """Return the ids of those whose leases were taken and who still hold what a job may have been granted of them.

    Args:
        entries: Every job that holds a lease.
        job: Granted and not started.

    Raises:
        CapacityError: One of them has not left for too long.
    """
    there = [each.job for each in entries if _is_counted_on(each.job, job)]
    late = [each.id for each in there if not is_leaving(each, time.time())]
    if late:
        raise CapacityError(f"job {late[0]}, whose lease was taken, has not ended")
    return tuple(each.id for each in there)


def is_waited_for(job: Job, entries: Sequence[Entry]) -> bool:
    """Whether somebody was granted what a job holds whose lease was taken.

    Args:
        job: Not ended.
        entries: Every job that holds a lease.
    """
    return any(_is_counted_on(job, each.job) for each in entries if each.job.id != job.id)


def _is_counted_on(taken_from: Job, job: Job) -> bool:
    """Whether it held a slice of one of the job's GPUs that counted as free when the job was granted."""
    if job.lease is None or taken_from.lease is None or taken_from.reclaimed_at_seconds is None:
        return False
    if not 0 <= job.lease.granted_at_seconds - taken_from.reclaimed_at_seconds < PATIENCE_SECONDS:
        return False
    return bool({each.gpu_uuid for each in job.lease.slices} & {each.gpu_uuid for each in taken_from.lease.slices})


def _may_be_taken(entry: Entry) -> bool:
    """Whoever was asked to stop leaves anyhow, and who does not run now cannot be told to."""
    job = entry.job
    return job.state is JobState.RUNNING and job.suspended_by is None and entry.stop_grace_seconds is None


def _wanted(decision: Decision, entry: Entry) -> Job:
    """It waits from now on, unless it does already."""
    job = entry.job
    if job.wanted_at_seconds is None:
        job = replace(job, wanted_at_seconds=time.time())
        decision.put(replace(entry, job=job))
    return job


def _refuse_what_is_lost(entry: Entry) -> None:
    job = entry.job
    if job.reclaimed_at_seconds is not None or job.is_aside:
        raise CapacityError(f"the lease of job {job.id} was taken for a job that waited")
    if job.state is not JobState.RUNNING or entry.stop_grace_seconds is not None:
        word = job.state.value if entry.stop_grace_seconds is None else "ending"
        raise CapacityError(f"job {job.id} holds no lease that it could keep: it is {word}")


def _put(decision: Decision, entry: Entry, value: float | None) -> Job:
    job = replace(entry.job, offered_value=value)
    if job != entry.job:
        decision.put(replace(entry, job=job))
    return job
