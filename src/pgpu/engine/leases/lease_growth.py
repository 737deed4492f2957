"""Growth of a running job's slices on its own wish; `scheduling.slice_growth` has the rules, and the ledger decides in one transaction.

The shim writes a wish and waits for the answer (`enforcement.growth_channel`). The ledger is written before a larger limit is bound, so
that nothing is granted twice. While a job waits it has a `GrowthWait` in the ledger: rounds of any process hold back starts for it.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from pgpu.enforcement.growth_channel import GrowthChannel, Wish
from pgpu.engine.admission.snapshot import Snapshot
from pgpu.engine.context import EngineContext
from pgpu.engine.leases.lease_resize import LimitChange, give_or_undo
from pgpu.errors import EnforcementError
from pgpu.ledger import Entry, GrowthWait, LedgerView
from pgpu.model import Job, Lease
from pgpu.scheduling import GpuRoom
from pgpu.scheduling.slice_growth import Grower, Neighbour, Verdict, answer_growth, grows
from pgpu.structs import replace
from pgpu.units import format_memory


class Growth:
    """The wishes of one running job."""

    def __init__(self, context: EngineContext, job: Job) -> None:
        self._context = context
        self._job_id = job.id
        self.channel: GrowthChannel | None = None
        """None if its slices do not grow."""

        # Also of a size that a user has changed since: its wishes are refused, and not left without an answer.
        if job.lease is not None and job.request.is_estimated:
            with suppress(EnforcementError):  # such files limit nothing that could be made larger
                self.channel = context.enforcer.growth(job.lease)

    def is_wished(self) -> bool:
        """Whether a wish is open.

        Raises:
            EnforcementError: The files of the slice cannot be read.
        """
        return self.channel is not None and bool(self.channel.wishes())

    def look(self, entry: Entry, *, is_stopping: bool) -> None:
        """Answer the wishes that are open.

        Args:
            entry: Of the job.
            is_stopping: Whether the job is to end: a process that waits for memory could not react.

        Raises:
            PgpuError: A file or the ledger cannot be used; the wishes stay open.
        """
        if self.channel is None:
            return
        wishes = self.channel.wishes()
        if wishes:
            verdict = answer_wishes(self._context, self._job_id, wishes, is_stopping=is_stopping)
            self.channel.answer(wishes, verdict)
        elif entry.waits_to_grow:
            # The process that waited has ended, or has got its memory from another one of the job.
            with self._context.ledger.decision() as decision:
                decision.put(_without_wait(decision.entry(self._job_id)))


def answer_wishes(context: EngineContext, job_id: str, wishes: Sequence[Wish], *, is_stopping: bool) -> Verdict:
    """Grow a job's slices if there is room; otherwise have it wait, or refuse.

    Raises:
        PgpuError: The ledger or a limit cannot be written; nothing was changed.
    """
    # Older than the transaction, so memory that was freed in between counts as taken.
    snapshot = context.snapshot()
    with context.ledger.view() as view:
        before, after, verdict = _decide(context, view, snapshot, job_id, wishes, is_stopping=is_stopping)
    if after == before and verdict is not Verdict.GRANT:
        return verdict  # a wait that goes on is written once
    with context.ledger.decision() as decision:
        before, after, verdict = _decide(context, decision, snapshot, job_id, wishes, is_stopping=is_stopping)
        decision.put(after)
        holding = decision.holding()
        if verdict is Verdict.GRANT and before.job.lease is not None and after.job.lease == before.job.lease:
            # An agent was killed between its transaction and the limit.
            context.enforcer.resize(before.job.lease, before.job.request.memory_bytes)
    if verdict is Verdict.GRANT and after.job.lease != before.job.lease:
        give_or_undo(context, LimitChange(context.enforcer, before, after, holding, context.settings.divides_users))
    return verdict


def _decide(
    context: EngineContext,
    view: LedgerView,
    snapshot: Snapshot,
    job_id: str,
    wishes: Sequence[Wish],
    *,
    is_stopping: bool,
) -> tuple[Entry, Entry, Verdict]:
    """Return the job's entry before and after, and the answer."""
    entry = view.entry(job_id)
    job, lease, now_seconds = entry.job, entry.job.lease, time.time()
    if is_stopping or lease is None or not grows(job.request, lease.sharing) or job.is_aside:
        return entry, _without_wait(entry), Verdict.REFUSE
    holding = context.queue_of(view.holding())
    rooms = {room.gpu.uuid: room for room in snapshot.rooms(holding, context.headroom)}
    free_bytes = min(_free_bytes(rooms.get(part.gpu_uuid), part.memory_bytes) for part in lease.slices)
    slice_bytes = lease.slices[0].memory_bytes
    most_bytes = min(_most_bytes(rooms.get(part.gpu_uuid)) for part in lease.slices)
    if (within_quota := _within_quota(view, job, lease)) is not None:
        free_bytes, most_bytes = min(free_bytes, within_quota), min(most_bytes, slice_bytes + within_quota)
    grower = Grower(
        job_id,
        _began_seconds(job, lease),
        slice_bytes,
        max(wish.need_bytes for wish in wishes),
        entry.growth.since_seconds if entry.growth is not None and entry.waits_to_grow else now_seconds,
        len(lease.slices),
    )
    answer = answer_growth(grower, free_bytes, _neighbours(job, lease, holding), now_seconds, most_bytes)
    if answer.verdict is Verdict.WAIT:
        return entry, _with_wait(entry, grower, now_seconds), Verdict.WAIT
    if answer.slice_bytes > slice_bytes:
        slices = tuple(replace(part, memory_bytes=answer.slice_bytes) for part in lease.slices)
        request = replace(job.request, memory_bytes=answer.slice_bytes)
        entry_after = replace(entry, job=replace(job, request=request, lease=replace(lease, slices=slices)))
        return entry, _without_wait(entry_after), answer.verdict
    return entry, _without_wait(entry), answer.verdict


