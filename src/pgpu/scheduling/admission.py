"""Who starts now, and why the others wait.

Nothing is granted past the memory that is really there. The first job in the order that does not fit gets a reservation,
and nobody who comes after it may delay it; so the GPU is kept full and nobody starves. It refuses to guess: what a job
needs and how long it runs are told.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import overload

from pgpu.model import Gpu, Slice
from pgpu.scheduling.backfill import NEVER, Reservation, expected_end_seconds, reserve
from pgpu.scheduling.candidate import Candidate, Held, Quota
from pgpu.scheduling.capacity import GpuRoom, taken_bytes, usable
from pgpu.scheduling.order import Machine, OrderRules, Turns
from pgpu.scheduling.outlook import Outlook
from pgpu.scheduling.planned import NO_PLAN, BatchPlan, PlannedTurns
from pgpu.scheduling.seats import Seats, likely
from pgpu.units import format_memory


@dataclass(frozen=True, slots=True)
class Grant:
    """A job that starts now."""

    job_id: str
    slices: tuple[Slice, ...]


class Cause(Enum):
    """Why a job waits."""

    MEMORY = "memory"
    """Its slices do not fit."""

    TURN = "turn"
    """They fit, and would delay the job that memory is kept for."""

    PLAN = "plan"
    """The batch ends sooner if they start later."""

    QUOTA = "quota"
    """Its owner holds as much as they may."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A job that waits; the words are made only when somebody asks."""

    job_id: str
    cause: Cause
    ahead: int
    """How many waiting jobs stand before it."""

    _round: "_Round" = field(compare=False, repr=False)
    _candidate: Candidate = field(compare=False, repr=False)

    @property
    def reason(self) -> str:
        """One line for people: `waits for 1205 MiB on one GPU: 641 MiB free of 22.99 GiB; 3 jobs ahead`."""
        text = self._round.explain(self._candidate, self.cause)
        return text + (f"; {self.ahead} job{'s' if self.ahead > 1 else ''} ahead" if self.ahead else "")


class Waits(Sequence[Wait]):
    """Those who wait, each put into words only when it is asked for: of ten thousand few are."""

    def __init__(self, found: Sequence[tuple[Candidate, Cause]], round_: "_Round") -> None:
        self._found = found
        self._round = round_

    def __len__(self) -> int:
        return len(self._found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Waits) and self._found == other._found

    def __hash__(self) -> int:
        return hash(tuple(self._found))

    @overload
    def __getitem__(self, place: int) -> Wait: ...

    @overload
    def __getitem__(self, place: slice) -> list[Wait]: ...

    def __getitem__(self, place: int | slice) -> Wait | list[Wait]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self._found)))]
        place = range(len(self._found))[place]
        candidate, cause = self._found[place]
        return Wait(candidate.job_id, cause, place, self._round, candidate)


@dataclass(frozen=True, slots=True)
class Admission:
    """One answer for each candidate."""

    grants: tuple[Grant, ...]
    waits: Sequence[Wait]
    """In the order in which they will be looked at."""

    expired: tuple[str, ...]
    """Ids of the jobs that could not start before their wait ran out."""


def admit(
    rooms: Sequence[GpuRoom],
    queue: Sequence[Candidate],
    now_seconds: float,
    *,
    held: Sequence[Held] = (),
    quotas: Mapping[int, Quota] | None = None,
    rules: OrderRules | None = None,
    outlook: Outlook | None = None,
    plan: BatchPlan = NO_PLAN,
) -> Admission:
    """Decide which waiting requests start now, and on which GPUs.

    Pure: the same arguments always give the same answer. A job on one GPU gets the smallest free MIG instance that covers
    it, whole; where there is none, the GPUs whose free parts lose least worth to the jobs likely to come (`placement`). One
    job's are distinct. A job whose wait has run out still starts if it fits now.

    Args:
        rooms: Every GPU and MIG instance, in NVML index order.
        queue: Waiting requests, oldest first.
        now_seconds: Seconds since the epoch.
        held: Every job whose slices are part of what the rooms have granted.
        quotas: By UID; who is missing has none.
        rules: How long things are taken to be.
        outlook: What is likely to come; by default, the like of what waits and runs.
        plan: Whose jobs go first and in which order (`plan_batch`); nobody keeps memory for one of them.
    """
    seats = Seats(rooms, lambda: outlook or likely(rooms, queue, held))
    round_ = _Round(rooms, held, quotas or {}, rules or OrderRules(), now_seconds, seats=seats, plan=plan)
    for part in round_.in_turn(queue):
        for candidate in part:
            round_.consider(candidate)
    return Admission(tuple(round_.grants), Waits(round_.waits, round_), tuple(round_.expired))


