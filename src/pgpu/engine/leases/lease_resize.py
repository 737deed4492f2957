"""Limits of a running job's slices, and their resize: on request or, for a size that pgpu chose, once its peak is stable.

A resize by hand never grows into memory or compute that a waiting job could use (decision 0010); a job's own growth is in `lease_growth`.

The ledger must never hold less than a job has, or others would be granted the difference. So a limit that becomes smaller is
bound before the ledger is written, and one that becomes larger after it, memory and compute separately. A crash at any moment
leaves the job too little, never too much.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from pgpu.advising.memory_demand import Basis, shrunk_bytes
from pgpu.enforcement import Enforcer
from pgpu.enforcement.compute_word import ComputeWord, weight_of
from pgpu.engine.admission.dependencies import judge
from pgpu.engine.admission.snapshot import Snapshot
from pgpu.engine.context import EngineContext
from pgpu.engine.history.run_history import MemoryObservation, history_name
from pgpu.engine.job_submission import refuse_more_than_quota
from pgpu.errors import CapacityError, NodeError, PgpuError, RequestError
from pgpu.ledger import Decision, Entry, LedgerView
from pgpu.model import Job, JobState, Lease, Request, Resize, SharingMode
from pgpu.model.validation import check_request
from pgpu.scheduling import GpuRoom, Headroom, has_compute, slice_growth, usable
from pgpu.scheduling.slice_growth import QUIET_SECONDS
from pgpu.structs import Struct, replace
from pgpu.units import format_memory, format_share

LEAST_USER_SHARE = 0.001
"""Of a GPU's time, for a user beside others."""

GROWN = 1.01
"""A peak that grew by a smaller factor is stable."""


def compute_words(job: Job, paced: Sequence[Entry], *, by_user: bool) -> tuple[ComputeWord, ...]:
    """Return the compute word of each of a job's GPUs in the order of its lease; empty without a lease.

    Launches are paced only in time slices, and only where this job or one beside it has a share or a priority, or while jobs of
    several users have work: other jobs get what the hardware's own time slices give. Under MPS and alone on a GPU the hardware
    does it.

    Args:
        job: Any.
        paced: The jobs of `LedgerView.paced`; others change nothing. The words must be written again whenever this changes.
        by_user: Whether time that no share guarantees is divided between users first; see decision 0085.
    """
    if job.lease is None:
        return ()
    others = [entry.job for entry in paced if entry.job.id != job.id]
    return tuple(
        _compute_word(job, [job, *(other for other in others if _is_on(other, part.gpu_uuid))], by_user=by_user)
        for part in job.lease.slices
    )


def _compute_word(job: Job, on_gpu: Sequence[Job], *, by_user: bool) -> ComputeWord:
    request = job.request
    is_sliced = job.lease is not None and job.lease.sharing is SharingMode.TIME_SLICE
    users = {each.owner_uid for each in on_gpu} if is_sliced and by_user else set()
    guaranteed = min(1.0, sum(each.request.compute_share or 0.0 for each in on_gpu))
    return ComputeWord(
        share=request.compute_share or 0.0,
        weight=weight_of(request.priority),
        is_measured=True,
        is_shared=is_sliced and any(map(_is_paced, on_gpu)),
        is_strict=is_sliced and request.is_strict,
        # Not 0 if shares guarantee all of the time: what they leave idle is divided between users, too.
        user_share=max(LEAST_USER_SHARE, (1 - guaranteed) / len(users)) if len(users) > 1 else 0.0,
    )


def follow_compute(enforcer: Enforcer, job: Job, paced: Sequence[Entry], *, by_user: bool) -> None:
    """Write a job's compute words again if they differ; read each time, since other processes write them as well.

    Raises:
        PgpuError: The limit cannot be written.
    """
    words = compute_words(job, paced, by_user=by_user)
    if job.lease is not None and _without_holds(words) != _without_holds(enforcer.words(job.lease)):
        enforcer.set_compute(job.lease, words)


def _without_holds(words: Sequence[ComputeWord]) -> list[int]:
    return [word.without_holds.packed for word in words]


