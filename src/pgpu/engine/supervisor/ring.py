"""Which processes the supervisor of a running job watches, so that every death is noticed by somebody, and by few.

Everybody watches the supervisor of the granted job before its own, the first that of the last: a ring, which costs one
descriptor each and wakes nobody in vain. While jobs wait, all of them watch the keeper, too.
"""

from collections.abc import Sequence

from pgpu.ledger import Entry
from pgpu.model import ProcessHolder


def watched(me: Entry, granted: Sequence[Entry], keeper: ProcessHolder | None = None) -> set[ProcessHolder]:
    """Return the processes whose end concerns the supervisor of one job.

    Args:
        me: That job.
        granted: All jobs that hold memory, oldest first.
        keeper: Of the queue for the same GPUs, if anybody waits in it.
    """
    ring = [entry for entry in granted if entry.supervisor is not None or entry.job.id == me.job.id]
    places = [place for place, entry in enumerate(ring) if entry.job.id == me.job.id]
    before = ring[places[0] - 1].supervisor if places else None
    return {holder for holder in (before, keeper) if holder is not None and holder != me.supervisor}