class _Round:
    """One round of admission: what is still free, and for whom it is kept."""

    def __init__(
        self,
        rooms: Sequence[GpuRoom],
        held: Sequence[Held],
        quotas: Mapping[int, Quota],
        rules: OrderRules,
        now_seconds: float,
        *,
        seats: Seats,
        plan: BatchPlan,
    ) -> None:
        self.grants: list[Grant] = []
        self.waits: list[tuple[Candidate, Cause]] = []
        self.expired: list[str] = []
        self._rooms = rooms
        self._seats = seats
        self._free = {room.gpu.uuid: room.free_bytes for room in rooms}
        self._free_compute = {room.gpu.uuid: 1.0 - room.granted_compute for room in rooms}
        self._most_free = max(self._free.values(), default=0)
        self._quotas = quotas
        self._rules = rules
        self._now_seconds = now_seconds
        self._held = list(held)
        self._reservation: Reservation | None = None
        self._reserved_for_uid: int | None = None
        self._owned = _owned(held)
        self.planned = PlannedTurns(plan, held)
        machine = Machine(sum(room.capacity_bytes for room in rooms), len(rooms))
        shares = {uid: machine.dominant_share(own.memory_bytes, own.compute_share) for uid, own in self._owned.items()}
        self.turns = Turns(machine, shares, quotas, rules, now_seconds)

    def in_turn(self, queue: Sequence[Candidate]) -> Iterator[Iterable[Candidate]]:
        """Yield whoever is overdue, the jobs of the plan, and the rest; a job that the plan knows is never overdue."""
        if not self.planned:
            yield self.turns.of(queue)
            return
        others = [candidate for candidate in queue if not self.planned.knows(candidate)]
        yield self.turns.of([candidate for candidate in others if self.turns.is_overdue(candidate)])
        yield self.planned.first(queue)
        yield self.turns.of([candidate for candidate in others if not self.turns.is_overdue(candidate)])

    def consider(self, candidate: Candidate) -> None:
        """Grant, keep waiting or give up one candidate."""
        cause = self._hindrance(candidate)
        slices = None if cause else self._placed(candidate)
        if slices is not None:
            self._grant(candidate, slices)
        elif candidate.deadline_seconds is not None and candidate.deadline_seconds <= self._now_seconds:
            self.expired.append(candidate.job_id)
        else:
            self._keep_waiting(candidate, cause or self._obstacle(candidate))

    def explain(self, candidate: Candidate, cause: Cause) -> str:
        """Say why a candidate waits, with the figures of the end of the round."""
        request = candidate.request
        if cause is Cause.QUOTA:
            return self._explain_quota(candidate)
        if cause is Cause.PLAN:
            return "waits its turn: its batch ends sooner if it starts later"
        if cause is Cause.TURN and self._reservation is not None:
            is_own = self._reserved_for_uid == candidate.owner_uid
            whose = f"job {self._reservation.job_id}" if is_own else "another user's job"
            return f"waits its turn: the memory that is free is kept for {whose}"
        where = "one GPU" if request.gpu_count == 1 else f"each of {request.gpu_count} GPUs"
        return f"waits for {format_memory(request.memory_bytes)} on {where}: {self._what_is_free(candidate)}"

    def _hindrance(self, candidate: Candidate) -> Cause | None:
        """What keeps a candidate from being placed at all; told without looking at each GPU."""
        if self._is_past_quota(candidate):
            return Cause.QUOTA
        if self.planned and self.planned.holds_back(candidate):
            return Cause.PLAN
        return Cause.MEMORY if candidate.request.memory_bytes > self._most_free else None

    def _is_past_quota(self, candidate: Candidate) -> bool:
        quota = self._quotas.get(candidate.owner_uid)
        if quota is None:
            return False
        own = self._owned[candidate.owner_uid]
        wanted = candidate.request.memory_bytes * candidate.request.gpu_count
        is_past_memory = quota.memory_bytes is not None and own.memory_bytes + wanted > quota.memory_bytes
        return is_past_memory or (quota.jobs is not None and own.jobs >= quota.jobs)

    def _placed(self, candidate: Candidate) -> tuple[Slice, ...] | None:
        request = candidate.request
        fitting = [gpu for gpu in self._fitting(candidate) if self._is_admitted(gpu, candidate)]
        if len(fitting) < request.gpu_count:
            return None
        chosen = self._seats.choose(request, fitting, self._free, self._free_compute)
        return tuple(Slice(gpu.uuid, request.memory_bytes) for gpu in chosen)

    def _fitting(self, candidate: Candidate) -> list[Gpu]:
        request, share = candidate.request, candidate.request.compute_share or 0.0
        return [
            room.gpu
            for room in self._rooms
            if self._free[room.gpu.uuid] >= request.memory_bytes
            and not self.planned.has_enough(room.gpu.uuid)
            and self._free_compute[room.gpu.uuid] >= share
            and usable(room.gpu, request.gpu_count)
        ]

    def _is_admitted(self, gpu: Gpu, candidate: Candidate) -> bool:
        if self._reservation is None:
            return True
        return self._reservation.admits(gpu, candidate.request.memory_bytes, self._end_seconds(candidate))

    def _end_seconds(self, candidate: Candidate) -> float:
        return NEVER if candidate.duration_seconds is None else self._now_seconds + candidate.duration_seconds

    def _grant(self, candidate: Candidate, slices: tuple[Slice, ...]) -> None:
        share = candidate.request.compute_share or 0.0
        gpus = {room.gpu.uuid: room.gpu for room in self._rooms}
        for part in slices:
            self._free[part.gpu_uuid] -= taken_bytes(gpus[part.gpu_uuid], part.memory_bytes)
            self._free_compute[part.gpu_uuid] -= share
            if self._reservation is not None:
                self._reservation.let_in(gpus[part.gpu_uuid], part.memory_bytes, self._end_seconds(candidate))
        self._most_free = max(self._free.values())
        self._held.append(_held(candidate, slices, self._now_seconds))
        self._owned[candidate.owner_uid].add(self._held[-1])
        self.turns.granted(candidate)
        self.planned.granted(slices)
        self.grants.append(Grant(candidate.job_id, slices))

    def _obstacle(self, candidate: Candidate) -> Cause:
        memory_bytes = candidate.request.memory_bytes
        if any(self.planned.has_enough(uuid) and free >= memory_bytes for uuid, free in self._free.items()):
            return Cause.PLAN
        return Cause.TURN if len(self._fitting(candidate)) >= candidate.request.gpu_count else Cause.MEMORY

    def _keep_waiting(self, candidate: Candidate, cause: Cause) -> None:
        if self.planned:
            self.planned.kept_waiting(candidate)
        if self._reservation is None and cause is not Cause.QUOTA and not self.planned.knows(candidate):
            self._reservation = self._reserved(candidate)
            self._reserved_for_uid = candidate.owner_uid
        self.waits.append((candidate, cause))

    def _reserved(self, candidate: Candidate) -> Reservation | None:
        usable_gpus = [room.gpu for room in self._rooms if usable(room.gpu, candidate.request.gpu_count)]
        ends = [
            (expected_end_seconds(held, self._rules.default_duration_seconds, self._now_seconds), held)
            for held in self._held
        ]
        return reserve(candidate, usable_gpus, self._free, ends, self._now_seconds)

    def _explain_quota(self, candidate: Candidate) -> str:
        quota, own = self._quotas[candidate.owner_uid], self._owned[candidate.owner_uid]
        if quota.jobs is not None and own.jobs >= quota.jobs:
            return f"waits for its owner's other jobs: {own.jobs} run, and the quota is {quota.jobs}"
        most = format_memory(quota.memory_bytes or 0)
        return f"waits for its owner's other jobs: they hold {format_memory(own.memory_bytes)} of a quota of {most}"

    def _what_is_free(self, candidate: Candidate) -> str:
        rooms = [room for room in self._rooms if usable(room.gpu, candidate.request.gpu_count)]
        if not rooms:
            return "no GPU answers"
        best = max(rooms, key=lambda room: self._free[room.gpu.uuid])
        where = f"{format_memory(self._free[best.gpu.uuid])} free of {format_memory(best.capacity_bytes)}"
        if len(rooms) > 1:
            where = f"at most {where} on any of {len(rooms)}"
        return where + (f", {format_memory(best.outsiders_bytes)} held by others" if best.outsiders_bytes else "")


@dataclass(slots=True)
class _Owned:
    """What one user holds."""

    memory_bytes: int = 0
    compute_share: float = 0.0
    jobs: int = 0

    def add(self, held: Held) -> None:
        self.memory_bytes += sum(part.memory_bytes for part in held.slices)
        self.compute_share += held.compute_share * len(held.slices)
        self.jobs += 1


def _owned(held: Sequence[Held]) -> defaultdict[int, _Owned]:
    owned: defaultdict[int, _Owned] = defaultdict(_Owned)
    for each in held:
        owned[each.owner_uid].add(each)
    return owned


def _held(candidate: Candidate, slices: tuple[Slice, ...], now_seconds: float) -> Held:
    return Held(
        candidate.job_id,
        candidate.owner_uid,
        slices,
        now_seconds,
        candidate.request.compute_share or 0.0,
        candidate.duration_seconds,
    )
