"""Which processes a waiting or running supervisor watches, so that every death is noticed by exactly a few.

The head of the queue watches all that hold memory, since their deaths free it. Everybody watches the supervisor of the
live job before its own, the first that of the last: a ring, which costs one descriptor each and wakes nobody in vain.
"""

from collections.abc import Sequence

from pgpu.ledger import Entry
from pgpu.model import JobState, ProcessHolder


def is_head(me: Entry, entries: Sequence[Entry]) -> bool:
    """Whether no job of the same GPUs waits longer than this one."""
    waiting = [e.job.id for e in entries if e.job.state is JobState.WAITING and e.job.gpu_model == me.job.gpu_model]
    return waiting[:1] == [me.job.id]


def watched(me: Entry, entries: Sequence[Entry]) -> set[ProcessHolder]:
    """Return the processes whose end concerns the supervisor of one job.

    Args:
        me: That job.
        entries: All live jobs, oldest first.
    """
    found = {_predecessor(me, entries)}
    if is_head(me, entries):
        for entry in entries:
            if entry.is_lease_held and entry.job.gpu_model == me.job.gpu_model:
                found.update({entry.supervisor, _process(entry)})
    found.discard(None)
    return {holder for holder in found if holder is not None and holder != me.supervisor}


def _predecessor(me: Entry, entries: Sequence[Entry]) -> ProcessHolder | None:
    ring = [entry for entry in entries if entry.supervisor is not None or entry.job.id == me.job.id]
    places = [place for place, entry in enumerate(ring) if entry.job.id == me.job.id]
    return ring[places[0] - 1].supervisor if places else None


def _process(entry: Entry) -> ProcessHolder | None:
    return entry.job.holder if isinstance(entry.job.holder, ProcessHolder) else None
