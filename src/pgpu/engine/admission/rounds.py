"""One round of admission: what the ledger and the GPUs say, told to `scheduling`.

It asks and answers; whoever holds the transaction writes the answer down.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pgpu.engine.admission.dependencies import judge
from pgpu.engine.admission.host_memory import available_bytes
from pgpu.engine.admission.snapshot import Snapshot, compute_of
from pgpu.engine.admission.victims import IsMovable, find_victims, lent_capacity, never_movable, without_lent
from pgpu.engine.leases.idle_leases import counts_in_round, evictable_leases
from pgpu.ledger import ALL_GPUS, Call, Entry, View, Waiting
from pgpu.model import Gpu, Job, Request, SharingMode
from pgpu.scheduling import (
    NO_PRECEDENCE,
    Admission,
    Candidate,
    GpuRoom,
    Headroom,
    Held,
    Precedence,
    Quota,
    admit,
    has_compute,
)
from pgpu.scheduling.capacity import host_bytes, short_of_host_memory, taken_of_device
from pgpu.scheduling.cpu_queue import MOST_AT_ONCE
from pgpu.scheduling.demand import Basis
from pgpu.scheduling.forecast import MOST_JOBS, Later
from pgpu.scheduling.order import NO_PLAN, BatchPlan
from pgpu.scheduling.preemption import EvictableLease, Victim, jobs_to_restart_elsewhere, preempt, reclaim_leases

Durations = Callable[[View, Collection[Call], Sequence[Gpu]], Mapping[Call, float]]
"""Tells how long calls will probably run on these GPUs, in seconds; who is missing is unknown. No GPUs: as last time.

It returns the same mapping as before as long as nothing in it has changed."""

Hindered = Callable[[View, Collection[Waiting]], Mapping[str, str]]
"""Tells, by id, which of these jobs may not start yet, whatever is free, and why."""


Sized = Callable[[Sequence[GpuRoom], Sequence[Waiting], Mapping[int, Quota]], Sequence[Waiting]]
"""Tells what waiting jobs ask for in this round whose size follows the machine, or their user's quota."""

Shared = Callable[
    [View, Sequence[GpuRoom], Sequence[Waiting], Sequence[Entry], Mapping[Call, float]], Sequence[Waiting]
]
"""Tells in which mode waiting jobs start that leave it to pgpu, given who holds slices and how long calls last."""


CLOSED = "waits for the administrator, who lets nothing new start for now"


def unknown_durations(_view: View, _calls: Collection[Call], _gpus: Sequence[Gpu]) -> Mapping[Call, float]:
    """Know of no call how long it runs."""
    return {}


def as_asked(_rooms: Sequence[GpuRoom], waiting: Sequence[Waiting], _quotas: Mapping[int, Quota]) -> Sequence[Waiting]:
    """Take every request as it is."""
    return waiting


def in_time_slices(
    _view: View,
    _rooms: Sequence[GpuRoom],
    waiting: Sequence[Waiting],
    _holding: Sequence[Entry],
    _lasting: Mapping[Call, float],
) -> Sequence[Waiting]:
    """Take every request as it is: whoever leaves the mode to pgpu starts in time slices."""
    return waiting


def without_a_plan() -> BatchPlan:
    """Have the usual order."""
    return NO_PLAN