def neighbours(job: Job, holding: Sequence[Entry]) -> list[str]:
    """Return the ids of the other jobs that hold a slice on one of a job's GPUs."""
    uuids = [] if job.lease is None else [part.gpu_uuid for part in job.lease.slices]
    return [each.job.id for each in holding if each.job.id != job.id and any(_is_on(each.job, uuid) for uuid in uuids)]


def concerned(job: Job, view: LedgerView) -> list[str]:
    """Return the ids of those neighbours of a job that act when it comes or goes.

    All of them may be paced otherwise if it has a share or a priority, or is the only one of its user on the GPU. If not, it
    concerns those that are off the GPU alone.
    """
    if _is_paced(job):
        return neighbours(job, view.holding())
    uuids = [] if job.lease is None else [part.gpu_uuid for part in job.lease.slices]
    beside = view.beside_other_users(job.id, job.owner_uid, uuids)
    return list(dict.fromkeys([*beside, *neighbours(job, view.off_their_gpus())]))


def _is_paced(job: Job) -> bool:
    return job.request.compute_share is not None or job.request.priority != 0


def _is_on(job: Job, gpu_uuid: str) -> bool:
    if job.lease is None or job.parked_at_seconds is not None:
        return False
    return any(part.gpu_uuid == gpu_uuid for part in job.lease.slices)


class LimitChange(Struct, frozen=True):
    """One resize of one job. Does nothing unless the job runs: a starting one binds its limits itself."""

    enforcer: Enforcer
    before: Entry
    after: Entry
    holding: Sequence[Entry]
    """Every job that holds a lease, this one as it is to be."""

    by_user: bool
    """See `compute_words`."""

    def take(self) -> None:
        """Bind the limits that become smaller, before the ledger is written.

        Raises:
            PgpuError: Not all of them bind; some may.
        """
        self._bind(self.after.job, self._limits(is_larger=False))

    def give(self) -> None:
        """Bind the limits that become larger, after the ledger was written.

        Raises:
            PgpuError: Not all of them bind; some may.
        """
        self._bind(self.after.job, self._limits(is_larger=True))

    def give_back(self) -> None:
        """Undo `take` as far as possible."""
        self._restore(self.before.job, is_larger=False)

    def revert(self, entry: Entry) -> None:
        """Undo `give` as far as possible, before the ledger is written: to the old limits, or to those of a later resize."""
        self._restore(self.before.job if self.is_unchanged(entry) else entry.job, is_larger=True)

    def is_unchanged(self, entry: Entry) -> bool:
        """Whether no other resize has changed the job's slices since."""
        return (entry.job.request, entry.job.lease) == (self.after.job.request, self.after.job.lease)

    def _limits(self, *, is_larger: bool) -> list["_Dimension"]:
        requests = self.before.job.request, self.after.job.request
        return [each for each in _DIMENSIONS if each.is_larger(*requests) is is_larger]

    def _bind(self, job: Job, dimensions: Sequence["_Dimension"]) -> None:
        if job.lease is None or self.after.job.lease is None or self.after.job.state is not JobState.RUNNING:
            return
        for each in dimensions:
            each.bind(self, job, job.lease)

    def _restore(self, job: Job, *, is_larger: bool) -> None:
        for each in self._limits(is_larger=is_larger):
            # Of several GPUs the enforcer binds in the lease's order, so it restores those first that took the change.
            with suppress(PgpuError):
                self._bind(job, [each])


class _Dimension(Struct, frozen=True):
    """A limit that can change without the other: memory, or compute."""

    amount: Callable[[Request], tuple[float, bool]]
    """The amount, and whether a strict limit makes it less."""

    bind: Callable[[LimitChange, Job, Lease], None]

    def is_larger(self, before: Request, after: Request) -> bool | None:
        """Whether the limit becomes larger; None if it does not change."""
        (old, was_less), (new, is_less) = self.amount(before), self.amount(after)
        return None if (old, was_less) == (new, is_less) else (new, not is_less) > (old, not was_less)


# Bound one by one: of one change memory may become larger and compute smaller, each on its side of the transaction.
_DIMENSIONS = (
    _Dimension(
        lambda request: (request.memory_bytes, False),
        lambda change, job, lease: change.enforcer.resize(lease, job.request.memory_bytes),
    ),
    _Dimension(
        lambda request: (request.compute_share or 0.0, request.is_strict),
        lambda change, job, lease: change.enforcer.set_compute(
            lease, compute_words(job, change.holding, by_user=change.by_user)
        ),
    ),
)


