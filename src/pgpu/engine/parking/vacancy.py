"""The other side: a job for which others are suspended, or whose leases were taken, starts once they have left.

It goes back to the queue where one cannot. It is granted by then, so that nobody else is; it holds no memory before it starts.
"""

from contextlib import suppress
from dataclasses import replace

from pgpu.engine.admission.idle_leases import awaited_departures
from pgpu.engine.engine import Engine
from pgpu.engine.leases.recovery import recover
from pgpu.engine.parking.parking_state import Parking, Stage, load_parking
from pgpu.errors import CapacityError, NodeError
from pgpu.host.process_identity import is_alive
from pgpu.ledger import Entry
from pgpu.model import Job, JobState


class PlaceRefusedError(CapacityError):
    """A job that was to make room could not, and goes on."""


def occupants(engine: Engine, job: Job) -> tuple[str, ...]:
    """Return the ids of those who have not left yet and are suspended for this one, or end since their leases were taken.

    Args:
        engine: Of the job.
        job: Granted and not started.

    Raises:
        PlaceRefusedError: One of them cannot leave.
        LedgerError: The ledger cannot be read.
    """
    with engine.ledger.view() as view:
        holding = view.holding()
    try:
        stays = list(awaited_departures(holding, job))
    except CapacityError as exc:
        raise PlaceRefusedError(str(exc)) from exc
    if any(entry.job.id in stays and not _is_supervised(entry) for entry in holding):
        with suppress(NodeError):  # tried again as long as the job waits here
            recover(engine)  # Nobody else may be there to see that it ends.
    for entry in holding if job.request.preempts else ():
        parking = load_parking(engine.places(entry.job.id).parking)
        if parking is not None and parking.by == job.id and parking.stage is Stage.REFUSED:
            raise PlaceRefusedError(f"job {entry.job.id} could not make room: {parking.reason}")
        if entry.job.suspended_by == job.id and not _is_away(parking, job.id):
            stays.append(entry.job.id)
    return tuple(stays)


def _is_supervised(entry: Entry) -> bool:
    return entry.supervisor is not None and is_alive(entry.supervisor)


def _is_away(parking: Parking | None, by: str) -> bool:
    return parking is not None and parking.by == by and parking.stage is Stage.AWAY


def give_back(engine: Engine, job_id: str) -> None:
    """Put a granted job that nobody started back into the queue, where it was; its supervisor must be at its end.

    Raises:
        PgpuError: The ledger cannot be written; its next supervisor finds the same.
    """
    with engine.deciding() as decision:
        entry = decision.entry(job_id)
        if entry.job.state is not JobState.STARTING or entry.job.holder is not None:
            return
        decision.begin_again(job_id, entry.job.created_at_seconds, entry.wait_deadline_seconds)
        decision.put(_waiting(entry))


def _waiting(entry: Entry) -> Entry:
    job = replace(entry.job, state=JobState.WAITING, lease=None, started_at_seconds=None)
    return replace(entry, job=job, supervisor=None, spawned_at_seconds=None, lease_released_at_seconds=None)
