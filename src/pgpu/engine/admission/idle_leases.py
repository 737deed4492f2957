"""Idle leases that a round may evict: which ones count, and what an eviction does to a job's entry.

Pure. An evicted job ends, or lives on without its GPU if it can park; a parked job waits for the GPU that it was on.
`scheduling` chooses the leases; `leases.eviction` holds the transactions.
"""

import time
from collections.abc import Sequence

from pgpu.errors import CapacityError, PgpuBug
from pgpu.ledger import Entry
from pgpu.model import Job, JobState, Lease
from pgpu.scheduling.preemption import EvictableLease
from pgpu.structs import replace

RECLAIM_GRACE_SECONDS = 1.5
"""Between SIGTERM and SIGKILL of an evicted job. With the agent's own work this stays below the two seconds that the
granted job waits at most."""

PATIENCE_SECONDS = 10.0
"""An evicted lease that is still held after this time counts again, and the job that was granted its memory is queued again."""

RECLAIMED = "it was idle, and its lease was taken for a job that waited"


def evictable_leases(entries: Sequence[Entry]) -> tuple[EvictableLease, ...]:
    """Return the leases that may be evicted, of all jobs that hold one."""
    # A job for which another one was suspended runs in that one's place: its lease is not evicted.
    used_by = {entry.job.suspended_by for entry in entries}
    return tuple(
        EvictableLease(entry.job.id, entry.job.request.priority, entry.job.offered_value or 0.0)
        for entry in entries
        if entry.job.is_offered
        and entry.job.state is JobState.RUNNING
        and entry.job.suspended_by is None
        and entry.stop_grace_seconds is None
        and entry.job.id not in used_by
    )


def counts_in_round(job: Job, now_seconds: float) -> bool:
    """Whether the lease of a job counts as taken in a round: False while the job is parked or being evicted."""
    return job.parked_at_seconds is None and not _is_leaving(job, now_seconds)


def _is_leaving(job: Job, now_seconds: float) -> bool:
    """Whether a job was evicted within `PATIENCE_SECONDS`: others are granted its memory and wait for its end."""
    # abs: wall time may be set back.
    return job.reclaimed_at_seconds is not None and abs(now_seconds - job.reclaimed_at_seconds) < PATIENCE_SECONDS


def mark_evicted(entry: Entry, now_seconds: float) -> Entry:
    """Return a job with its lease evicted: it ends, or parks."""
    job = replace(entry.job, reclaimed_at_seconds=now_seconds)
    return replace(entry, job=job, stop_grace_seconds=None if job.can_park else RECLAIM_GRACE_SECONDS)


def mark_parked(entry: Entry, now_seconds: float) -> Entry:
    """Return a job that has left its GPU."""
    job = replace(entry.job, parked_at_seconds=now_seconds, reclaimed_at_seconds=None, offered_value=None)
    return replace(entry, job=job)


def regrant(entry: Entry, lease: Lease) -> Entry:
    """Return a parked job that was granted its GPU again; its slice is larger if it was parked since it could not grow."""
    if entry.job.lease is None:
        raise PgpuBug(f"job {entry.job.id} is parked and has no lease")
    slices = tuple(
        replace(part, memory_bytes=max(part.memory_bytes, granted.memory_bytes))
        for part, granted in zip(entry.job.lease.slices, lease.slices, strict=True)
    )
    lease = replace(entry.job.lease, slices=slices, granted_at_seconds=lease.granted_at_seconds)
    return replace(entry, job=replace(entry.job, lease=lease, parked_at_seconds=None, wanted_at_seconds=None))


def mark_restarting(entry: Entry) -> Entry:
    """Return a parked job that ends because another GPU has room for a new one like it."""
    return replace(entry, stop_grace_seconds=RECLAIM_GRACE_SECONDS)


def awaited_departures(entries: Sequence[Entry], job: Job) -> tuple[str, ...]:
    """Return the ids of evicted jobs that still hold memory which a job may have been granted.

    Args:
        entries: Every job that holds a lease.
        job: Granted and not started.

    Raises:
        CapacityError: One of them has not left within `PATIENCE_SECONDS`.
    """
    there = [each.job for each in entries if _was_evicted_for(each.job, job)]
    late = [each.id for each in there if not _is_leaving(each, time.time())]
    if late:
        raise CapacityError(f"job {late[0]}, whose lease was taken, has not ended")
    return tuple(each.id for each in there)


def is_waited_for(job: Job, entries: Sequence[Entry]) -> bool:
    """Whether another job was granted what an evicted job holds.

    Args:
        job: Not ended.
        entries: Every job that holds a lease.
    """
    return any(_was_evicted_for(job, each.job) for each in entries if each.job.id != job.id)


def _was_evicted_for(evicted: Job, job: Job) -> bool:
    # True if the evicted job held a slice on one of the job's GPUs that counted as free when the job was granted.
    if job.lease is None or evicted.lease is None or evicted.reclaimed_at_seconds is None:
        return False
    if not 0 <= job.lease.granted_at_seconds - evicted.reclaimed_at_seconds < PATIENCE_SECONDS:
        return False
    return bool({each.gpu_uuid for each in job.lease.slices} & {each.gpu_uuid for each in evicted.lease.slices})