def resize(context: EngineContext, job_id: str, change: Resize, basis: str | None = None) -> Job:
    """Change a job's slices and its share of compute; see `JobService.resize`.

    Args:
        context: Of the job.
        job_id: The job.
        change: Its new amounts.
        basis: What the new size is based on, if pgpu chose it.
    """
    request = context.ledger.job(job_id).request
    if request.is_without_gpu:
        raise RequestError(f"job {job_id} has no GPU: there is nothing to resize")
    context.check_amount(context.gpus.gpus(), change.of(request))
    # Older than the transaction, so memory that was freed in between counts as taken.
    snapshot = context.snapshot()
    limits: LimitChange | None = None
    try:
        with context.ledger.decision() as decision:
            before = decision.entry(job_id)
            after = _resize_entry(before, change, snapshot, decision, context.headroom)
            if basis is not None:
                after = replace(after, job=replace(after.job, request=replace(after.job.request, basis=basis)))
            decision.put(after)
            holding, queues = decision.holding(), decision.queues()
            limits = LimitChange(context.enforcer, before, after, holding, context.settings.divides_users)
            # Inside of the transaction: smaller limits bind before the ledger frees the difference for other jobs.
            limits.take()
            # Nothing more is reserved above the new limit. What was, since the size was chosen, stays the job's.
            if basis is not None:
                _refuse_less_than_held(context.enforcer, after.job)
    except BaseException:  # Ctrl-C too: the transaction is rolled back, so the job must have its old limits again.
        if limits is not None:
            limits.give_back()
        raise
    # `decision` calls no agents, other than `deciding`: they are called below, once the larger limits bind.
    give_or_undo(context, limits)
    context.wake([job_id, *neighbours(after.job, holding)])
    with suppress(NodeError):
        context.call_agents(queues)
    return context.ledger.job(job_id)


def _refuse_less_than_held(enforcer: Enforcer, job: Job) -> None:
    uses = () if job.lease is None else enforcer.use(job.lease)
    if any(use.used_bytes > job.request.memory_bytes for use in uses):
        raise CapacityError(f"job {job.id} has grown since its new size was chosen; nothing was changed")


def give_or_undo(context: EngineContext, limits: LimitChange) -> None:
    """Bind the limits that become larger; if one cannot be bound, the ledger and the others get their old values again.

    Raises:
        PgpuError: One cannot be bound.
    """
    # The ledger holds the new amounts already. If a larger limit does not bind, the ledger gets the old ones back, unless
    # another resize has changed the job since.
    try:
        limits.give()
    except PgpuError:
        with context.ledger.decision() as decision:
            entry = decision.entry(limits.after.job.id)
            limits.revert(entry)
            if is_unchanged := limits.is_unchanged(entry):
                request, lease = limits.before.job.request, limits.before.job.lease
                decision.put(replace(entry, job=replace(entry.job, request=request, lease=lease)))
        if is_unchanged:
            limits.give_back()
        raise


