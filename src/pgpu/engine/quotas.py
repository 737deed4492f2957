"""What a user's quota refuses at once; whether a job may start now, admission asks itself."""

from pgpu.errors import CapacityError, RequestError
from pgpu.ledger import Entry, View
from pgpu.model import Request
from pgpu.scheduling.capacity import format_down
from pgpu.units import format_memory


def refuse_more_than_quota(view: View, owner_uid: int, request: Request) -> None:
    """Raise RequestError where a quota could never grant a request, even if its owner held nothing else.

    Args:
        view: Of the ledger.
        owner_uid: Whose request it is.
        request: With the amount that is asked for.
    """
    quota = view.quotas().get(owner_uid)
    if quota is None or quota.memory_bytes is None:
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


def refuse_growth_past_quota(view: View, entry: Entry, memory_bytes: int) -> None:
    """Raise CapacityError where a job's owner would hold more than they may.

    Args:
        view: Of the ledger.
        entry: A job with a lease.
        memory_bytes: What each of its slices is to have.
    """
    quota = view.quotas().get(entry.job.owner_uid)
    if quota is None or quota.memory_bytes is None or entry.job.lease is None:
        return
    more_bytes = sum(max(0, memory_bytes - part.memory_bytes) for part in entry.job.lease.slices)
    own = [other.job.lease for other in view.holding() if other.job.owner_uid == entry.job.owner_uid]
    held_bytes = sum(part.memory_bytes for lease in own if lease is not None for part in lease.slices)
    if more_bytes and held_bytes + more_bytes > quota.memory_bytes:
        raise CapacityError(
            f"{format_memory(more_bytes)} more would pass the quota of user {entry.job.owner_uid}, "
            f"{format_memory(quota.memory_bytes)}; nothing was changed",
            hint="stop another job of that user, or ask the administrator",
        )