def hindered_by_others(view: View, _waiting: Collection[Waiting]) -> Mapping[str, str]:
    """Keep back who goes after jobs that have not ended, and who has as many of its array before it as may run."""
    return judge(view).held


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that one round is decided on."""

    rooms: tuple[GpuRoom, ...]
    """Of the GPUs on which something may start."""

    queue: tuple[Candidate, ...]
    """Oldest first."""

    held: tuple[Held, ...]
    quotas: Mapping[int, Quota]
    hindered: Mapping[str, str]
    """By id of the waiting jobs that are not in the queue: what they wait for before memory counts."""

    deadlines_seconds: Mapping[str, float]
    """By id of the waiting jobs that have one: the ledger's."""

    plan: BatchPlan = NO_PLAN
    """Of a queue that should end soonest."""

    precedence: Precedence = NO_PRECEDENCE
    """What the round before left."""

    capacities: Mapping[str, int] = field(default_factory=dict)
    """By UUID of every GPU: what slices may sum to."""

    victims: tuple[Victim, ...] = ()
    """Running jobs that could be suspended for one of a higher priority."""

    offers: tuple[EvictableLease, ...] = ()
    """Idle leases that may be taken for others."""

    most_without_gpu: int = MOST_AT_ONCE
    """How many of the jobs without a GPU of this queue may be held at a time."""

    def giving_up(self, job_ids: Collection[str], now_seconds: float) -> "Situation":
        """Return the same where the wait of some has run out."""
        if not job_ids:
            return self
        queue = tuple(
            replace(each, deadline_seconds=now_seconds) if each.job_id in job_ids else each for each in self.queue
        )
        return replace(self, queue=queue)

    def admits_nobody(self) -> bool:
        """Whether it is plain, without asking whose turn it is, that no slice fits and no wait ends."""
        most_free = max((room.free_bytes for room in self.rooms), default=0)
        if self.offers or (self.victims and any(each.request.preempts for each in self.queue)):
            return not self.queue
        most_compute = max((room.free_compute for room in self.rooms), default=0.0)
        is_crowded = sum(not each.slices for each in self.held) >= self.most_without_gpu

        def cannot_start(request: Request) -> bool:
            if request.is_without_gpu:
                return is_crowded
            return request.memory_bytes > most_free or not has_compute(most_compute, request.compute_share or 0.0)

        return all(each.deadline_seconds is None and cannot_start(each.request) for each in self.queue)

    def decided(self, now_seconds: float) -> Admission | None:
        """Decide; None where nothing changes, and whose turn it is was not asked."""
        return None if self.admits_nobody() else self.admission(now_seconds)

    def admission(self, now_seconds: float) -> Admission:
        """Decide, and say of each who waits why."""

        def play(rooms: Sequence[GpuRoom], queue: Sequence[Candidate], held: Sequence[Held]) -> Admission:
            return admit(
                rooms,
                queue,
                now_seconds,
                held=held,
                quotas=self.quotas,
                plan=self.plan,
                precedence=self.precedence,
                closed_gpus=len(self.capacities.keys() - {room.gpu.uuid for room in self.rooms}),
                most_without_gpu=self.most_without_gpu,
            )

        found = reclaim_leases(self.rooms, self.queue, self.held, self.offers, play)
        victims = [each for each in self.victims if each.job_id not in found.admission.reclaimed]
        admission = preempt(found.admission, self.queue, found.rooms, victims, now_seconds)
        others = jobs_to_restart_elsewhere(admission, self.queue, lambda queue: play(self.rooms, queue, self.held))
        return replace(admission, elsewhere=others)