def _resize_entry(entry: Entry, change: Resize, snapshot: Snapshot, decision: Decision, headroom: Headroom) -> Entry:
    """Return an entry with other slices, and another share of compute.

    Raises:
        RequestError: The job has ended, the request is contradictory, or its user's quota could never grant it.
        CapacityError: It does not fit, or a waiting job could use what it would take.
    """
    request = change.of(entry.job.request)
    check_request(request)
    job = replace(entry.job, request=request)
    if job.state.is_final:
        raise RequestError(f"job {job.id} has ended: there is nothing to resize")
    if job.is_aside:
        raise CapacityError(f"job {job.id} is parked: it has no slice now", hint="try again when it has one")
    if job.lease is None:
        refuse_more_than_quota(decision, job.owner_uid, request)
        return replace(entry, job=job)
    _refuse_fixed(entry.job, request)
    _refuse_growth_past_quota(decision, entry, request)
    hindered = judge(decision, time.time()).hindered
    queue = [each for each in decision.live() if each.job.gpu_model == job.gpu_model and each.job.id not in hindered]
    rooms = {room.gpu.uuid: room for room in snapshot.rooms(queue, headroom)}
    for part in job.lease.slices:
        room = rooms.get(part.gpu_uuid)
        most_bytes = part.memory_bytes if room is None else max(part.memory_bytes, room.most_bytes(part.memory_bytes))
        if request.memory_bytes > most_bytes:
            raise CapacityError(
                f"{format_memory(request.memory_bytes - part.memory_bytes)} more do not fit: "
                f"{format_memory(most_bytes - part.memory_bytes)} are free; nothing was changed",
                hint="stop a job on that GPU, or ask for less",
            )
        if room is None:
            continue
        more_compute = (request.compute_share or 0.0) - (part.compute_share or 0.0)
        if more_compute > 0 and not has_compute(room.free_compute, more_compute):
            raise CapacityError(
                f"{format_share(more_compute)} more of a GPU's time do not fit: "
                f"{format_share(room.free_compute)} are free; nothing was changed",
                hint="take some from a job on that GPU (`pgpu resize JOB --compute`), or ask for less",
            )
        if request.memory_bytes > part.memory_bytes or more_compute > 0:
            _refuse_overtaking(room, queue, job.owner_uid, headroom, wants_compute=more_compute > 0)
    slices = tuple(
        replace(part, memory_bytes=request.memory_bytes, compute_share=request.compute_share)
        for part in job.lease.slices
    )
    return replace(entry, job=replace(job, lease=replace(job.lease, slices=slices)))


def _refuse_growth_past_quota(view: LedgerView, entry: Entry, request: Request) -> None:
    """Raise CapacityError where a resize would take a job's user past their quota.

    Args:
        view: Of the ledger.
        entry: A job with a lease.
        request: With the new amounts.
    """
    quota, lease = view.quotas(entry.job.gpu_model).get(entry.job.owner_uid), entry.job.lease
    if quota is None or lease is None:
        return
    more_bytes = sum(max(0, request.memory_bytes - part.memory_bytes) for part in lease.slices)
    wants_compute = any((request.compute_share or 0.0) > (part.compute_share or 0.0) for part in lease.slices)
    hours = quota.gpu_hours
    if (more_bytes or wants_compute) and hours is not None and hours.is_spent(time.time()):
        raise CapacityError(
            f"the GPU hours of user {entry.job.owner_uid} for this {hours.period} are used; nothing was changed",
            hint=f"wait for the next {hours.period}, or ask the administrator",
        )
    if quota.memory_bytes is None:
        return
    counted = [other.job for other in view.holding() if other.is_counted]
    own = [job.lease for job in counted if job.owner_uid == entry.job.owner_uid]
    held_bytes = sum(part.memory_bytes for lease in own if lease is not None for part in lease.slices)
    if more_bytes and held_bytes + more_bytes > quota.memory_bytes:
        raise CapacityError(
            f"{format_memory(more_bytes)} more would pass the quota of user {entry.job.owner_uid}, "
            f"{format_memory(quota.memory_bytes)}; nothing was changed",
            hint="stop another job of that user, or ask the administrator",
        )


def _refuse_fixed(job: Job, request: Request) -> None:
    """Refuse changes that a running job cannot have: its share under MPS, and its size if it oversubscribes."""
    # The MPS server reads a client's percentage when it connects, and never again.
    is_under_mps = job.lease is not None and job.lease.sharing is SharingMode.MPS
    if is_under_mps and request.compute_share != job.request.compute_share:
        raise RequestError(
            f"job {job.id} runs under MPS, where a share holds from its start to its end",
            hint="stop it, and run it again with --compute",
        )
    if request.oversubscribes and request.memory_bytes != job.request.memory_bytes:
        raise RequestError(
            "a job that oversubscribes keeps the size with which it started: the host was asked for its rest",
            hint="stop it and start it with the other size",
        )


