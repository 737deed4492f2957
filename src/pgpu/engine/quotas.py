"""What a user's quota says of a slice that is to grow; whether a job may start, admission asks itself."""

from pgpu.errors import CapacityError
from pgpu.ledger import Entry, View
from pgpu.units import format_memory


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