def _free_bytes(room: GpuRoom | None, slice_bytes: int) -> int:
    # A GPU that cannot be read has no room.
    return 0 if room is None else max(0, room.most_bytes(slice_bytes) - slice_bytes)


def _most_bytes(room: GpuRoom | None) -> int:
    return sys.maxsize if room is None else room.capacity_bytes


def _within_quota(view: LedgerView, job: Job, lease: Lease) -> int | None:
    """Return by how much each slice of a job may grow within its user's quota; None without a quota."""
    quota = view.quotas().get(job.owner_uid)
    if quota is None or quota.memory_bytes is None:
        return None
    own = [entry.job.lease for entry in view.holding() if entry.is_counted and entry.job.owner_uid == job.owner_uid]
    held_bytes = sum(part.memory_bytes for each in own if each is not None for part in each.slices)
    return max(0, quota.memory_bytes - held_bytes) // len(lease.slices)


def _neighbours(job: Job, lease: Lease, holding: Sequence[Entry]) -> list[Neighbour]:
    uuids = {part.gpu_uuid for part in lease.slices}
    found = []
    for entry in holding:
        other = entry.job.lease
        is_there = other is not None and entry.is_counted and any(part.gpu_uuid in uuids for part in other.slices)
        if other is not None and is_there and entry.job.id != job.id:
            waits = entry.waits_to_grow and entry.job.owner_uid == job.owner_uid
            found.append(Neighbour(entry.job.id, _began_seconds(entry.job, other), waits))
    return found


def _began_seconds(job: Job, lease: Lease) -> float:
    return lease.granted_at_seconds if job.started_at_seconds is None else job.started_at_seconds


def _with_wait(entry: Entry, grower: Grower, now_seconds: float) -> Entry:
    first_seconds = now_seconds if entry.growth is None else entry.growth.first_seconds
    growth = GrowthWait(first_seconds, grower.waits_since_seconds, grower.need_bytes)
    missing = format_memory(grower.need_bytes - grower.slice_bytes)
    return replace(entry, growth=growth, job=replace(entry.job, reason=f"waits for {missing} more of its GPU"))


def _without_wait(entry: Entry) -> Entry:
    if entry.growth is None or entry.growth.need_bytes is None:
        return entry
    return replace(entry, growth=replace(entry.growth, need_bytes=None), job=replace(entry.job, reason=None))
