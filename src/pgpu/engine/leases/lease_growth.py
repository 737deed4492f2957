"""Growth of a running job's slices on its own wish; `scheduling.slice_growth` has the rules, and the ledger decides in one transaction.

The shim writes a wish and waits for the answer (`enforcement.growth_channel`). The ledger is written before a larger limit is bound, so
that nothing is granted twice. While a job waits it has a `GrowthWait` in the ledger: rounds of any process hold back starts for it.

Growth leaves to the queue what a round now would grant or reserve. A job that would be refused is parked instead where its driver can
move it: its thread does (`supervisor.suspension`), the round grants it a slice of the size that it needs, and its wish is granted once
it is back.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from pgpu.enforcement.growth_channel import GrowthChannel, Wish
from pgpu.engine.admission.idle_leases import mark_parked
from pgpu.engine.admission.rounds import Admissions
from pgpu.engine.admission.snapshot import Snapshot, available_bytes
from pgpu.engine.context import EngineContext
from pgpu.engine.history.run_history import RunHistory
from pgpu.engine.leases.lease_resize import LimitChange, give_or_undo
from pgpu.errors import EnforcementError
from pgpu.ledger import Entry, GrowthWait, LedgerView
from pgpu.model import Job, Lease
from pgpu.scheduling import GpuRoom
from pgpu.scheduling.slice_growth import Grower, Neighbour, Verdict, answer_growth, grows
from pgpu.structs import Struct, replace
from pgpu.units import format_memory

MOST_LOOKS = 60
"""Decisions that the writes of one job cause at once, and one a second on average: a job that grows from 2 to 80 GiB takes 51."""


class Growth:
    """The wishes of one running job."""

    def __init__(self, context: EngineContext, job: Job, clock: Callable[[], float] = time.monotonic) -> None:
        """Read nothing yet.

        Args:
            context: Of the job.
            job: It.
            clock: Monotonic, in seconds.
        """
        self._context = context
        self._job_id = job.id
        self._clock = clock
        self._looks, self._looked_at_seconds = float(MOST_LOOKS), clock()
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

    def may_look(self) -> bool:
        """Whether wishes may be answered before the next tick; False where there are none, or too many.

        Raises:
            EnforcementError: The files of the slice cannot be read.
        """
        if not self.is_wished():
            return False
        now_seconds = self._clock()
        self._looks = min(MOST_LOOKS, self._looks + now_seconds - self._looked_at_seconds)
        self._looked_at_seconds = now_seconds
        if self._looks < 1:
            return False
        self._looks -= 1
        return True

    def look(self, entry: Entry, *, is_away: bool, is_stopping: bool) -> None:
        """Answer the wishes that are open.

        Args:
            entry: Of the job.
            is_away: Whether processes of it may be off their GPU.
            is_stopping: Whether the job is to end: a process that waits for memory could not react.

        Raises:
            PgpuError: A file or the ledger cannot be used; the wishes stay open.
        """
        if self.channel is None:
            return
        wishes = self.channel.wishes()
        if wishes and is_away:
            self.channel.answer(wishes, Verdict.REFUSE if is_stopping else Verdict.WAIT)
        elif wishes:
            verdict = answer_wishes(self._context, self._job_id, wishes, is_stopping=is_stopping)
            self.channel.answer(wishes, verdict)
        elif entry.waits_to_grow and not is_away:
            # The process that waited has ended, or has got its memory from another one of the job.
            with self._context.ledger.decision() as decision:
                decision.put(_without_wait(decision.entry(self._job_id)))


def answer_wishes(context: EngineContext, job_id: str, wishes: Sequence[Wish], *, is_stopping: bool) -> Verdict:
    """Grow a job's slices if there is room; otherwise have it wait, park it, or refuse.

    Raises:
        PgpuError: The ledger or a limit cannot be written; nothing was changed.
    """
    # Older than the transaction, so memory that was freed in between counts as taken.
    snapshot = context.snapshot()
    need_bytes = max(wish.need_bytes for wish in wishes)
    deciding = _Deciding(context, snapshot, job_id, need_bytes, is_stopping)
    with context.ledger.view() as view:
        before, after, verdict = deciding.decide(view)
        if verdict is Verdict.GRANT and after.job.lease != before.job.lease:
            # Not in the transaction: a long queue takes a tenth of a second to order.
            deciding = replace(deciding, left_bytes=_left_by_queue(context, view, snapshot, before))
            before, after, verdict = deciding.decide(view)
        if verdict is Verdict.REFUSE and _may_park(context, before.job):
            deciding = replace(deciding, may_park=True)
            before, after, verdict = deciding.decide(view)
    if after == before and verdict is not Verdict.GRANT:
        return verdict  # a wait that goes on is written once
    with context.ledger.decision() as decision:
        expected, (before, after, verdict) = verdict, deciding.decide(decision)
        if verdict is Verdict.REFUSE and expected is not verdict:
            return Verdict.WAIT  # another process has taken the memory since: the next look parks the job if it can
        decision.put(after)
        holding = decision.holding()
        if verdict is Verdict.GRANT and before.job.lease is not None and after.job.lease == before.job.lease:
            # It was parked, or an agent was killed between its transaction and the limit.
            context.enforcer.resize(before.job.lease, before.job.request.memory_bytes)
    if verdict is Verdict.GRANT and after.job.lease != before.job.lease:
        give_or_undo(context, LimitChange(context.enforcer, before, after, holding, context.settings.divides_users))
    if after.job.is_aside:
        context.wake([job_id])  # its thread moves it
    return verdict


def _left_by_queue(context: EngineContext, view: LedgerView, snapshot: Snapshot, entry: Entry) -> int | None:
    """Return by how much each slice may grow without delay for a waiting job; None for no limit."""
    model = context.settings.gpu_model
    if view.first_waiting(model) is None:
        return None
    reader = Admissions(context, RunHistory(model, context.headroom)).reader
    return reader.situation(view, snapshot).left_for_growth(entry, time.time())


def _may_park(context: EngineContext, job: Job) -> bool:
    """Whether a job that cannot grow may leave its GPU until it can.

    Not a job that others made room for, since they wait for its end; nor one that parks on request, or whose host memory is limited.
    """
    is_bound = job.spec.parks or job.spec.is_sealed or job.request.preempts or job.suspended_by is not None
    if job.lease is None or is_bound or not context.can_leave(job):
        return False
    uses = context.enforcer.use(job.lease)
    return not any(use.stays for use in uses) and sum(use.used_bytes for use in uses) <= available_bytes()


class _Deciding(Struct, frozen=True):
    """What one decision on a job that wishes for memory rests on, besides the ledger."""

    context: EngineContext
    snapshot: Snapshot
    job_id: str
    need_bytes: int
    is_stopping: bool
    left_bytes: int | None = None
    """By how much the queue lets each slice grow; None for no limit."""

    may_park: bool = False

    def decide(self, view: LedgerView) -> tuple[Entry, Entry, Verdict]:
        """Return the job's entry before and after, and the answer."""
        entry = view.entry(self.job_id)
        job, lease, now_seconds = entry.job, entry.job.lease, time.time()
        if self.is_stopping or lease is None or not grows(job.request, lease.sharing):
            return entry, _without_wait(entry), Verdict.REFUSE
        if job.is_aside or job.suspended_by is not None:
            return entry, entry, Verdict.WAIT  # until it is back
        holding = self.context.queue_of(view.holding())
        rooms = {room.gpu.uuid: room for room in self.snapshot.rooms(holding, self.context.headroom)}
        free_bytes = min(_free_bytes(rooms.get(part.gpu_uuid), part.memory_bytes) for part in lease.slices)
        slice_bytes = lease.slices[0].memory_bytes
        most_bytes = min(_most_bytes(rooms.get(part.gpu_uuid)) for part in lease.slices)
        if (within_quota := _within_quota(view, job, lease)) is not None:
            free_bytes, most_bytes = min(free_bytes, within_quota), min(most_bytes, slice_bytes + within_quota)
        grower = Grower(
            self.job_id,
            _began_seconds(job, lease),
            slice_bytes,
            self.need_bytes,
            entry.growth.since_seconds if entry.growth is not None and entry.waits_to_grow else now_seconds,
            len(lease.slices),
        )
        kept_bytes = 0 if self.left_bytes is None else max(0, free_bytes - self.left_bytes)
        beside = _neighbours(job, lease, holding)
        answer = answer_growth(grower, free_bytes, beside, now_seconds, most_bytes, kept_bytes=kept_bytes)
        if answer.verdict is Verdict.WAIT:
            return entry, _with_wait(entry, grower, now_seconds), Verdict.WAIT
        if answer.verdict is Verdict.REFUSE and self.may_park and self.need_bytes <= most_bytes:
            # Its thread moves it to the host; the slice counts until then.
            leaving = _with_wait(
                replace(entry, job=replace(job, wanted_at_seconds=lease.granted_at_seconds)), grower, now_seconds
            )
            return entry, leaving, Verdict.WAIT
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
            # One that is about to leave is awaited as one that runs.
            waits = entry.waits_to_grow and not entry.job.is_aside and entry.job.owner_uid == job.owner_uid
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
    job = replace(entry.job, reason=None, wanted_at_seconds=None)
    return replace(entry, growth=replace(entry.growth, need_bytes=None), job=job)


def mark_left(entry: Entry, now_seconds: float) -> Entry:
    """Return a job that has left its GPU and waits in the queue, at its old place, for what it needs."""
    need_bytes = 0 if entry.growth is None else entry.growth.need_bytes or 0
    request = replace(entry.job.request, memory_bytes=max(entry.job.request.memory_bytes, need_bytes))
    return mark_parked(replace(entry, job=replace(entry.job, request=request)), now_seconds)
