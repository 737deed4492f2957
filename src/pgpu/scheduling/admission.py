"""One round of admission: which waiting jobs start now, on which GPUs, and why the others wait.

Grants never exceed the memory that is really there, nor the whole of a GPU's time, and jobs on one GPU share it in one mode.
Candidates are considered in the order of `order`. The first one that does not fit gets a reservation; jobs after it start
only if they do not delay it (backfilling), so GPUs stay busy. If it is overdue, its GPUs stay reserved until it starts, so no
job starves. A batch that does not fit at once starts in even
waves, and a job may wait for a less busy GPU (`start_rule`). Needs, durations and measured demands are inputs.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

from pgpu.model import Gpu, Request, SharingMode, Slice
from pgpu.scheduling.admission_round import (
    NO_PRECEDENCE,
    Admission,
    Candidate,
    Cause,
    Contender,
    Grant,
    Held,
    KeptMemory,
    OrderRules,
    OverdueReservation,
    Precedence,
    PredictSlowdowns,
    Quota,
    Waits,
    predict_nothing,
)
from pgpu.scheduling.capacity import GpuRoom
from pgpu.scheduling.free_capacity import (
    FreeCapacity,
    GpuChoice,
    explain_compute,
    explain_memory,
    explain_sharing,
    places_with_one_more,
)
from pgpu.scheduling.order import NO_PLAN, BatchPlan, PlannedOrder, RoundOrder
from pgpu.scheduling.quota_usage import MOST_AT_ONCE, QuotaLimit, QuotaUsage, admit_without_gpu, split_queue
from pgpu.scheduling.reservations import (
    Reservation,
    RoundState,
    expected_end_seconds,
    expected_ends,
    possible_hosts,
    renew_reservation,
    reserve,
)
from pgpu.scheduling.slow_start import split_new_families
from pgpu.scheduling.start_rule import StartRule, may_be_held
from pgpu.scheduling.virtual_clocks import Machine, UserClocks, contenders_of
from pgpu.structs import Struct, replace

_LIMITS = {Cause.QUOTA: QuotaLimit.FULL, Cause.QUOTA_TURN: QuotaLimit.KEPT}
_CAUSES = {limit: cause for cause, limit in _LIMITS.items()}
_REASONS = {
    Cause.CROWD: "waits for another job without a GPU to end: as many run as may",
    Cause.PLAN: "waits its turn: its batch ends sooner if it starts later",
}


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
    predict: PredictSlowdowns = predict_nothing,
) -> Admission:
    """Decide which waiting requests start now, and on which GPUs.

    Pure: the same arguments always give the same result. A job on one GPU gets the smallest free MIG instance that covers it,
    else the GPU that it fits best. The GPUs of one job are distinct. Grants of this round change places if that lets one more
    job start. An expired job still starts if it fits now.

    Args:
        rooms: Every GPU and MIG instance on which jobs may start, in NVML index order.
        queue: Waiting requests, oldest first.
        now_seconds: Seconds since the epoch.
        held: Every job with slices in the granted amounts of the rooms.
        quotas: By UID; a user that is missing has none.
        rules: Time constants of the order.
        plan: Batch with jobs that go first, in its order (`plan_batch`); no memory is reserved for them.
        precedence: State of the order that the round before returned, with the clocks as they are now.
        closed_gpus: Number of further GPUs that are closed to new jobs; only for the reasons.
        most_without_gpu: Limit on running jobs without a GPU, which have a queue of their own.
        predict: Slowdowns of profiled programs together.
    """
    quotas, rules = quotas or {}, rules or OrderRules()
    allowances = QuotaUsage(held, quotas, rules, now_seconds)
    line, rest = split_queue(queue)
    contenders = contenders_of(line)
    line, of_new_families = split_new_families(line, held, len(rooms), now_seconds)
    clocks = UserClocks(
        precedence.time,
        contenders,
        held,
        machine_of(rooms),
        quotas=quotas,
        rules=rules,
        now_seconds=now_seconds,
    )
    round_ = _Round(rooms, held, clocks, rules, now_seconds, plan=plan, allowances=allowances)
    round_.closed_gpus = closed_gpus
    round_.start_rule = StartRule(rooms, () if round_.planned else line, held, now_seconds, predict)
    round_.decide(line, precedence.reservation)
    for candidate in of_new_families:
        round_.keep_of_family(candidate)
    without_gpu = admit_without_gpu(rest, held, quotas, allowances, now_seconds, most_at_once=most_without_gpu)
    return Admission(
        (*round_.grants, *without_gpu.grants),
        Waits([*round_.waits, *without_gpu.waits], round_.explain, len(round_.waits)),
        (*round_.expired, *without_gpu.expired),
        round_.reservation,
        clocks.after(round_.contenders(), has_late=bool(round_.order.late_ids)),
        clocks.turns,
        round_.order.late_ids,
        holds_back=round_.start_rule.has_held_back or bool(of_new_families),
        kept=round_.kept,
    )


def machine_of(rooms: Sequence[GpuRoom]) -> Machine:
    """Return what shares of these GPUs are relative to."""
    instance_bytes = {room.gpu.uuid: room.gpu.memory_bytes for room in rooms if room.gpu.is_instance}
    return Machine(sum(room.gpu.memory_bytes for room in rooms), len(rooms), instance_bytes)


class _JobReservation(Struct, frozen=True):
    candidate: Candidate
    reservation: Reservation


class _Round:
    """State of one round for jobs with GPUs: what is free, granted and reserved."""

    def __init__(
        self,
        rooms: Sequence[GpuRoom],
        held: Sequence[Held],
        clocks: UserClocks,
        rules: OrderRules,
        now_seconds: float,
        *,
        plan: BatchPlan,
        allowances: QuotaUsage,
    ) -> None:
        self.grants: list[Grant] = []
        self.waits: list[tuple[Candidate, Cause]] = []
        self.expired: list[str] = []
        self.reservation: OverdueReservation | None = None
        self.closed_gpus = 0
        self.start_rule = StartRule((), (), (), now_seconds)
        self._rooms = rooms
        self._gpus = {room.gpu.uuid: room.gpu for room in rooms}
        self._choice = GpuChoice(rooms)
        self._space = FreeCapacity.of(rooms)
        self._most_free = self._most_yielding = 0
        self._note_free()
        self._rules = rules
        self._now_seconds = now_seconds
        self._held = list(held)
        # Grants may change places until an attempt found no solution, or until one is bound to its GPU.
        self._may_move = True
        # Of the overdue job that GPUs are reserved for, and of the first job of the order that does not fit.
        self._reservations: list[_JobReservation] = []
        self._reservation_before: OverdueReservation | None = None
        # Texts of `explain_memory`, which depend on the request alone once the round is over; an array's jobs share one.
        self._shortages: dict[Request, str] = {}
        self._has_first = False
        self._allowances = allowances
        self.planned = PlannedOrder(plan, held)
        self._clocks = clocks
        self.order = RoundOrder(clocks, self.planned, rules, now_seconds)

    def decide(self, queue: Sequence[Candidate], before: OverdueReservation | None) -> None:
        """Consider every job of the queue: the one that GPUs are reserved for, then the others in order.

        Args:
            queue: Oldest first.
            before: The reservation of the round before.
        """
        order = self.order.of(queue)
        first = next(order, None)
        if first is None:
            return
        reserved = None if before is None else next((job for job in queue if job.job_id == before.job_id), None)
        if before is not None and reserved is not None:
            if _takes_over(first, reserved, before) and not self.planned:
                reserved, before = first, replace(before, job_id=first.job_id)
            self._reservation_before = before
            self.consider(reserved)
        twin: Candidate | None = None
        for candidate in chain((first,), order):
            if candidate is reserved:
                continue
            if twin is not None and self._waits_like(twin, candidate):
                self.waits.append((candidate, Cause.MEMORY))
                continue
            self.consider(candidate)
            waits = bool(self.waits) and self.waits[-1][0] is candidate and self.waits[-1][1] is Cause.MEMORY
            twin = candidate if waits and not self.planned and not self.order.is_overdue(candidate) else None

    @property
    def kept(self) -> tuple[KeptMemory, ...]:
        """What is reserved."""
        return tuple(
            KeptMemory(
                each.candidate.owner_uid,
                each.candidate.request.memory_bytes,
                each.reservation.start_seconds,
                each.reservation.spare_bytes,
            )
            for each in self._reservations
        )

    def contenders(self) -> dict[Contender, bool]:
        """Return the users with jobs that go on waiting, and whether one of them waits for other jobs.

        Not so if all wait for their owner's quota or own family, or nothing can host them.
        """
        found: dict[Contender, bool] = {}
        hostable: dict[tuple[Request, str | None], bool] = {}  # the jobs of an array share one request
        count_active = 0
        for candidate, cause in self.waits:
            contender = candidate.contender
            if found.get(contender):
                continue
            key = candidate.request, candidate.gpu_uuid
            if key not in hostable:
                hostable[key] = bool(possible_hosts(self._rooms, candidate))
            found[contender] = hostable[key] and cause not in _LIMITS and cause is not Cause.FAMILY
            count_active += found[contender]
            if count_active == len(self._clocks.contenders):
                break
        return found

    def _waits_like(self, twin: Candidate, candidate: Candidate) -> bool:
        """Whether a candidate waits for memory as the one before it does, which differs from it in id and time alone.

        What the first of ten thousand elements of an array reserves, or cannot, is what each of the others would.
        """
        alike = replace(candidate, job_id=twin.job_id, eligible_at_seconds=twin.eligible_at_seconds)
        return alike == twin and not self.order.is_overdue(candidate)

    def consider(self, candidate: Candidate) -> None:
        """Grant one candidate, or add it to those that wait or have expired."""
        # Three steps of rising cost: a check without the GPUs, moving grants of this round, and trying the GPUs.
        cause = self._hindrance(candidate)
        if cause is Cause.MEMORY and self._make_room(candidate):
            cause = None
        slices = None if cause else self._place(candidate)
        if slices is not None:
            self._grant(candidate, slices)
        elif self._is_expired(candidate):
            self.expired.append(candidate.job_id)
        else:
            self._keep_waiting(candidate, cause or self._obstacle(candidate))

    def keep_of_family(self, candidate: Candidate) -> None:
        """Add a candidate of a new family to those that wait or have expired; nothing is reserved for it."""
        if self._is_expired(candidate):
            self.expired.append(candidate.job_id)
        else:
            self.waits.append((candidate, Cause.FAMILY))

    def _keep_quota(self, candidate: Candidate, *, since_seconds: float | None = None) -> None:
        # Not for a job that waits for GPUs: other jobs of its owner may use those that it cannot.
        is_unreserved = self._allowances.has_unreserved(candidate.owner_uid)
        if is_unreserved and possible_hosts(self._rooms, candidate):
            self._allowances.keep(candidate, since_seconds=since_seconds)

    def _has_reservation(self, candidate: Candidate) -> bool:
        return self.reservation is not None and self.reservation.job_id == candidate.job_id

    def _is_expired(self, candidate: Candidate) -> bool:
        return candidate.deadline_seconds is not None and candidate.deadline_seconds <= self._now_seconds

    def explain(self, candidate: Candidate, cause: Cause) -> str:
        """Format why a candidate waits, with the figures of the end of the round."""
        if cause in _LIMITS:
            return self._allowances.explain(candidate, _LIMITS[cause])
        if cause is Cause.FAMILY:
            count = max(candidate.most_of_family or 0, len(self._rooms))
            return f"waits for a job of its family to end: {count} at once run until more of it have ended"
        if cause in _REASONS:
            return _REASONS[cause]
        if cause in {Cause.WAVE, Cause.BUSY}:
            return self.start_rule.explain(candidate)
        if cause is Cause.TURN:
            # The first reservation that keeps it from a GPU where it fits.
            fitting, end_seconds = self._fitting_gpus(candidate), candidate.end_seconds(self._now_seconds)
            for each in self._reservations:
                if not all(each.reservation.admits(gpu, candidate, end_seconds) for gpu in fitting):
                    return self._explain_turn(candidate, each)
        own = [each for each in self._reservations if each.candidate == candidate and self._has_reservation(candidate)]
        if cause is Cause.COMPUTE:
            shortage = explain_compute(candidate, self._rooms, self._space)
        elif cause is Cause.SHARING:
            shortage = explain_sharing(candidate, self._rooms, self._space)
        else:
            shortage = self._shortages.get(candidate.request) or self._explain_memory(candidate.request)
            shortage += self._explain_growth(candidate)
        return shortage + "".join(f"; what becomes free{self._on_gpus(each)} is kept for it" for each in own)

    def _explain_memory(self, request: Request) -> str:
        found = explain_memory(request, self._rooms, self._space.free_bytes, closed_gpus=self.closed_gpus)
        self._shortages[request] = found
        return found

    def _explain_growth(self, candidate: Candidate) -> str:
        """Name what keeps a job from memory that is free; empty where too little is."""
        wanted_bytes, space = candidate.request.memory_bytes, self._space
        uuids = [
            room.gpu.uuid
            for room in self._rooms
            if candidate.can_use(room.gpu)
            and space.bytes_for(room.gpu.uuid, candidate) < wanted_bytes <= space.free_bytes[room.gpu.uuid]
        ]
        if len(uuids) < candidate.request.gpu_count:
            return ""
        is_held = any(space.holds_back(uuid, candidate) for uuid in uuids)
        return "; a running job that needs more goes first" if is_held else "; 5% of a GPU are kept for jobs that grow"

    def _explain_turn(self, candidate: Candidate, reserved: _JobReservation) -> str:
        first = reserved.candidate
        whose = f"job {first.job_id}" if first.owner_uid == candidate.owner_uid else "another user's job"
        needs_more_than_memory = any(
            each.request.compute_share or each.mode is not SharingMode.TIME_SLICE for each in (first, candidate)
        )
        what = "what" if needs_more_than_memory else "the memory that"
        return f"waits its turn: {what} is free{self._on_gpus(reserved)} is kept for {whose}"

    def _on_gpus(self, reserved: _JobReservation) -> str:
        """Name the reserved GPUs, unless all GPUs are reserved."""
        places = [self._gpus[uuid].place for uuid in reserved.reservation.spare_bytes]
        if len(places) == len(self._rooms):
            return ""
        return f" on GPU {places[0]}" if len(places) == 1 else f" on GPUs {', '.join(places)}"

    def _hindrance(self, candidate: Candidate) -> Cause | None:
        # Found without trying the GPUs one by one: the queue may be ten thousand long.
        limit = self._allowances.limit_on(candidate)
        if limit is not None:
            return _CAUSES[limit]
        if self.planned and self.planned.holds_back(candidate):
            return Cause.PLAN
        if candidate.request.memory_bytes > (self._most_yielding if candidate.uses_headroom else self._most_free):
            return Cause.MEMORY
        if self.start_rule and self.start_rule.holds_back(candidate):
            return self.start_rule.cause(candidate)
        return self._space.hindrance(candidate)

    def _make_room(self, candidate: Candidate) -> bool:
        # None of this round's grants has started, so they may move to other GPUs if one more job fits then.
        if not (self._may_move and self.grants) or candidate.gpu_uuid or self._reservations or self.planned:
            return False
        granted = self._held[-len(self.grants) :]  # Grants are appended to both lists together.
        free_bytes = {
            uuid: self._space.bytes_for(uuid, candidate, yields=False)
            for uuid, gpu in self._gpus.items()
            if not gpu.is_instance and self._space.tenants[uuid].mode in {None, SharingMode.TIME_SLICE}
        }
        places = places_with_one_more(candidate, granted, free_bytes)
        self._may_move = places is not None
        for number, held in enumerate(granted if places else ()):
            if places and held.job_id in places:
                place = number - len(self.grants)
                slices = (replace(held.slices[0], gpu_uuid=places[held.job_id]),)
                moved = self._held[place] = replace(held, slices=slices)
                self._space.give(held, self._gpus)
                self._space.take(moved, self._gpus)
                if self.start_rule:
                    self.start_rule.give(held)
                    self.start_rule.take(moved)
                self.grants[place] = replace(self.grants[place], slices=slices)
        if places:
            self._note_free()
        return self._may_move

    def _note_free(self) -> None:
        free = self._space.free_bytes
        self._most_free = max(free.values(), default=0)
        yielding = (free[uuid] + more for uuid, more in self._space.yielded_bytes.items() if uuid in free)
        self._most_yielding = max(self._most_free, max(yielding, default=0))

    def _place(self, candidate: Candidate) -> tuple[Slice, ...] | None:
        """Choose GPUs for a candidate; one of unknown need gets all that is free there.

        It gets its request alone if more would exceed a quota or delay a job with a reservation.
        """
        larger = self._enlarge_request(candidate) if candidate.takes_free else candidate
        if larger != candidate and self._allowances.limit_on(larger) is None:
            slices = self._place_request(larger)
            if slices is not None:
                return slices
        return self._place_request(candidate)

    def _enlarge_request(self, candidate: Candidate) -> Candidate:
        count = candidate.request.gpu_count
        able = [
            room.gpu for room in self._rooms if candidate.can_use(room.gpu) and self._space.admits(room.gpu, candidate)
        ]
        free = sorted((self._space.bytes_for(gpu.uuid, candidate) for gpu in able), reverse=True)
        if len(free) < count:
            return candidate
        left_bytes = self._allowances.left_bytes(candidate.owner_uid)
        amount = free[count - 1] if left_bytes is None else min(free[count - 1], left_bytes // count)
        return candidate.with_memory(max(candidate.request.memory_bytes, amount))

    def _place_request(self, candidate: Candidate) -> tuple[Slice, ...] | None:
        request, end_seconds = candidate.request, candidate.end_seconds(self._now_seconds)
        fitting = [
            gpu
            for gpu in self._fitting_gpus(candidate)
            if all(each.reservation.admits(gpu, candidate, end_seconds) for each in self._reservations)
        ]
        if len(fitting) < request.gpu_count:
            return None
        if self.start_rule:
            fitting = self.start_rule.least_busy(fitting, candidate)
        chosen = self._choice.choose(candidate, fitting, self._space)
        return tuple(Slice(gpu.uuid, request.memory_bytes, request.compute_share) for gpu in chosen)

    def _fitting_gpus(self, candidate: Candidate) -> list[Gpu]:
        able = [
            room.gpu
            for room in self._rooms
            if self._space.hosts(room.gpu, candidate, yields=True)
            and not (candidate.job_id not in self.order.late_ids and self.planned.has_enough(room.gpu.uuid))
            and not (self.start_rule and not self.start_rule.admits(room.gpu.uuid, candidate, self._space))
        ]
        # Headroom is used only if too few GPUs have room without it.
        within = [gpu for gpu in able if self._space.hosts(gpu, candidate)] if candidate.uses_headroom else able
        return within if len(within) >= candidate.request.gpu_count else able

    def _grant(self, candidate: Candidate, slices: tuple[Slice, ...]) -> None:
        candidate = candidate.with_memory(slices[0].memory_bytes)
        end_seconds = candidate.end_seconds(self._now_seconds)
        for part in slices:
            for each in self._reservations:
                each.reservation.subtract(self._gpus[part.gpu_uuid], candidate, end_seconds)
        self._held.append(_held(candidate, slices, self._now_seconds))
        self._space.take(self._held[-1], self._gpus)
        if self.start_rule:
            self.start_rule.take(self._held[-1])
        self._note_free()
        self._may_move = self._may_move and candidate.gpu_uuid is None and not candidate.request.gpu_models
        self._allowances.note_grant(candidate, self._held[-1])
        is_late = candidate.job_id in self.order.late_ids
        self._clocks.note_grant(candidate, self._held[-1], is_late=is_late)
        self.planned.note_grant(slices)
        self.grants.append(Grant(candidate.job_id, slices, is_late, candidate.mode))

    def _obstacle(self, candidate: Candidate) -> Cause:
        """Return why a candidate was not placed although `_hindrance` found nothing; the start rule notes what it holds back."""
        memory_bytes, count = candidate.request.memory_bytes, candidate.request.gpu_count
        free = self._space.free_bytes
        if any(self.planned.has_enough(uuid) and amount >= memory_bytes for uuid, amount in free.items()):
            return Cause.PLAN
        if len(self._fitting_gpus(candidate)) >= count:
            return Cause.TURN
        if self.start_rule and may_be_held(candidate, self._now_seconds):
            hosts = [room.gpu.uuid for room in self._rooms if self._space.hosts(room.gpu, candidate, yields=True)]
            if hosts:
                self.start_rule.hold_back(candidate, hosts)
                return self.start_rule.cause(candidate)
        able = [
            room.gpu
            for room in self._rooms
            if candidate.can_use(room.gpu) and self._space.bytes_for(room.gpu.uuid, candidate) >= memory_bytes
        ]
        if len(able) < count:
            return Cause.MEMORY
        return Cause.COMPUTE if sum(self._space.admits(gpu, candidate) for gpu in able) >= count else Cause.SHARING

    def _keep_waiting(self, candidate: Candidate, cause: Cause) -> None:
        if self.planned:
            self.planned.note_wait(candidate)
        is_overdue = self.order.is_overdue(candidate)
        # Compared by identity: members of an Enum are hashed in Python, and a queue may be ten thousand long.
        is_limited = cause is Cause.QUOTA or cause is Cause.QUOTA_TURN
        if is_overdue or is_limited:
            since_seconds = candidate.eligible_at_seconds + self._rules.patience_seconds
            self._keep_quota(candidate, since_seconds=since_seconds if is_overdue else None)
        before = self._reservation_before
        if cause is Cause.WAVE or cause is Cause.BUSY:
            # No memory is reserved for it, since it fits, and none for a job behind a wave, which would delay the next one.
            self._has_first = self._has_first or cause is Cause.WAVE
        elif is_limited:
            pass
        elif before is not None and before.job_id == candidate.job_id:
            self._reserve_until_start(candidate)
        elif not self._has_first and not self.planned.contains(candidate):
            if is_overdue and self.reservation is None:
                self._reserve_until_start(candidate)
            else:
                self._reserve(candidate)
        self.waits.append((candidate, cause))

    def _reserve_until_start(self, candidate: Candidate) -> None:
        """Reserve GPUs for an overdue job in this round and the next ones, or renew its reservation."""
        state = RoundState(self._rooms, self._space, self._held, self._rules, self._now_seconds)
        found = renew_reservation(self._reservation_before, candidate, state)
        if found is not None:
            self.reservation, reservation = found
            self._reservations += [_JobReservation(candidate, reservation)] if reservation is not None else []

    def _reserve(self, candidate: Candidate) -> None:
        """Reserve memory for the first job of the order that does not fit: beside an overdue job, or after it."""
        gpus = [room.gpu for room in self._rooms if candidate.can_use(room.gpu)]
        space = self._space.copy()
        default_seconds, now_seconds = self._rules.default_duration_seconds, self._now_seconds
        ends = expected_ends(self._held, default_seconds, now_seconds)
        for each in self._reservations:
            slices = tuple(Slice(uuid, each.candidate.request.memory_bytes) for uuid in each.reservation.spare_bytes)
            later = _held(each.candidate, slices, each.reservation.start_seconds)
            space.take(later, self._gpus)
            # The overdue job has not started: its run begins at the start that is expected for it.
            ends.append((max(now_seconds, expected_end_seconds(later, default_seconds, now_seconds)), later))
        found = reserve(candidate, gpus, space, ends, now_seconds)
        if found is not None:
            self._has_first = True
            self._reservations.append(_JobReservation(candidate, found))


def _takes_over(first: Candidate, reserved: Candidate, reservation: OverdueReservation) -> bool:
    """Whether GPUs reserved for one job go to the first one of the order: another user's that needs as much of them.

    Then they drain for a use of all that is reserved, and the order decides whose.
    """
    return (
        first.owner_uid != reserved.owner_uid
        and first.request.gpu_count >= reserved.request.gpu_count
        and first.request.memory_bytes >= reserved.request.memory_bytes
        and first.compute_share >= reserved.compute_share
        and first.gpu_uuid in {None, *reservation.gpu_uuids}
    )


def _held(candidate: Candidate, slices: tuple[Slice, ...], now_seconds: float) -> Held:
    return Held(
        candidate.job_id,
        candidate.owner_uid,
        slices,
        now_seconds,
        candidate.compute_share,
        candidate.duration_seconds,
        candidate.mode,
        candidate.batch,
        uses_headroom=candidate.uses_headroom,
        usual_demand=candidate.usual_demand,
        profiled=candidate.profiled,
        family=candidate.family,
        grows=candidate.grows,
    )