def _refuse_overtaking(
    room: GpuRoom, queue: Sequence[Entry], owner_uid: int, headroom: Headroom, *, wants_compute: bool
) -> None:
    """Refuse growth while another job waits that this GPU could run; of a MIG instance its one job has everything already."""
    gpu = room.gpu
    most_bytes = gpu.memory_bytes - headroom.of(gpu)
    for entry in queue:
        request = entry.job.request
        is_for_it = 0 < request.memory_bytes <= most_bytes and usable(gpu, request)
        waits = entry.job.state is JobState.WAITING
        if entry.job.wanted_at_seconds is not None and entry.job.lease is not None:
            # A parked job waits for its own GPU alone.
            waits = any(part.gpu_uuid == gpu.uuid for part in entry.job.lease.slices)
        if waits and is_for_it and not gpu.is_instance:
            whose = f"job {entry.job.id}" if entry.job.owner_uid == owner_uid else "another user's job"
            what = "GPU time" if wants_compute else "memory"
            raise CapacityError(
                f"{whose} waits for the {what} that is free; nothing was changed",
                hint="try again once it has started, or stop it",
            )


class Autoshrink:
    """Shrinks the slices of a running job whose size pgpu chose, each time that what it holds has not grown for a while.

    A slice that can grow again shrinks by the rules of `scheduling.slice_growth`, again and again. One that cannot, of a job that an
    older pgpu started, shrinks only if nothing was known of its need, and by that version's rule. A program that takes what it sees is
    left alone.
    """

    def __init__(self, context: EngineContext, *, grows: bool) -> None:
        """Start without an observation.

        Args:
            context: Of the job.
            grows: Whether its slices can grow again.
        """
        self._context = context
        self._grows = grows
        quiet_seconds = context.settings.stable_seconds
        self._quiet_seconds = min(QUIET_SECONDS, quiet_seconds) if grows else quiet_seconds
        self._peak_bytes = self._slice_bytes = 0
        self._grown_at_seconds = 0.0
        self._settled: tuple[int, int] | None = None
        """Peak and slice for which nothing is to be done."""

    def follow(self, job: Job, observed: MemoryObservation, now_seconds: float) -> None:
        """Note what the job has held; `now_seconds` is monotonic."""
        if job.lease is None or not job.request.has_chosen_size:
            return
        slice_bytes = job.lease.slices[0].memory_bytes
        if observed.peak_bytes > self._peak_bytes * GROWN or slice_bytes > self._slice_bytes:
            self._grown_at_seconds = now_seconds
        self._peak_bytes, self._slice_bytes = max(self._peak_bytes, observed.peak_bytes), slice_bytes

    def is_due(self, job: Job, observed: MemoryObservation, now_seconds: float) -> bool:
        """Whether the slice may become smaller now; without access to the ledger."""
        may_shrink = job.request.has_chosen_size and (self._grows or job.request.basis == Basis.UNKNOWN)
        is_quiet = self._peak_bytes > 0 and now_seconds - self._grown_at_seconds >= self._quiet_seconds
        is_settled = self._settled == (self._peak_bytes, self._slice_bytes)
        return may_shrink and is_quiet and not is_settled and not observed.sizes_itself

    def shrink(self, job: Job, used_bytes: int) -> None:
        """Shrink the slices if they are larger than they need to be.

        Args:
            job: As the ledger has it now.
            used_bytes: Most that one of its slices holds now.

        Raises:
            PgpuError: The slices cannot be changed.
        """
        self._settled = (self._peak_bytes, self._slice_bytes)
        uuids = {part.gpu_uuid for part in job.lease.slices} if job.lease is not None else set()
        names = {history_name(gpu) for gpu in self._context.gpus.gpus() if gpu.uuid in uuids}
        with self._context.ledger.view() as view:
            if self._grows:
                estimates = [
                    self._context.learning.estimate(view, job.signature, job.owner_uid, name) for name in names
                ]
                known_bytes = max((each.kept_bytes for each in estimates), default=0)
                runs = min((each.runs for each in estimates), default=0)
                fit_bytes = slice_growth.shrunk_bytes(self._slice_bytes, self._peak_bytes, known_bytes, runs)
            else:
                call = (job.signature, job.owner_uid)
                floor_bytes = max(
                    (peak for name in names for peak in view.history.peaks_of_call(call, name)), default=0
                )
                fit_bytes = shrunk_bytes(self._slice_bytes, self._peak_bytes, used_bytes, floor_bytes)
        if fit_bytes is not None:
            resize(self._context, job.id, Resize(fit_bytes), basis=job.request.basis)
