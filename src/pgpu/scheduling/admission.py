"""Who starts now, and why the others wait.

Nothing is granted past the memory that is really there, nor past the whole of a GPU's time, and jobs that share a GPU share it
in one mode. The first job in the order that does not fit gets a reservation,
and nobody who comes after it may delay it, so the GPU is kept full. Who has waited too long may go first, and GPUs are kept
for one of them until it starts, so nobody starves. It refuses to guess: what a job needs and how long it runs are told.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from pgpu.model import Gpu, SharingMode, Slice
from pgpu.scheduling.admission_round import (
    NO_PRECEDENCE,
    Admission,
    Candidate,
    Cause,
    Grant,
    Held,
    OverdueReservation,
    Precedence,
    Quota,
    Waits,
)
from pgpu.scheduling.capacity import GpuRoom
from pgpu.scheduling.cpu_queue import MOST_AT_ONCE, admit_without_gpu, split_queue
from pgpu.scheduling.free_capacity import FreeCapacity, waits_for_company, waits_for_compute, waits_for_memory
from pgpu.scheduling.gpu_choice import GpuChoice, places_with_one_more
from pgpu.scheduling.order import NO_PLAN, BatchPlan, FairOrder, Machine, OrderRules, OverdueJobs, PlannedOrder
from pgpu.scheduling.quota_usage import QuotaLimit, QuotaUsage
from pgpu.scheduling.reservations import (
    NEVER,
    Reservation,
    RoundState,
    expected_end_seconds,
    possible_hosts,
    renew_reservation,
    reserve,
)


def admit(
    rooms: Sequence[GpuRoom],
    queue: Sequence[Candidate],
    now_seconds: float,
    *,
    held: Sequence[Held] = (),
    quotas: Mapping[int, Quota] | None = None,
    rules: OrderRules | None = None,
    plan: BatchPlan = NO_PLAN,
    precedence: Precedence = NO_PRECEDENCE,
    closed_gpus: int = 0,
    most_without_gpu: int = MOST_AT_ONCE,
) -> Admission:
    """Decide which waiting requests start now, and on which GPUs.

    Pure: the same arguments always give the same answer. A job on one GPU gets the smallest free MIG instance that covers
    it, whole; where there is none, the GPU that it fits best. One job's are distinct. What was granted in this round changes
    places for the next in turn that does not fit otherwise. A job whose wait has run out still starts if it fits now.

    Args:
        rooms: Every GPU and MIG instance on which something may start, in NVML index order.
        queue: Waiting requests, oldest first.
        now_seconds: Seconds since the epoch.
        held: Every job whose slices are part of what the rooms have granted.
        quotas: By UID; who is missing has none.
        rules: How long things are taken to be.
        plan: Whose jobs go first and in which order (`plan_batch`); nobody keeps memory for one of them.
        precedence: What the rounds before left: for whom GPUs are kept, and who went first.
        closed_gpus: How many others there are, on which nothing may start: to be told to those who wait.
        most_without_gpu: How many jobs without a GPU may be held at a time; they stand in a line of their own.
    """
    seats = GpuChoice(rooms)
    allowances = QuotaUsage(held, quotas or {}, rules or OrderRules(), now_seconds)
    round_ = _Round(
        rooms, held, quotas or {}, rules or OrderRules(), now_seconds, seats=seats, plan=plan, allowances=allowances
    )
    round_.closed_gpus = closed_gpus
    line, rest = split_queue(queue)
    for part in round_.in_turn(round_.let_overdue_go_first(line, precedence)):
        for candidate in part:
            round_.consider(candidate)
    crowd = admit_without_gpu(rest, held, quotas or {}, allowances, now_seconds, most_at_once=most_without_gpu)
    return Admission(
        (*round_.grants, *crowd.grants),
        Waits([*round_.waits, *crowd.waits], round_.explain, len(round_.waits)),
        (*round_.expired, *crowd.expired),
        round_.reservation,
    )


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
        seats: GpuChoice,
        plan: BatchPlan,
        allowances: QuotaUsage,
    ) -> None:
        self.grants: list[Grant] = []
        self.waits: list[tuple[Candidate, Cause]] = []
        self.expired: list[str] = []
        self.reservation: OverdueReservation | None = None
        self.closed_gpus = 0
        self._rooms = rooms
        self._gpus = {room.gpu.uuid: room.gpu for room in rooms}
        self._seats = seats
        self._space = FreeCapacity.of(rooms)
        self._most_free = max(self._space.free_bytes.values(), default=0)
        self._quotas = quotas
        self._rules = rules
        self._now_seconds = now_seconds
        self._held = list(held)
        self._may_move = True
        """Whether what this round granted may still change places: until that helped nobody once."""
        self._reservations: list[_For] = []
        """Of the overdue job that GPUs are kept for, and of the first of the order that does not fit."""
        self._has_first = False
        self._allowances = allowances
        self.planned = PlannedOrder(plan, held)
        self._machine = Machine(sum(room.capacity_bytes for room in rooms), len(rooms))
        self.turns = FairOrder(self._machine, allowances.shares(self._machine), quotas, rules, now_seconds)

    def let_overdue_go_first(self, queue: Sequence[Candidate], precedence: Precedence) -> Sequence[Candidate]:
        """Look at the oldest overdue job of each user, and return whose turn is still to come."""
        heads = OverdueJobs(precedence, self._machine.capacity_bytes, self._quotas, self._rules, self._now_seconds)
        planned = {candidate.job_id for candidate in queue if self.planned.knows(candidate)} if self.planned else set()
        answered = {
            each.job_id for each in heads.of(queue, planned) if self._go_first(each, heads, precedence.reservation)
        }
        return [candidate for candidate in queue if candidate.job_id not in answered] if answered else queue

    def in_turn(self, queue: Sequence[Candidate]) -> Iterator[Iterable[Candidate]]:
        """Yield them in turn: of each priority the jobs of the plan, and then the rest."""
        if not self.planned:
            yield self.turns.of(queue)
            return
        for _, group in groupby(sorted(queue, key=_rank), key=_rank):
            equals = list(group)
            yield self.planned.first(equals)
            yield self.turns.of([candidate for candidate in equals if not self.planned.knows(candidate)])

    def consider(self, candidate: Candidate) -> None:
        """Grant, keep waiting or give up one candidate."""
        cause = self._hindrance(candidate)
        if cause is Cause.MEMORY and self._makes_room(candidate):
            cause = None
        slices = None if cause else self._placed(candidate)
        if slices is not None:
            self._grant(candidate, slices)
        elif not self._gives_up(candidate):
            self._keep_waiting(candidate, cause or self._obstacle(candidate))

    def _go_first(self, candidate: Candidate, heads: OverdueJobs, before: OverdueReservation | None) -> bool:
        """Answer an overdue candidate now, if it is its turn; its owner's quota is kept for it where it could be hosted."""
        bar = self._allowances.bar(candidate)
        slices = None
        if bar is None and heads.may_go_first(candidate):
            slices = self._placed(candidate, is_planned=False)
            if slices is not None:
                heads.granted(candidate.asking(slices[0].memory_bytes))
                self._grant(candidate, slices, went_first=True)
                return True
            if not self._is_late(candidate) and self.reservation is None:
                self._keep_gpus(candidate, before)
        if self._is_late(candidate):
            return False
        self._keep_quota(candidate, since_seconds=candidate.eligible_at_seconds + self._rules.patience_seconds)
        if not self._has_reservation(candidate):
            return False
        if self.planned:
            self.planned.kept_waiting(candidate)
        self.waits.append((candidate, Cause.MEMORY))
        return True

    def _keep_quota(self, candidate: Candidate, *, since_seconds: float | None = None) -> None:
        """Keep its owner's quota for a job, unless it waits for GPUs: others of its owner may use those that it cannot."""
        if possible_hosts(self._rooms, candidate):
            self._allowances.keep(candidate, since_seconds=since_seconds)

    def _keep_gpus(self, candidate: Candidate, before: OverdueReservation | None) -> None:
        """Keep GPUs for an overdue candidate, if any could host it."""
        moment = RoundState(self._rooms, self._space, self._held, self._rules, self._now_seconds)
        found = renew_reservation(before, candidate, moment)
        if found is not None:
            self.reservation, reservation = found
            self._reservations += [_For(candidate, reservation)] if reservation is not None else []

    def _has_reservation(self, candidate: Candidate) -> bool:
        return self.reservation is not None and self.reservation.job_id == candidate.job_id

    def _is_late(self, candidate: Candidate) -> bool:
        return candidate.deadline_seconds is not None and candidate.deadline_seconds <= self._now_seconds

    def _gives_up(self, candidate: Candidate) -> bool:
        if self._is_late(candidate):
            self.expired.append(candidate.job_id)
        return self._is_late(candidate)

    def explain(self, candidate: Candidate, cause: Cause) -> str:
        """Say why a candidate waits, with the figures of the end of the round."""
        if cause in _BARS:
            return self._allowances.explain(candidate, _BARS[cause])
        if cause is Cause.CROWD:
            return "waits for another job without a GPU to end: as many run as may"
        if cause is Cause.PLAN:
            return "waits its turn: its batch ends sooner if it starts later"
        found = self._kept_from(candidate) if cause is Cause.TURN else None
        if found is not None:
            is_own = found.candidate.owner_uid == candidate.owner_uid
            whose = f"job {found.candidate.job_id}" if is_own else "another user's job"
            what = "what" if _is_told_by_more_than_memory(found.candidate, candidate) else "the memory that"
            return f"waits its turn: {what} is free{self._on_gpus(found)} is kept for {whose}"
        own = [each for each in self._reservations if each.candidate == candidate and self._has_reservation(candidate)]
        kept = "".join(f"; what becomes free{self._on_gpus(each)} is kept for it" for each in own)
        return self._shortage(candidate, cause) + kept

    def _shortage(self, candidate: Candidate, cause: Cause) -> str:
        if cause is Cause.COMPUTE:
            return waits_for_compute(candidate, self._rooms, self._space)
        if cause is Cause.SHARING:
            return waits_for_company(candidate, self._rooms, self._space)
        free_bytes = self._space.free_bytes
        return waits_for_memory(candidate.request, self._rooms, free_bytes, closed_gpus=self.closed_gpus)

    def _kept_from(self, candidate: Candidate) -> "_For | None":
        """Return whose reservation keeps a candidate from memory that is free."""
        fitting = self._fitting(candidate)
        hindering = (
            each for each in self._reservations if not all(self._admits(each, gpu, candidate) for gpu in fitting)
        )
        return next(hindering, None)

    def _on_gpus(self, reserved: "_For") -> str:
        """Name its GPUs, where there are others."""
        places = [self._gpus[uuid].place for uuid in reserved.reservation.spare_bytes]
        if len(places) == len(self._rooms):
            return ""
        return f" on GPU {places[0]}" if len(places) == 1 else f" on GPUs {', '.join(places)}"

    def _hindrance(self, candidate: Candidate) -> Cause | None:
        """What keeps a candidate from being placed at all; told without looking at each GPU."""
        bar = self._allowances.bar(candidate)
        if bar is not None:
            return _CAUSES[bar]
        if self.planned and self.planned.holds_back(candidate):
            return Cause.PLAN
        if candidate.request.memory_bytes > self._most_free:
            return Cause.MEMORY
        return self._space.hindrance(candidate)

    def _makes_room(self, candidate: Candidate) -> bool:
        """Let those change places whom this round granted and nobody started yet, if then one more fits."""
        if not (self._may_move and self.grants) or candidate.gpu_uuid or self._reservations or self.planned:
            return False
        granted = self._held[-len(self.grants) :]
        free_bytes = {
            uuid: self._space.free_bytes[uuid]
            for uuid, gpu in self._gpus.items()
            if not gpu.is_instance and self._space.tenants[uuid].mode in {None, SharingMode.TIME_SLICE}
        }
        places = places_with_one_more(candidate, granted, free_bytes)
        self._may_move = places is not None
        for number, held in enumerate(granted if places else ()):
            if places and held.job_id in places:
                self._move(number - len(self.grants), held, places[held.job_id])
        return self._may_move

    def _move(self, place: int, held: Held, gpu_uuid: str) -> None:
        slices = (replace(held.slices[0], gpu_uuid=gpu_uuid),)
        self._space.give(held, self._gpus)
        self._held[place] = replace(held, slices=slices)
        self._space.take(self._held[place], self._gpus)
        self._most_free = max(self._space.free_bytes.values())
        self.grants[place] = replace(self.grants[place], slices=slices)

    def _placed(self, candidate: Candidate, *, is_planned: bool = True) -> tuple[Slice, ...] | None:
        """Of unknown need: with all that is free, unless that would pass a quota or delay somebody who is before it."""
        larger = self._taking_what_is_free(candidate) if candidate.takes_free else candidate
        if larger != candidate and self._allowances.bar(larger) is None:
            slices = self._placed_as_asked(larger, is_planned=is_planned)
            if slices is not None:
                return slices
        return self._placed_as_asked(candidate, is_planned=is_planned)

    def _taking_what_is_free(self, candidate: Candidate) -> Candidate:
        count = candidate.request.gpu_count
        able = [
            room.gpu for room in self._rooms if candidate.can_use(room.gpu) and self._space.admits(room.gpu, candidate)
        ]
        free = sorted((self._space.free_bytes[gpu.uuid] for gpu in able), reverse=True)
        if len(free) < count:
            return candidate
        left_bytes = self._allowances.left_bytes(candidate.owner_uid)
        amount = free[count - 1] if left_bytes is None else min(free[count - 1], left_bytes // count)
        return candidate.asking(max(candidate.request.memory_bytes, amount))

    def _placed_as_asked(self, candidate: Candidate, *, is_planned: bool) -> tuple[Slice, ...] | None:
        request = candidate.request
        fitting = [
            gpu
            for gpu in self._fitting(candidate, is_planned=is_planned)
            if all(self._admits(each, gpu, candidate) for each in self._reservations)
        ]
        if len(fitting) < request.gpu_count:
            return None
        chosen = self._seats.choose(candidate, fitting, self._space)
        return tuple(Slice(gpu.uuid, request.memory_bytes, request.compute_share) for gpu in chosen)

    def _fitting(self, candidate: Candidate, *, is_planned: bool = True) -> list[Gpu]:
        return [
            room.gpu
            for room in self._rooms
            if self._space.hosts(room.gpu, candidate) and not (is_planned and self.planned.has_enough(room.gpu.uuid))
        ]

    def _admits(self, reserved: "_For", gpu: Gpu, candidate: Candidate) -> bool:
        return reserved.reservation.admits(gpu, candidate, self._end_seconds(candidate))

    def _end_seconds(self, candidate: Candidate) -> float:
        return NEVER if candidate.duration_seconds is None else self._now_seconds + candidate.duration_seconds

    def _grant(self, candidate: Candidate, slices: tuple[Slice, ...], *, went_first: bool = False) -> None:
        candidate = candidate.asking(slices[0].memory_bytes)
        for part in slices:
            for each in self._reservations:
                each.reservation.let_in(self._gpus[part.gpu_uuid], candidate, self._end_seconds(candidate))
        self._held.append(_held(candidate, slices, self._now_seconds))
        self._space.take(self._held[-1], self._gpus)
        self._most_free = max(self._space.free_bytes.values())
        self._may_move = self._may_move and candidate.gpu_uuid is None
        self._allowances.granted(candidate, self._held[-1])
        self.turns.granted(candidate)
        self.planned.granted(slices)
        self.grants.append(Grant(candidate.job_id, slices, went_first, candidate.mode))

    def _obstacle(self, candidate: Candidate) -> Cause:
        memory_bytes, count = candidate.request.memory_bytes, candidate.request.gpu_count
        free = self._space.free_bytes
        if any(self.planned.has_enough(uuid) and amount >= memory_bytes for uuid, amount in free.items()):
            return Cause.PLAN
        if len(self._fitting(candidate)) >= count:
            return Cause.TURN
        able = [room.gpu for room in self._rooms if candidate.can_use(room.gpu) and free[room.gpu.uuid] >= memory_bytes]
        if len(able) < count:
            return Cause.MEMORY
        return Cause.COMPUTE if sum(self._space.admits(gpu, candidate) for gpu in able) >= count else Cause.SHARING

    def _keep_waiting(self, candidate: Candidate, cause: Cause) -> None:
        if self.planned:
            self.planned.kept_waiting(candidate)
        if cause in _BARS:
            self._keep_quota(candidate)
        elif not self._has_first and not self.planned.knows(candidate):
            self._reserve(candidate)
        self.waits.append((candidate, cause))

    def _reserve(self, candidate: Candidate) -> None:
        """Keep memory for the first of the order that does not fit: beside an overdue job, or after it."""
        gpus = [room.gpu for room in self._rooms if candidate.can_use(room.gpu)]
        space = self._space.copy()
        ends = [(self._expected_end_seconds(each), each) for each in self._held]
        for each in self._reservations:
            slices = tuple(Slice(uuid, each.candidate.request.memory_bytes) for uuid in each.reservation.spare_bytes)
            later = _held(each.candidate, slices, each.reservation.start_seconds)
            space.take(later, self._gpus)
            ends.append((max(self._now_seconds, self._expected_end_seconds(later)), later))
        found = reserve(candidate, gpus, space, ends, self._now_seconds)
        if found is not None:
            self._has_first = True
            self._reservations.append(_For(candidate, found))

    def _expected_end_seconds(self, held: Held) -> float:
        return expected_end_seconds(held, self._rules.default_duration_seconds, self._now_seconds)


def _rank(candidate: Candidate) -> int:
    return -candidate.request.priority


_BARS = {Cause.QUOTA: QuotaLimit.FULL, Cause.QUOTA_TURN: QuotaLimit.KEPT}
_CAUSES = {bar: cause for cause, bar in _BARS.items()}


@dataclass(frozen=True, slots=True)
class _For:
    """A reservation and whose it is."""

    candidate: Candidate
    reservation: Reservation


def _held(candidate: Candidate, slices: tuple[Slice, ...], now_seconds: float) -> Held:
    return Held(
        candidate.job_id,
        candidate.owner_uid,
        slices,
        now_seconds,
        candidate.compute_share,
        candidate.duration_seconds,
        candidate.mode,
    )


def _is_told_by_more_than_memory(*candidates: Candidate) -> bool:
    return any(each.request.compute_share or each.mode is not SharingMode.TIME_SLICE for each in candidates)
