"""What a request may not ask for: more than its user's quota, or an option that this installation lacks.

Whether a job may start now is decided in a round; these checks refuse what no round could ever grant.
"""

from pgpu.engine.settings import EngineSettings
from pgpu.errors import CapacityError, RequestError
from pgpu.ledger import Entry, LedgerView
from pgpu.model import Request, SharingWish
from pgpu.scheduling.capacity import format_down
from pgpu.units import format_memory


def refuse_unsupported(request: Request, settings: EngineSettings) -> None:
    """Raise RequestError where a request needs what these GPUs, or this machine, do not have."""
    if request.sharing is SharingWish.MPS and not settings.has_mps:
        raise RequestError("--sharing mps is not available on these GPUs", hint="leave --sharing mps out")


def refuse_more_than_quota(view: LedgerView, owner_uid: int, request: Request) -> None:
    """Raise RequestError where a quota could never grant a request, even if its user held nothing else.

    Args:
        view: Of the ledger.
        owner_uid: User of the request.
        request: With its memory already chosen.
    """
    quota = view.quotas().get(owner_uid)
    if quota is None or quota.memory_bytes is None or request.is_without_gpu:
        return
    nearest_bytes = quota.memory_bytes // request.gpu_count
    if request.memory_bytes > nearest_bytes:
        where = "" if request.gpu_count == 1 else f" on each of {request.gpu_count} GPUs"
        raise RequestError(
            f"{format_memory(request.memory_bytes)}{where} can never be granted: "
            f"the quota of user {owner_uid} is {format_memory(quota.memory_bytes)}",
            hint=f"ask for at most {format_down(nearest_bytes)}, or ask the administrator",
            nearest_bytes=nearest_bytes,
        )


def refuse_more_waiting(view: LedgerView, owner_uid: int, count: int, most: int) -> None:
    """Raise CapacityError where a user would have more waiting jobs than allowed; root has no limit.

    Args:
        view: Of the ledger.
        owner_uid: User of the jobs.
        count: How many would be added.
        most: How many of a user may wait.
    """
    if owner_uid == 0 or view.count_waiting() + count <= most:
        return
    waiting = view.count_waiting(owner_uid)
    if waiting + count > most:
        raise CapacityError(
            f"{waiting} jobs of user {owner_uid} wait, and {count} more would pass {most}; nothing was submitted",
            hint="submit more once some have started, cancel some, or ask the administrator (setting waiting_jobs)",
        )


def refuse_growth_past_quota(view: LedgerView, entry: Entry, memory_bytes: int) -> None:
    """Raise CapacityError where a resize would take a job's user past their quota.

    Args:
        view: Of the ledger.
        entry: A job with a lease.
        memory_bytes: New size of each of its slices.
    """
    quota = view.quotas().get(entry.job.owner_uid)
    if quota is None or quota.memory_bytes is None or entry.job.lease is None:
        return
    more_bytes = sum(max(0, memory_bytes - part.memory_bytes) for part in entry.job.lease.slices)
    counted = [other.job for other in view.holding() if other.is_counted]
    own = [job.lease for job in counted if job.owner_uid == entry.job.owner_uid]
    held_bytes = sum(part.memory_bytes for lease in own if lease is not None for part in lease.slices)
    if more_bytes and held_bytes + more_bytes > quota.memory_bytes:
        raise CapacityError(
            f"{format_memory(more_bytes)} more would pass the quota of user {entry.job.owner_uid}, "
            f"{format_memory(quota.memory_bytes)}; nothing was changed",
            hint="stop another job of that user, or ask the administrator",
        )