@dataclass(slots=True)
class RoundReader:
    """Reads the situation of one kind of GPUs."""

    gpu_model: str | None
    headroom: Headroom
    durations: Durations = unknown_durations
    hindered: Hindered = hindered_by_others
    sized: Sized = as_asked
    shared: Shared = in_time_slices
    planned: Callable[[], BatchPlan] = without_a_plan
    oversubscription: float = 1.5
    """As in the engine's settings."""

    jobs_without_gpu: int = MOST_AT_ONCE
    """As in the engine's settings: of all queues together."""

    host_memory: Callable[[], int] = available_bytes
    """What the host could give now to jobs that oversubscribe, in bytes."""

    leaves: IsMovable = never_movable
    """Tells which jobs' memory can go to the host whole while they are suspended."""

    _candidates: dict[str, tuple[Waiting, Candidate]] = field(default_factory=dict, compare=False, repr=False)
    """By id: those of the last round, most of whom still wait."""

    _lasting: Mapping[Call, float] = field(default_factory=dict, compare=False, repr=False)
    """How long calls last, as of the last round."""

    def situation(self, view: View, snapshot: Snapshot) -> Situation:
        """Read what a round is decided on.

        Args:
            view: Of the ledger, read later than the GPUs.
            snapshot: Of the GPUs.
        """
        now_seconds = time.time()
        everybody = [entry for entry in view.holding() if counts_in_round(entry.job, now_seconds)]
        holding = [entry for entry in everybody if entry.job.gpu_model == self.gpu_model]
        elsewhere = sum(entry.job.request.is_without_gpu for entry in everybody) - sum(
            entry.job.request.is_without_gpu for entry in holding
        )
        rooms = without_lent(snapshot.rooms(holding, self.headroom), lent_capacity(holding, snapshot, self.leaves))
        closed = view.closed_gpus()
        open_rooms = _open(rooms, closed)
        quotas = view.quotas()
        waiting = self.sized(open_rooms, view.waiting(self.gpu_model), quotas)
        calls = {(each.signature, each.owner_uid) for each in waiting if each.signature}
        calls |= {(entry.job.signature, entry.job.owner_uid) for entry in holding if entry.job.signature}
        lasting = self.durations(view, calls, snapshot.gpus)
        waiting = self.shared(view, open_rooms, waiting, holding, lasting)
        hindered = dict(self.hindered(view, waiting))
        hindered = dict(self._short_of_host(waiting, holding)) | hindered
        if ALL_GPUS in closed or (rooms and not open_rooms):
            is_everybody = ALL_GPUS in closed
            kept = (each for each in waiting if is_everybody or each.request.gpu_count)
            hindered = {each.job_id: CLOSED for each in kept} | hindered
        return Situation(
            rooms=open_rooms,
            capacities={room.gpu.uuid: room.capacity_bytes for room in rooms},
            queue=self._queue(waiting, hindered, lasting),
            held=tuple(_held(entry, lasting) for entry in holding),
            quotas=quotas,
            hindered=hindered,
            plan=self.planned(),
            precedence=view.precedence(self.gpu_model),
            offers=evictable_leases(holding),
            most_without_gpu=max(0, self.jobs_without_gpu - elsewhere),
            victims=find_victims(holding, snapshot, self._leaves_now)
            if any(each.request.preempts for each in waiting)
            else (),
            deadlines_seconds={
                each.job_id: each.wait_deadline_seconds for each in waiting if each.wait_deadline_seconds is not None
            },
        )

    def _leaves_now(self, job: Job) -> bool:
        """And the host has room for it."""
        parts = () if job.lease is None else job.lease.slices
        return self.leaves(job) and sum(part.memory_bytes for part in parts) <= self.host_memory()

    def later(self, view: View, hindered: Collection[str]) -> list[Later]:
        """Return the jobs that go after others, of those that may not start yet, each with the ids of whom it awaits."""
        waiting = [each for each in view.waiting(self.gpu_model) if each.has_predecessors and each.job_id in hindered]
        waiting = waiting[:MOST_JOBS]
        after = {job_id: peer.place.after for job_id, peer in view.peers([each.job_id for each in waiting]).items()}
        named = view.peers({job_id for ids in after.values() for job_id in ids})
        going = {job_id for job_id, peer in named.items() if not peer.state.is_final}
        calls = {(each.signature, each.owner_uid) for each in waiting if each.signature}
        lasting = self.durations(view, calls, ())
        return [(self._candidate(each, lasting), going.intersection(after[each.job_id])) for each in waiting]

    def _queue(
        self, waiting: Sequence[Waiting], hindered: Mapping[str, str], lasting: Mapping[Call, float]
    ) -> tuple[Candidate, ...]:
        before: Mapping[str, tuple[Waiting, Candidate]] = self._candidates if lasting is self._lasting else {}
        now = {}
        for each in waiting:
            if each.job_id not in hindered:
                known = before.get(each.job_id)
                if known is None or known[0] is not each:
                    known = (each, self._candidate(each, lasting))
                now[each.job_id] = known
        self._candidates, self._lasting = now, lasting
        return tuple([candidate for _, candidate in now.values()])

    def _candidate(self, waiting: Waiting, lasting: Mapping[Call, float]) -> Candidate:
        request = taken_of_device(waiting.request, self.oversubscription)
        return _candidate(waiting, request, lasting.get((waiting.signature, waiting.owner_uid)))

    def _short_of_host(self, waiting: Sequence[Waiting], holding: Sequence[Entry]) -> Mapping[str, str]:
        """Say who oversubscribes and waits for host memory; the kernel is asked only where anybody does."""
        asking = [(each.job_id, each.request) for each in waiting if each.request.oversubscribes]
        if not asking:
            return {}
        leases = [entry.job.lease for entry in holding if entry.job.lease is not None]
        promised_bytes = sum(host_bytes(lease.slices) for lease in leases)
        return short_of_host_memory(asking, promised_bytes, self.host_memory(), self.oversubscription)


def _open(rooms: Sequence[GpuRoom], closed: Collection[str]) -> tuple[GpuRoom, ...]:
    """Leave out the GPUs on which the administrator lets nothing new start; what runs there goes on."""
    return tuple(room for room in rooms if ALL_GPUS not in closed and room.gpu.uuid not in closed)


def _candidate(waiting: Waiting, request: Request, duration_seconds: float | None) -> Candidate:
    """Without a deadline: the ledger's is wall time, which may be set; who waits for it tells when it ran out."""
    return Candidate(
        waiting.job_id,
        request,
        None,
        waiting.owner_uid,
        waiting.eligible_at_seconds,
        duration_seconds,
        takes_free=waiting.request.basis == Basis.UNKNOWN and waiting.gpu_uuid is None,
        gpu_uuid=waiting.gpu_uuid,
    )


def _held(entry: Entry, lasting: Mapping[Call, float]) -> Held:
    job = entry.job
    lease = job.lease
    return Held(
        job.id,
        job.owner_uid,
        () if lease is None else tuple(replace(part, memory_bytes=part.device_bytes) for part in lease.slices),
        0.0 if lease is None else lease.granted_at_seconds,
        compute_of(job),
        lasting.get((job.signature, job.owner_uid)),
        SharingMode.TIME_SLICE if lease is None else lease.sharing,
    )
