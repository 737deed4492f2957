"""Idle leases of function workers, evicted for jobs that wait, and how a granted job waits until its GPU is vacated.

A lease is marked evictable while its worker is idle, reacquired before work, or parked on request. Each of these is one
transaction, so of a reacquisition and an eviction exactly one comes first. A granted job keeps its grant while suspended or
evicted jobs leave, so that no other job is granted the place, and holds no memory before it starts; if one cannot leave, the
granted job is queued again.
"""

import math
import time
from contextlib import suppress

from pgpu.engine.admission.idle_leases import awaited_departures, mark_evicted
from pgpu.engine.context import EngineContext
from pgpu.engine.leases.parking_state import Stage, load_parking
from pgpu.engine.leases.recovery import is_supervised, recover
from pgpu.errors import CapacityError, NodeError, RequestError
from pgpu.ledger import Decision, Entry
from pgpu.model import Holder, Job, JobState
from pgpu.structs import replace


def mark_evictable(context: EngineContext, job_id: str, value: float) -> Job:
    """Let a job's lease be evicted from now on, and wake the queue; see `JobService.offer`."""
    if not (math.isfinite(value) and value >= 0):
        raise RequestError(f"{value} is no value of a lease", hint="0 or more")
    with context.deciding() as decision:
        entry = decision.entry(job_id)
        if entry.job.spec.serves is None:
            raise RequestError(f"job {job_id} serves no function: only those that do offer their leases")
        _refuse_without_lease(entry)
        return _put_value(decision, entry, value)


def reacquire(context: EngineContext, job_id: str) -> Job:
    """Keep a job's lease from now on; a parked job waits for its GPU; see `JobService.claim`."""
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
    """Evict an idle job that can park; see `JobService.park`."""
    with context.deciding() as decision:
        entry = decision.entry(job_id)
        if not entry.job.can_park:
            raise RequestError(f"job {job_id} cannot be parked: only functions on one GPU, in time slices, can")
        if entry.job.is_aside:
            return entry.job
        _refuse_without_lease(entry)
        if entry.job.suspended_by is not None:
            raise CapacityError(f"job {job_id} is suspended, and leaves its GPU for another job")
        # From the commit on rounds may grant its memory; the granted job waits until this one has left.
        entry = mark_evicted(entry, time.time())
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


class PlaceRefusedError(CapacityError):
    """A job that was to make room could not, and continues."""


def occupants(context: EngineContext, job: Job) -> tuple[str, ...]:
    """Return the ids of the jobs that were suspended or evicted for this one and have not left yet.

    Args:
        context: Of the job.
        job: Granted and not started.

    Raises:
        PlaceRefusedError: One of them cannot leave.
        LedgerError: The ledger cannot be read.
    """
    with context.ledger.view() as view:
        # A job that refused to leave for this one is on its GPU.
        holding = view.holding() if job.request.preempts else view.off_their_gpus()
    try:
        stays = list(awaited_departures(holding, job))
    except CapacityError as exc:
        raise PlaceRefusedError(str(exc)) from exc
    if not all(is_supervised(entry) for entry in holding if entry.job.id in stays):
        # No other process may be left that detects the job's end.
        with suppress(NodeError):  # repeated as long as the job waits here
            recover(context)
    for entry in holding if job.request.preempts else ():
        parking = load_parking(context.places(entry.job.id).parking)
        is_for_job = parking is not None and parking.by == job.id
        if parking is not None and is_for_job and parking.stage is Stage.REFUSED:
            raise PlaceRefusedError(f"job {entry.job.id} could not make room: {parking.reason}")
        is_away = parking is not None and is_for_job and parking.stage is Stage.AWAY
        if entry.job.suspended_by == job.id and not is_away:
            stays.append(entry.job.id)
    return tuple(stays)


def give_back(context: EngineContext, job_id: str, holder: Holder | None = None) -> None:
    """Put a granted job whose command never ran back into the queue, at its old place; its supervision is about to end.

    Args:
        context: Of the job.
        job_id: Does nothing if it has another holder or is final.
        holder: A process that ended before it executed the command; None if none was started.

    Raises:
        PgpuError: The ledger cannot be written; the next attempt finds the same state.
    """
    with context.deciding() as decision:
        entry = decision.entry(job_id)
        if entry.job.state not in {JobState.STARTING, JobState.RUNNING} or entry.job.holder != holder:
            return
        decision.requeue(job_id, None, entry.wait_deadline_seconds)
        job = replace(entry.job, state=JobState.WAITING, lease=None, holder=None, started_at_seconds=None)
        decision.put(replace(entry, job=job, supervisor=None, spawned_at_seconds=None, lease_released_at_seconds=None))
