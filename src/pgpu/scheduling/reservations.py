"""GPUs reserved for a job that does not fit yet, and which jobs may start there before it (backfilling).

A reservation is made for the time at which enough running jobs are expected to have ended. Another job may use its GPUs if
it ends before that time, or fits into what the reservation leaves spare. A job of unknown length never ends in time.

An overdue job keeps the same GPUs in every round until it starts: a reservation that is computed anew in each round follows
whichever GPU is best at the moment, and none of them ever drains. Only jobs that were there when the GPUs were chosen must end,
and no later one may delay it, so its wait is bounded by the time they take to drain, even if durations are wrong. If a GPU
does not drain (a service that never ends), other GPUs are chosen after some hours, and after twice as many the next time. GPUs
that briefly cannot host the job stay reserved, so that one bad reading does not start its wait again.

Source: EASY backfilling (Lifka, 1995), applied to memory and GPU time instead of nodes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from pgpu.model import Gpu
from pgpu.scheduling.admission_round import Admission, Candidate, Held, OrderRules, OverdueReservation
from pgpu.scheduling.capacity import IDLE, GpuRoom, Tenancy, has_compute, supports_mode, taken_bytes
from pgpu.scheduling.free_capacity import FreeCapacity
from pgpu.scheduling.slice_growth import kept_for_growth
from pgpu.structs import Struct, replace

# End of a job of unknown length.
NEVER = math.inf

# GPUs that cannot host their job stay reserved this long. Default: five minutes, longer than most brief uses of a GPU.
UNABLE_SECONDS = 300.0


class Reservation(Struct):
    """GPUs reserved for one job from a time on. What is spare shrinks as other jobs are let in."""

    job_id: str
    start_seconds: float
    """Expected start of the job, in seconds since the epoch."""

    spare_bytes: dict[str, int]
    """By UUID of each reserved GPU: memory that the job leaves free there."""

    spare_compute: dict[str, float]
    """The same for compute shares, 0 to 1."""

    tenancy: Tenancy = IDLE
    """Sharing of its GPUs once the job is there: decides which other jobs may stay."""

    def admits(self, gpu: Gpu, candidate: Candidate, end_seconds: float) -> bool:
        """Whether a slice of a candidate on this GPU that ends then does not delay the reserved job."""
        if gpu.uuid not in self.spare_bytes or end_seconds <= self.start_seconds:
            return True
        return (
            taken_bytes(gpu, candidate.request.memory_bytes) <= self.spare_bytes[gpu.uuid]
            and has_compute(self.spare_compute[gpu.uuid], candidate.compute_share)
            and self.tenancy.admits(candidate.mode, candidate.owner_uid)
        )

    def subtract(self, gpu: Gpu, candidate: Candidate, end_seconds: float) -> None:
        """Subtract a slice that was granted before the reserved job starts."""
        if gpu.uuid in self.spare_bytes and end_seconds > self.start_seconds:
            self.spare_bytes[gpu.uuid] -= taken_bytes(gpu, candidate.request.memory_bytes)
            self.spare_compute[gpu.uuid] -= candidate.compute_share


def expected_end_seconds(held: Held, default_duration_seconds: float, now_seconds: float) -> float:
    """Return when a job is expected to end; one past its predicted duration is expected to run as long again."""
    elapsed = max(0.0, now_seconds - held.granted_at_seconds)
    duration = held.duration_seconds if held.duration_seconds is not None else default_duration_seconds
    return held.granted_at_seconds + duration if duration > elapsed else now_seconds + elapsed


def expected_ends(
    held: Iterable[Held], default_duration_seconds: float, now_seconds: float
) -> list[tuple[float, Held]]:
    """Return each job with its expected end, in seconds since the epoch."""
    return [(expected_end_seconds(each, default_duration_seconds, now_seconds), each) for each in held]


def reserve(
    candidate: Candidate,
    gpus: Sequence[Gpu],
    space: FreeCapacity,
    ends: Sequence[tuple[float, Held]],
    now_seconds: float,
) -> Reservation | None:
    """Reserve GPUs from the earliest time at which a request will fit.

    Args:
        candidate: What must fit.
        gpus: GPUs that it can use, in order of preference.
        space: What is free now; not changed.
        ends: Every job that holds memory, with its expected end.
        now_seconds: Seconds since the epoch.

    Returns:
        None if it does not fit even after all of them ended: processes outside pgpu hold the memory.
    """
    known = {gpu.uuid: gpu for gpu in gpus}
    request = candidate.request
    for start_seconds, then in _moments(known, space, ends, now_seconds):
        fitting = [gpu.uuid for gpu in gpus if then.hosts(gpu, candidate)]
        if len(fitting) >= request.gpu_count:
            chosen = fitting[: request.gpu_count]  # `gpus` is in order of preference.
            return Reservation(
                candidate.job_id,
                start_seconds,
                {uuid: then.free_bytes[uuid] - taken_bytes(known[uuid], request.memory_bytes) for uuid in chosen},
                {uuid: then.free_compute[uuid] - candidate.compute_share for uuid in chosen},
                IDLE.with_job(candidate.mode, candidate.owner_uid),
            )
    return None


def _moments(
    gpus: Mapping[str, Gpu], space: FreeCapacity, ends: Sequence[tuple[float, Held]], now_seconds: float
) -> Iterator[tuple[float, FreeCapacity]]:
    # Now and each expected end, with what is free then: one object, changed between the steps.
    then = space.copy()
    yield now_seconds, then
    for end_seconds, group in groupby(sorted(ends, key=lambda pair: pair[0]), key=lambda pair: pair[0]):
        for _, held in group:
            then.give(held, gpus)
        yield end_seconds, then


class RoundState(Struct, frozen=True):
    """The machine in the middle of a round."""

    rooms: Sequence[GpuRoom]
    space: FreeCapacity
    held: Sequence[Held]
    """Every job that holds memory."""

    rules: OrderRules
    now_seconds: float
    """Since the epoch."""


def renew_reservation(
    kept: OverdueReservation | None, candidate: Candidate, state: RoundState
) -> tuple[OverdueReservation, Reservation | None] | None:
    """Keep the reserved GPUs of an overdue job, or choose some.

    Args:
        kept: Reservation of the round before, for any job.
        candidate: The overdue job.
        state: State of the round.

    Returns:
        What to pass on to the next round, and its effect in this one: None while its GPUs cannot host the job for a moment.
        None in all if the job would not fit even after all jobs ended.
    """
    own = kept if kept is not None and kept.job_id == candidate.job_id else None
    able = {room.gpu.uuid: room.gpu for room in possible_hosts(state.rooms, candidate)}
    ends = expected_ends(state.held, state.rules.default_duration_seconds, state.now_seconds)
    found = None
    if own is not None and state.now_seconds < own.until_seconds:
        same = [able[uuid] for uuid in own.gpu_uuids if uuid in able]
        if len(same) >= candidate.request.gpu_count:
            found = reserve(candidate, same, state.space, ends, state.now_seconds)
    if own is not None and found is not None:
        own = replace(own, unable_since_seconds=None)
    elif own is not None and _may_recover(own, state):
        # Without any GPU to read, the start of the grace period is not noted either.
        is_noted = own.unable_since_seconds is not None or not state.rooms
        return own if is_noted else replace(own, unable_since_seconds=state.now_seconds), None
    else:
        found = reserve(candidate, list(able.values()), state.space, ends, state.now_seconds)
        if found is None:
            return None
        own = _choose_anew(own, candidate, found, state)
    return own, _limit_to_promise(own, found, candidate, state)


def possible_hosts(rooms: Sequence[GpuRoom], candidate: Candidate) -> list[GpuRoom]:
    """Return the GPUs that could host a job if no other job held memory there; none if they are too few for it."""
    request = candidate.request
    able = [
        room
        for room in rooms
        if room.capacity_bytes >= request.memory_bytes
        and candidate.can_use(room.gpu)
        and supports_mode(room.gpu, request)
    ]
    return able if len(able) >= request.gpu_count else []


def _may_recover(kept: OverdueReservation, state: RoundState) -> bool:
    # Not if the administrator closed one of the GPUs: closed ones are not among the rooms.
    if not state.rooms:
        return True
    if state.now_seconds >= kept.until_seconds or not set(kept.gpu_uuids) <= {r.gpu.uuid for r in state.rooms}:
        return False
    return kept.unable_since_seconds is None or state.now_seconds < kept.unable_since_seconds + UNABLE_SECONDS


def _choose_anew(
    before: OverdueReservation | None, candidate: Candidate, found: Reservation, state: RoundState
) -> OverdueReservation:
    """Return the reservation of GPUs that replace those of `before`, if there was a reservation."""
    gpu_uuids, now_seconds = tuple(found.spare_bytes), state.now_seconds
    if before is None:
        until_seconds = max(now_seconds + state.rules.faith_seconds, found.start_seconds)
        return OverdueReservation(candidate.job_id, gpu_uuids, now_seconds, found.start_seconds, until_seconds)
    # Each further choice lasts twice as long as the one before. The promised start stays that of the first choice.
    until_seconds = now_seconds + 2 * (before.until_seconds - before.since_seconds)
    since_seconds = before.since_seconds if set(gpu_uuids) == set(before.gpu_uuids) else now_seconds
    return OverdueReservation(candidate.job_id, gpu_uuids, since_seconds, before.start_seconds, until_seconds)


def _limit_to_promise(
    kept: OverdueReservation, found: Reservation, candidate: Candidate, state: RoundState
) -> Reservation:
    # What is spare leaves the GPUs free once all earlier jobs ended, however wrong durations are.
    spare_bytes, spare_compute = dict(found.spare_bytes), dict(found.spare_compute)
    for room in state.rooms:
        uuid = room.gpu.uuid
        if uuid in spare_bytes:
            later = [each for each in state.held if _outlasts_promise(kept, each, uuid, state.now_seconds)]
            left_bytes = room.capacity_bytes - taken_bytes(room.gpu, candidate.request.memory_bytes)
            left_bytes -= sum(
                taken_bytes(room.gpu, part.memory_bytes)
                for each in later
                for part in each.slices
                if part.gpu_uuid == uuid
            )
            spare_bytes[uuid] = min(spare_bytes[uuid], left_bytes)
            spare_compute[uuid] = min(
                spare_compute[uuid], 1.0 - candidate.compute_share - sum(each.compute_share for each in later)
            )
    start_seconds = min(kept.start_seconds, found.start_seconds)
    return Reservation(kept.job_id, start_seconds, spare_bytes, spare_compute, found.tenancy)


def _outlasts_promise(kept: OverdueReservation, held: Held, gpu_uuid: str, now_seconds: float) -> bool:
    """Whether a job on this GPU was granted after the GPUs were chosen and need not end before the promised start."""
    if held.granted_at_seconds < kept.since_seconds or all(part.gpu_uuid != gpu_uuid for part in held.slices):
        return False
    if held.duration_seconds is None:
        return True
    end_seconds = held.granted_at_seconds + held.duration_seconds
    return not now_seconds <= end_seconds <= kept.start_seconds


def left_for_growth(
    admission: Admission, grower: Held, rooms: Sequence[GpuRoom], now_seconds: float, rules: OrderRules
) -> int | None:
    """Return by how much each slice of a running job may grow without delay for a job of the queue; None if none can start there.

    Jobs that start in the round have their memory. So has one of another user that memory is reserved for, unless it cannot start
    before this one has ended: the growth then delays nothing.

    Args:
        admission: Of a round in which the job waited to grow.
        grower: The job.
        rooms: GPUs of that round.
        now_seconds: Seconds since the epoch.
        rules: Of that round.
    """
    end_seconds = expected_end_seconds(grower, rules.default_duration_seconds, now_seconds)
    own_bytes = {part.gpu_uuid: part.memory_bytes for part in grower.slices}
    others = [
        each for each in admission.kept if each.owner_uid != grower.owner_uid and each.start_seconds < end_seconds
    ]
    left = []
    for room in rooms:
        uuid = room.gpu.uuid
        if uuid in own_bytes and not room.gpu.is_instance:
            # A start beside it must leave as much free for growth, too.
            pool_bytes = kept_for_growth(room.gpu.memory_bytes, is_idle=False, has_chosen_sizes=True)
            parts = [part for grant in admission.grants for part in grant.slices if part.gpu_uuid == uuid]
            starting_bytes = sum(taken_bytes(room.gpu, part.memory_bytes) for part in parts)
            left.append(room.free_bytes - starting_bytes - (pool_bytes if parts else 0))
            beside_bytes = room.capacity_bytes - own_bytes[uuid] - pool_bytes
            left += [
                each.spare_bytes[uuid] - pool_bytes
                for each in others
                if uuid in each.spare_bytes and each.memory_bytes <= beside_bytes
            ]
    return max(0, min(left)) if left else None
