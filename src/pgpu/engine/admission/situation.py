"""The input of one round of admission: free room, waiting and running jobs, quotas, the plan and what may be evicted.

`SituationReader` reads it from a view of the ledger and a snapshot of the GPUs; `Situation.decide` applies
`pgpu.scheduling` to it. Nothing here is written.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import zip_longest

from pgpu.advising.memory_demand import Basis
from pgpu.engine.admission.auto_sharing import AutoSharing
from pgpu.engine.admission.dependencies import BEGIN, HELD, judge
from pgpu.engine.admission.idle_leases import counts_in_round, evictable_leases
from pgpu.engine.admission.slowdown_predictor import SlowdownPredictor
from pgpu.engine.admission.snapshot import Snapshot, available_bytes, compute_of
from pgpu.engine.history.run_history import RunHistory, family_of_job
from pgpu.engine.settings import EngineSettings
from pgpu.ledger import ALL_GPUS, Call, Entry, GrowthWait, LedgerView, Waiting
from pgpu.model import Job, JobState, Request, SharingMode, SharingWish, Slice
from pgpu.scheduling import (
    NO_PRECEDENCE,
    Admission,
    Candidate,
    GpuRoom,
    Headroom,
    Held,
    OrderRules,
    Precedence,
    Quota,
    admit,
    has_compute,
)
from pgpu.scheduling.admission_round import Family, PredictSlowdowns, predict_nothing
from pgpu.scheduling.capacity import host_bytes, mode_of, short_of_host_memory, taken_of_device
from pgpu.scheduling.forecast import MOST_JOBS, Later
from pgpu.scheduling.order import NO_PLAN, BatchPlan
from pgpu.scheduling.preemption import EvictableLease, Victim, jobs_to_restart_elsewhere, preempt, reclaim_leases
from pgpu.scheduling.quota_usage import MOST_AT_ONCE
from pgpu.scheduling.reservations import left_for_growth
from pgpu.scheduling.slice_growth import grows, holds_others
from pgpu.scheduling.start_rule import may_be_held
from pgpu.scheduling.virtual_clocks import contenders_of
from pgpu.scheduling.yielding_headroom import has_declared_size
from pgpu.structs import Struct, field, replace

CLOSED = "waits until the administrator opens the GPUs to new jobs"


class Situation(Struct, frozen=True):
    """Everything that one round is decided on."""

    rooms: tuple[GpuRoom, ...]
    """Of the GPUs that are open to new jobs."""

    queue: tuple[Candidate, ...]
    """Waiting jobs that may start if they fit, oldest first."""

    held: tuple[Held, ...]
    quotas: Mapping[int, Quota]
    hindered: Mapping[str, str]
    """Waiting jobs that may not start whatever is free: reason by id."""

    deadlines_seconds: Mapping[str, float]
    """Deadlines of waiting jobs in the ledger, in seconds since the epoch by id."""

    plan: BatchPlan = NO_PLAN
    """Of a queue with `objective = makespan`."""

    precedence: Precedence = NO_PRECEDENCE
    """Left by the round before, with the clocks as they are now."""

    capacities: Mapping[str, int] = field(default_factory=dict)
    """What slices may sum to on every GPU, in bytes by UUID."""

    victims: tuple[Victim, ...] = ()
    """Running jobs that could be suspended for one of a higher priority."""

    awaited_host_bytes: int | None = None
    """Host memory from which on another running job could be suspended for a waiting one; None where none of it is awaited."""

    offers: tuple[EvictableLease, ...] = ()

    most_without_gpu: int = MOST_AT_ONCE
    """How many jobs without a GPU of this queue may run at a time."""

    predict: PredictSlowdowns = predict_nothing

    staying: frozenset[str] = frozenset()
    """Ids of the parked jobs that wait for their own GPU alone: they were parked since they could not grow."""

    dormant: Mapping[str, str] = field(default_factory=dict)
    """Those of `hindered` that only a release or their begin lets start: the rule by id."""

    wakes_at_seconds: float = math.inf
    """The first time at which a begin or a new period of a quota may let a job start, in seconds since the epoch."""

    def with_expired_waits(self, job_ids: Collection[str], now_seconds: float) -> "Situation":
        """Return the same situation with the wait of these jobs run out."""
        if not job_ids:
            return self
        queue = tuple(
            replace(each, deadline_seconds=now_seconds) if each.job_id in job_ids else each for each in self.queue
        )
        return replace(self, queue=queue)

    def left_for_growth(self, grower: Entry, now_seconds: float) -> int | None:
        """Return by how much each slice of a running job may grow without delay for a waiting one; None for no limit."""
        own = next((each for each in self.held if each.job_id == grower.job.id), None)
        if own is None or not self.queue:
            return None
        growth = grower.growth or GrowthWait(now_seconds, now_seconds, None)
        rooms = tuple(_with_growers(room, [replace(grower, growth=growth)], now_seconds) for room in self.rooms)
        admission = replace(self, rooms=rooms).admission(now_seconds)
        return left_for_growth(admission, own, rooms, now_seconds, OrderRules())

    def decide(self, now_seconds: float) -> Admission | None:
        """Decide the round; None where obviously nothing changes, which saves ordering the queue."""
        is_known = not self.rooms or contenders_of(self.queue) == self.precedence.time.contenders.keys()
        return None if is_known and self._admits_nothing() else self.admission(now_seconds)

    def _admits_nothing(self) -> bool:
        """Whether no job of the queue can fit in any order and no wait ends."""
        most_free = max((room.free_declared_bytes for room in self.rooms), default=0)
        # Eviction or suspension could make room: what is free now decides nothing.
        if self.offers or (self.victims and any(each.request.preempts for each in self.queue)):
            return not self.queue
        most_compute = max((room.free_compute for room in self.rooms), default=0.0)
        is_crowded = sum(not each.slices for each in self.held) >= self.most_without_gpu

        def cannot_start(request: Request) -> bool:
            if request.is_without_gpu:
                return is_crowded
            return request.memory_bytes > most_free or not has_compute(most_compute, request.compute_share or 0.0)

        return all(each.deadline_seconds is None and cannot_start(each.request) for each in self.queue)

    def admission(self, now_seconds: float) -> Admission:
        """Decide the round, with a reason for each job that goes on waiting."""

        def admit_with(rooms: Sequence[GpuRoom], queue: Sequence[Candidate], held: Sequence[Held]) -> Admission:
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
                predict=self.predict,
            )

        found = reclaim_leases(self.rooms, self.queue, self.held, self.offers, admit_with)
        victims = [each for each in self.victims if each.job_id not in found.admission.reclaimed]
        admission = preempt(found.admission, self.queue, found.rooms, victims, now_seconds)
        others = jobs_to_restart_elsewhere(
            admission, self.queue, lambda queue: admit_with(self.rooms, queue, self.held), self.staying
        )
        return replace(admission, elsewhere=others)


class SituationReader(Struct):
    """Reads the situation of one kind of GPUs; keeps values between rounds that are costly to make anew."""

    settings: EngineSettings
    headroom: Headroom
    learning: RunHistory
    auto_sharing: AutoSharing
    predictor: SlowdownPredictor
    planned: Callable[[], BatchPlan]
    """Reads the plan of a queue with `objective = makespan`."""

    can_leave: Callable[[Job], bool]
    """Whether all that a job holds of its GPU can be moved to the host while it is suspended."""

    limits_bind: Callable[[], bool]
    """Whether every job that starts here keeps its limit; called only where headroom would let one more start."""

    demand: Callable[[str], float | None]
    """Returns the share of its only GPU's time that a job needs, 0 to 1, by id; None if it is not known."""

    host_memory: Callable[[], int] = available_bytes
    """Memory that the host could give now to jobs that oversubscribe, in bytes."""

    _candidates: dict[str, tuple[Waiting, Candidate]] = field(default_factory=dict)
    """Of the last round, by job id: most of them still wait, and ten thousand take long to make."""

    _made_with: tuple[object, ...] = ()
    """Durations of calls, those with a profile, and limits of families, as of the last round; the same objects while none changed."""

    def situation(self, view: LedgerView, snapshot: Snapshot) -> Situation:
        """Read the situation.

        Args:
            view: Of the ledger. It must be newer than the snapshot: memory that was freed between the two then counts
                as taken, never the reverse.
            snapshot: Of the GPUs.
        """
        now_seconds, gpu_model = time.time(), self.settings.gpu_model
        leased = view.holding()
        counted = [entry for entry in leased if counts_in_round(entry.job, now_seconds)]
        holding = [entry for entry in counted if entry.job.gpu_model == gpu_model]
        without_gpu_elsewhere = sum(
            entry.job.request.is_without_gpu for entry in counted if entry.job.gpu_model != gpu_model
        )
        rooms = self._rooms(holding, snapshot)
        closed = view.closed_gpus()
        is_all_closed = ALL_GPUS in closed
        # Closed GPUs are still counted in `capacities`: they are there, and open again later.
        open_rooms = () if is_all_closed else tuple(room for room in rooms if room.gpu.uuid not in closed)
        quotas = view.quotas(gpu_model)
        waiting: Sequence[Waiting] = self.learning.update_sizes(open_rooms, view.waiting(gpu_model), quotas)
        calls = {(each.signature, each.owner_uid) for each in waiting if each.signature}
        calls |= {(entry.job.signature, entry.job.owner_uid) for entry in holding if entry.job.signature}
        lasting = self.learning.durations(view, calls, snapshot.gpus)
        open_rooms = self._with_headroom(open_rooms, waiting)
        waiting = self.auto_sharing.choose_modes(view, open_rooms, waiting, holding, lasting)
        under_mps = {(each.signature, each.owner_uid) for each in waiting if each.request.sharing is SharingWish.MPS}
        under_mps |= {(job.signature, job.owner_uid) for entry in holding if _mode(job := entry.job) is SharingMode.MPS}
        self.predictor.read(view, under_mps & calls, snapshot.gpus)
        verdicts = judge(view, now_seconds)
        hindered = self._short_of_host(waiting, holding) | dict(verdicts.hindered)
        if is_all_closed or (rooms and not open_rooms):
            kept = (each for each in waiting if is_all_closed or each.request.gpu_count)
            hindered = {each.job_id: CLOSED for each in kept} | hindered
        has_preempting = any(each.request.preempts for each in waiting)
        chosen = (family_of_job(each.request, each.signature, each.owner_uid) for each in waiting)
        families = {family for family in chosen if family is not None}
        most = self.learning.most_of_families(view, families, snapshot.gpus)
        queue = self._queue(waiting, hindered, lasting, most)
        victims, awaited_host_bytes = self._victims(holding, snapshot) if has_preempting else ((), None)
        dormant = [each for each in waiting if each.job_id in verdicts.dormant] if verdicts.dormant else []
        begins = [each.eligible_at_seconds for each in dormant if verdicts.dormant[each.job_id] == BEGIN]
        hours = [each.gpu_hours for each in quotas.values() if each.gpu_hours is not None]
        renewed = [each.renewed_at_seconds for each in hours if each.is_spent(now_seconds)]
        # One file for each running job is read only where a demand decides something.
        most_free = max((room.free_declared_bytes for room in open_rooms), default=0)
        is_decisive = any(each.request.memory_bytes <= most_free and may_be_held(each, now_seconds) for each in queue)
        return Situation(
            rooms=open_rooms,
            capacities={room.gpu.uuid: room.capacity_bytes for room in rooms},
            queue=queue,
            held=tuple(
                self._make_held(entry, lasting, self.demand(entry.job.id) if is_decisive else None) for entry in holding
            ),
            quotas=quotas,
            hindered=hindered,
            plan=self.planned(),
            precedence=view.precedence(gpu_model),
            offers=evictable_leases(holding),
            most_without_gpu=max(0, self.settings.jobs_without_gpu - without_gpu_elsewhere),
            predict=self.predictor.slowdowns,
            victims=victims,
            awaited_host_bytes=awaited_host_bytes,
            deadlines_seconds={
                each.job_id: each.wait_deadline_seconds
                for each in waiting
                if each.wait_deadline_seconds is not None and verdicts.dormant.get(each.job_id) != HELD
            },
            dormant={each.job_id: verdicts.dormant[each.job_id] for each in dormant},
            staying=frozenset(entry.job.id for entry in leased if entry.job.is_aside and not entry.job.can_park),
            wakes_at_seconds=min([*begins, *renewed], default=math.inf),
        )

    def later(self, view: LedgerView, situation: Situation) -> list[Later]:
        """Return the hindered jobs with predecessors or a begin, each with the ids of predecessors that have not ended.

        Not those that a user holds: the time of their release is not known.
        """
        hindered, dormant = situation.hindered, situation.dormant
        if not hindered:
            return []
        waiting = [
            each
            for each in view.waiting(self.settings.gpu_model)
            if each.job_id in hindered
            and dormant.get(each.job_id) != HELD
            and (each.has_predecessors or each.job_id in dormant)
        ][:MOST_JOBS]
        after = {job_id: peer.place.after for job_id, peer in view.peers([each.job_id for each in waiting]).items()}
        named = view.peers({job_id for ids in after.values() for job_id in ids})
        unfinished = {job_id for job_id, peer in named.items() if not peer.state.is_final}
        calls = {(each.signature, each.owner_uid) for each in waiting if each.signature}
        lasting = self.learning.durations(view, calls, ())
        return [(self._candidate(each, lasting, {}), unfinished.intersection(after[each.job_id])) for each in waiting]

    def _with_headroom(self, rooms: tuple[GpuRoom, ...], waiting: Sequence[Waiting]) -> tuple[GpuRoom, ...]:
        """Return the rooms with headroom that yields only if a job may need it and limits bind here."""
        wanted_bytes = sum(each.request.memory_bytes for each in waiting)
        if all(wanted_bytes <= room.free_bytes or not room.yielded_bytes for room in rooms) or self.limits_bind():
            return rooms
        return tuple(replace(room, yielded_bytes=0) for room in rooms)

    def _queue(
        self,
        waiting: Sequence[Waiting],
        hindered: Mapping[str, str],
        lasting: Mapping[Call, float],
        most: Mapping[Family, int],
    ) -> tuple[Candidate, ...]:
        made_with = (lasting, self.predictor.calls, most)
        is_same = all(now is before for now, before in zip_longest(made_with, self._made_with))
        before: Mapping[str, tuple[Waiting, Candidate]] = self._candidates if is_same else {}
        now = {}
        for each in waiting:
            if each.job_id not in hindered:
                known = before.get(each.job_id)
                # By identity: the view returns the same object as long as the row has not changed.
                if known is None or known[0] is not each:
                    known = (each, self._candidate(each, lasting, most))
                now[each.job_id] = known
        self._candidates, self._made_with = now, made_with
        return tuple([candidate for _, candidate in now.values()])

    def _candidate(self, waiting: Waiting, lasting: Mapping[Call, float], most: Mapping[Family, int]) -> Candidate:
        # A job whose wait is limited is never held back: its memory may be gone when the wait ends.
        is_limited = waiting.wait_deadline_seconds is not None
        family = family_of_job(waiting.request, waiting.signature, waiting.owner_uid)
        demand = None if is_limited else self.learning.demands.get((waiting.signature, waiting.owner_uid))
        return Candidate(
            waiting.job_id,
            taken_of_device(waiting.request, self.settings.oversubscription),
            # No deadline: the ledger's is wall time, which may be set. The process that waits for the job measures it.
            None,
            waiting.owner_uid,
            waiting.eligible_at_seconds,
            waiting.request.expected_seconds(lasting.get((waiting.signature, waiting.owner_uid))),
            takes_free=waiting.request.basis == Basis.UNKNOWN and waiting.gpu_uuid is None,
            gpu_uuid=waiting.gpu_uuid,
            batch=None if is_limited else waiting.batch,
            # A parked job returns to a place that it lent.
            uses_headroom=waiting.gpu_uuid is None and has_declared_size(waiting.request),
            usual_demand=demand,
            profiled=None if is_limited else self.predictor.call_of(waiting, mode_of(waiting.request.sharing)),
            family=family,
            # A parked job has begun already.
            most_of_family=None if family is None or waiting.gpu_uuid is not None else most.get(family),
        )

    def _make_held(self, entry: Entry, lasting: Mapping[Call, float], demand: float | None) -> Held:
        job, lease = entry.job, entry.job.lease
        call, is_suspended = (job.signature, job.owner_uid), job.suspended_by is not None
        return Held(
            job.id,
            job.owner_uid,
            () if lease is None else tuple(replace(part, memory_bytes=part.device_bytes) for part in lease.slices),
            0.0 if lease is None else lease.granted_at_seconds,
            compute_of(job),
            job.request.expected_seconds(lasting.get(call)),
            _mode(job),
            job.place.batch,
            demand,
            usual_demand=None if is_suspended else self.learning.demands.get(call),
            profiled=None if is_suspended else self.predictor.call_of(job, _mode(job)),
            family=family_of_job(job.request, job.signature, job.owner_uid),
            grows=lease is not None and grows(job.request, lease.sharing),
        )

    def _short_of_host(self, waiting: Sequence[Waiting], holding: Sequence[Entry]) -> dict[str, str]:
        # /proc is read only where a job that oversubscribes waits.
        oversubscribing = [(each.job_id, each.request) for each in waiting if each.request.oversubscribes]
        if not oversubscribing:
            return {}
        promised_bytes = sum(host_bytes(entry.job.lease.slices) for entry in holding if entry.job.lease is not None)
        return dict(
            short_of_host_memory(oversubscribing, promised_bytes, self.host_memory(), self.settings.oversubscription)
        )

    # Suspended jobs: they keep their lease, and only the job that they were suspended for is granted what they left.

    def _victims(self, holding: Sequence[Entry], snapshot: Snapshot) -> tuple[tuple[Victim, ...], int | None]:
        """Return the jobs that might be suspended, and the least host memory with which one more could leave."""
        host_bytes, awaited_bytes = self.host_memory(), set[int]()

        def fits_in_host(job: Job) -> bool:
            size_bytes = 0 if job.lease is None else sum(part.memory_bytes for part in job.lease.slices)
            if not self.can_leave(job):
                return False
            if size_bytes > host_bytes:
                awaited_bytes.add(size_bytes)
            return size_bytes <= host_bytes

        victims = tuple(
            Victim(
                entry.job.id,
                part.gpu_uuid,
                entry.job.request.priority,
                entry.job.lease.granted_at_seconds,
                _freed_bytes(entry.job, part, snapshot, fits_in_host),
                part.compute_share or 0.0,
                entry.job.resumed_at_seconds,
            )
            for entry in holding
            if entry.job.lease is not None
            and len(entry.job.lease.slices) == 1
            and entry.job.lease.sharing is SharingMode.TIME_SLICE
            and entry.job.state is JobState.RUNNING
            and entry.job.suspended_by is None
            and not entry.job.is_aside
            for part in entry.job.lease.slices
        )
        return victims, min(awaited_bytes, default=None)

    def _rooms(self, holding: Sequence[Entry], snapshot: Snapshot) -> tuple[GpuRoom, ...]:
        """Return the free room of each GPU; a place that a suspended job lends to another one is taken once."""
        # A suspended job keeps its lease, so in the snapshot's rooms its place counts twice: for it, and for the job there.
        jobs = {entry.job.id: entry.job for entry in holding if entry.is_lease_held}
        twice: dict[str, tuple[int, float]] = {}
        for job_id in {job.suspended_by for job in jobs.values() if job.suspended_by in jobs}:
            lease = jobs[str(job_id)].lease
            suspended = [job for job in jobs.values() if job.suspended_by == job_id]
            for part in () if lease is None else lease.slices:
                left = [
                    (job, own)
                    for job in suspended
                    if job.lease
                    for own in job.lease.slices
                    if own.gpu_uuid == part.gpu_uuid
                ]
                freed_bytes = sum(_freed_bytes(job, own, snapshot, self.can_leave) for job, own in left)
                freed_compute = sum(own.compute_share or 0.0 for _, own in left)
                memory_bytes, compute = twice.get(part.gpu_uuid, (0, 0.0))
                twice[part.gpu_uuid] = (
                    memory_bytes + min(part.device_bytes, freed_bytes),
                    compute + min(part.compute_share or 0.0, freed_compute),
                )
        rooms = []
        for room in snapshot.rooms(holding, self.headroom):
            memory_bytes, compute = twice.get(room.gpu.uuid, (0, 0.0))
            granted_bytes, granted_compute = room.granted_bytes - memory_bytes, room.granted_compute - compute
            rooms.append(replace(room, granted_bytes=granted_bytes, granted_compute=granted_compute))
        growers = [entry for entry in holding if entry.waits_to_grow]
        return tuple(_with_growers(room, growers, time.time()) if growers else room for room in rooms)


def _with_growers(room: GpuRoom, growers: Sequence[Entry], now_seconds: float) -> GpuRoom:
    """Return the room of a GPU with what jobs that wait to grow hold back there."""
    there = [
        entry
        for entry in growers
        if entry.job.lease is not None and any(part.gpu_uuid == room.gpu.uuid for part in entry.job.lease.slices)
    ]
    firsts = [entry.growth.first_seconds for entry in there if entry.growth is not None]
    return replace(
        room,
        growers=(*room.growers, *(entry.job.owner_uid for entry in there)),
        holds_others=room.holds_others or any(holds_others(first_seconds, now_seconds) for first_seconds in firsts),
    )


def _freed_bytes(job: Job, part: Slice, snapshot: Snapshot, can_leave: Callable[[Job], bool]) -> int:
    # The driver moves the whole process where it can, else only the pages of managed memory.
    return part.memory_bytes if can_leave(job) else snapshot.movable_bytes(job.id, part)


def _mode(job: Job) -> SharingMode:
    return SharingMode.TIME_SLICE if job.lease is None else job.lease.sharing
