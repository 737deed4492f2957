"""Idle leases of function workers: marked evictable while idle, reacquired before work, parked on request.

Each call is one transaction, so of a reacquisition and an eviction exactly one comes first.
"""

import math
import time
from dataclasses import replace

from pgpu.engine.admission.idle_leases import mark_taken
from pgpu.engine.context import EngineContext
from pgpu.errors import CapacityError, RequestError
from pgpu.ledger import Decision, Entry
from pgpu.model import Job, JobState


def mark_evictable(context: EngineContext, job_id: str, value: float) -> Job:
    """Let a job's lease be evicted from now on, and wake the queue; see `Client.offer`."""
    if not (math.isfinite(value) and value >= 0):
        raise RequestError(f"{value} is no value of a lease", hint="0 or more")
    with context.deciding() as decision:
        entry = decision.entry(job_id)
        if entry.job.spec.serves is None:
            raise RequestError(f"job {job_id} serves no function: only those that do offer their leases")
        _refuse_without_lease(entry)
        return _put_value(decision, entry, value)


def reacquire(context: EngineContext, job_id: str) -> Job:
    """Keep a job's lease from now on; a parked job waits for its GPU; see `Client.claim`."""
    with context.deciding() as decision:
        entry = decision.entry(job_id)
        if not entry.job.is_aside or entry.stop_grace_seconds is not None:
            _refuse_without_lease(entry)
            return _put_value(decision, entry, None)
        job = entry.job
        if job.wanted_at_seconds is None:  # else it waits already, and keeps its place in the queue
            job = replace(job, wanted_at_seconds=time.time())
            decision.put(replace(entry, job=job))
        return job


def park(context: EngineContext, job_id: str) -> Job:
    """Evict an idle job that can park; see `Client.park`."""
    with context.deciding() as decision:
        entry = decision.entry(job_id)
        if not entry.job.can_park:
            raise RequestError(f"job {job_id} cannot be parked: only functions on one GPU, in time slices, can")
        if entry.job.is_aside:
            return entry.job
        _refuse_without_lease(entry)
        if entry.job.suspended_by is not None:
            raise CapacityError(f"job {job_id} is suspended, and leaves its GPU for another job")
        entry = mark_taken(entry, time.time())
        decision.put(entry)
    context.wake([job_id])
    return entry.job


def _refuse_without_lease(entry: Entry) -> None:
    job = entry.job
    if job.reclaimed_at_seconds is not None or job.is_aside:
        raise CapacityError(f"the lease of job {job.id} was taken for a job that waited")
    if job.state is not JobState.RUNNING or entry.stop_grace_seconds is not None:
        state = job.state.value if entry.stop_grace_seconds is None else "ending"
        raise CapacityError(f"job {job.id} holds no lease that it could keep: it is {state}")


def _put_value(decision: Decision, entry: Entry, value: float | None) -> Job:
    job = replace(entry.job, offered_value=value)
    if job != entry.job:
        decision.put(replace(entry, job=job))
    return job
