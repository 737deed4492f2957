"""A granted job waits until the jobs that were suspended or evicted for it have left; it is queued again if one cannot leave.

It keeps its grant meanwhile, so that no other job is granted the place, and holds no memory before it starts.
"""

from contextlib import suppress
from dataclasses import replace

from pgpu.engine.admission.idle_leases import awaited_departures
from pgpu.engine.context import EngineContext
from pgpu.engine.leases.recovery import recover
from pgpu.engine.parking.parking_state import Stage, load_parking
from pgpu.errors import CapacityError, NodeError
from pgpu.host.process_identity import is_alive
from pgpu.model import Job, JobState


class PlaceRefusedError(CapacityError):
    """A job that was to make room could not, and goes on."""


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
        holding = view.holding()
    try:
        stays = list(awaited_departures(holding, job))
    except CapacityError as exc:
        raise PlaceRefusedError(str(exc)) from exc
    supervisors = [entry.supervisor for entry in holding if entry.job.id in stays]
    if any(each is None or not is_alive(each) for each in supervisors):
        # No other process may be there to notice that the job ends.
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


def give_back(context: EngineContext, job_id: str) -> None:
    """Put a granted job that was not started back into the queue, at its old place; its supervisor is about to exit.

    Raises:
        PgpuError: The ledger cannot be written; its next supervisor finds the same state.
    """
    with context.deciding() as decision:
        entry = decision.entry(job_id)
        if entry.job.state is not JobState.STARTING or entry.job.holder is not None:
            return
        decision.requeue(job_id, entry.job.created_at_seconds, entry.wait_deadline_seconds)
        job = replace(entry.job, state=JobState.WAITING, lease=None, started_at_seconds=None)
        decision.put(replace(entry, job=job, supervisor=None, spawned_at_seconds=None, lease_released_at_seconds=None))
