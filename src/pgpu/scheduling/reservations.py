"""GPUs that are kept for an overdue job: chosen once, and the same in every round until it starts.

Chosen anew in each round, a reservation follows whichever GPU looks best at the moment and none of them ever drains. What
was there when they were chosen must end, and nothing that comes later may delay the job: so it waits at most as long as
they take to drain, whatever is known of durations. Where a GPU is not left at all (a service that never ends), others are
looked for after some hours, and after twice as many the next time. GPUs that for a moment could not host the job are
still kept for it, so that one bad reading does not make it wait anew.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from pgpu.model import Gpu
from pgpu.scheduling.admission_round import Candidate, Held, OverdueReservation
from pgpu.scheduling.capacity import IDLE, GpuRoom, Tenancy, has_compute, supports_mode, taken_bytes
from pgpu.scheduling.free_capacity import FreeCapacity
from pgpu.scheduling.order import OrderRules


@dataclass(slots=True)
class Reservation:
    """GPUs kept for one job from some time on; what is spare shrinks as others are let in."""

    job_id: str
    start_seconds: float
    """When its slices will probably fit, in seconds since the epoch."""

    spare_bytes: dict[str, int]
    """By UUID of its GPUs: what it leaves free there."""

    spare_compute: dict[str, float]
    """The same of their time, 0 to 1."""

    tenancy: Tenancy = IDLE
    """What its GPUs are once it is there: whom it lets stay beside it."""

    def admits(self, gpu: Gpu, candidate: Candidate, end_seconds: float) -> bool:
        """Whether a slice of a candidate on this GPU that ends then delays nobody."""
        if gpu.uuid not in self.spare_bytes or end_seconds <= self.start_seconds:
            return True
        return (
            taken_bytes(gpu, candidate.request.memory_bytes) <= self.spare_bytes[gpu.uuid]
            and has_compute(self.spare_compute[gpu.uuid], candidate.compute_share)
            and self.tenancy.admits(candidate.mode, candidate.owner_uid)
        )

    def let_in(self, gpu: Gpu, candidate: Candidate, end_seconds: float) -> None:
        """Count a slice that was granted before it."""
        if gpu.uuid in self.spare_bytes and end_seconds > self.start_seconds:
            self.spare_bytes[gpu.uuid] -= taken_bytes(gpu, candidate.request.memory_bytes)
            self.spare_compute[gpu.uuid] -= candidate.compute_share


def expected_end_seconds(held: Held, default_duration_seconds: float, now_seconds: float) -> float:
    """Return when a job will probably end: one that runs longer than it should has as long again before it."""
    elapsed = max(0.0, now_seconds - held.granted_at_seconds)
    duration = held.duration_seconds if held.duration_seconds is not None else default_duration_seconds
    return held.granted_at_seconds + duration if duration > elapsed else now_seconds + elapsed


def reserve(
    candidate: Candidate,
    gpus: Sequence[Gpu],
    space: FreeCapacity,
    ends: Sequence[tuple[float, Held]],
    now_seconds: float,
) -> Reservation | None:
    """Find the earliest time at which a request will fit.

    Args:
        candidate: What must fit.
        gpus: Those that it can use, in the order in which they are tried.
        space: What is free now; it is not changed.
        ends: Every job that holds memory with its expected end.
        now_seconds: Seconds since the epoch.

    Returns:
        None if it does not even fit once all of them ended: outsiders hold the memory, and nobody can tell until when.
    """
    known = {gpu.uuid: gpu for gpu in gpus}
    request = candidate.request
    for start_seconds, then in _moments(known, space, ends, now_seconds):
        fitting = [gpu.uuid for gpu in gpus if then.hosts(gpu, candidate)]
        if len(fitting) >= request.gpu_count:
            chosen = fitting[: request.gpu_count]
            return Reservation(
                candidate.job_id,
                start_seconds,
                {uuid: then.free_bytes[uuid] - taken_bytes(known[uuid], request.memory_bytes) for uuid in chosen},
                {uuid: then.free_compute[uuid] - candidate.compute_share for uuid in chosen},
                IDLE.joined(candidate.mode, candidate.owner_uid),
            )
    return None


def _moments(
    gpus: Mapping[str, Gpu], space: FreeCapacity, ends: Sequence[tuple[float, Held]], now_seconds: float
) -> Iterator[tuple[float, FreeCapacity]]:
    """Yield each time at which somebody ends, and what is free then."""
    then = space.copy()
    yield now_seconds, then
    for end_seconds, group in groupby(sorted(ends, key=lambda pair: pair[0]), key=lambda pair: pair[0]):
        for _, held in group:
            then.give(held, gpus)
        yield end_seconds, then


NEVER = math.inf
"""The end of a job of unknown length."""


UNABLE_SECONDS = 300.0
"""So long at most GPUs stay chosen that cannot host their job. Default: five minutes, longer than most who only look in."""


@dataclass(frozen=True, slots=True)
class RoundState:
    """A machine in the middle of a round."""

    rooms: Sequence[GpuRoom]
    space: FreeCapacity
    """What is free."""

    held: Sequence[Held]
    """Every job that holds memory."""

    rules: OrderRules
    now_seconds: float
    """Since the epoch."""

    def ends(self) -> list[tuple[float, Held]]:
        """Return what is held with its expected end."""
        default_seconds = self.rules.default_duration_seconds
        return [(expected_end_seconds(each, default_seconds, self.now_seconds), each) for each in self.held]


def renew_reservation(
    kept: OverdueReservation | None, candidate: Candidate, moment: RoundState
) -> tuple[OverdueReservation, Reservation | None] | None:
    """Keep the GPUs of a job that does not fit yet, or choose some.

    Args:
        kept: Of the round before, of whatever job.
        candidate: The job.
        moment: Now.

    Returns:
        The kept to remember and what it means in this round, None for nothing while its GPUs could not host the job for a
        moment; None where it would fit on no GPUs even if all jobs ended.
    """
    own = kept if kept is not None and kept.job_id == candidate.job_id else None
    able = {room.gpu.uuid: room.gpu for room in possible_hosts(moment.rooms, candidate)}
    found = None if own is None else _reserved_again(own, candidate, able, moment)
    if own is not None and found is not None:
        own = replace(own, unable_since_seconds=None)
    elif own is not None and _stays_chosen(own, moment):
        return _for_the_moment(own, moment), None
    else:
        found = reserve(candidate, list(able.values()), moment.space, moment.ends(), moment.now_seconds)
        if found is None:
            return None
        own = _chosen(own, candidate, found, moment)
    return own, _as_promised(own, found, candidate, moment)


def possible_hosts(rooms: Sequence[GpuRoom], candidate: Candidate) -> list[GpuRoom]:
    """Return the GPUs that could host a job if nobody else held memory there; none where they are too few for it."""
    request = candidate.request
    able = [
        room
        for room in rooms
        if room.capacity_bytes >= request.memory_bytes
        and candidate.can_use(room.gpu)
        and supports_mode(room.gpu, request)
    ]
    return able if len(able) >= request.gpu_count else []


def _reserved_again(
    kept: OverdueReservation, candidate: Candidate, able: Mapping[str, Gpu], moment: RoundState
) -> Reservation | None:
    """Reserve the same GPUs; None once others are looked for, or where they could not host the job now."""
    gpus = [able[uuid] for uuid in kept.gpu_uuids if uuid in able]
    if len(gpus) < candidate.request.gpu_count or moment.now_seconds >= kept.until_seconds:
        return None
    return reserve(candidate, gpus, moment.space, moment.ends(), moment.now_seconds)


def _stays_chosen(kept: OverdueReservation, moment: RoundState) -> bool:
    """Whether GPUs that could not host their job now may do so soon; not where the administrator closed one."""
    if not moment.rooms:
        return True
    if moment.now_seconds >= kept.until_seconds or not set(kept.gpu_uuids) <= {r.gpu.uuid for r in moment.rooms}:
        return False
    return kept.unable_since_seconds is None or moment.now_seconds < kept.unable_since_seconds + UNABLE_SECONDS


def _for_the_moment(kept: OverdueReservation, moment: RoundState) -> OverdueReservation:
    """Note since when they could not, unless nothing can be read at all."""
    is_noted = kept.unable_since_seconds is not None or not moment.rooms
    return kept if is_noted else replace(kept, unable_since_seconds=moment.now_seconds)


def _chosen(
    before: OverdueReservation | None, candidate: Candidate, found: Reservation, moment: RoundState
) -> OverdueReservation:
    gpu_uuids, now_seconds = tuple(found.spare_bytes), moment.now_seconds
    if before is None:
        until_seconds = max(now_seconds + moment.rules.faith_seconds, found.start_seconds)
        return OverdueReservation(candidate.job_id, gpu_uuids, now_seconds, found.start_seconds, until_seconds)
    until_seconds = now_seconds + 2 * (before.until_seconds - before.since_seconds)
    since_seconds = before.since_seconds if set(gpu_uuids) == set(before.gpu_uuids) else now_seconds
    return OverdueReservation(candidate.job_id, gpu_uuids, since_seconds, before.start_seconds, until_seconds)


def _as_promised(kept: OverdueReservation, found: Reservation, candidate: Candidate, moment: RoundState) -> Reservation:
    """Let in no more than leaves the GPUs free once all that was there has ended, however wrong durations are."""
    spare_bytes, spare_compute = dict(found.spare_bytes), dict(found.spare_compute)
    for room in moment.rooms:
        uuid = room.gpu.uuid
        if uuid in spare_bytes:
            later = [each for each in moment.held if _stays(kept, each, uuid, moment.now_seconds)]
            left_bytes = room.capacity_bytes - taken_bytes(room.gpu, candidate.request.memory_bytes)
            left_bytes -= sum(_taken(each, room.gpu) for each in later)
            spare_bytes[uuid] = min(spare_bytes[uuid], left_bytes)
            spare_compute[uuid] = min(
                spare_compute[uuid], 1.0 - candidate.compute_share - sum(each.compute_share for each in later)
            )
    start_seconds = min(kept.start_seconds, found.start_seconds)
    return Reservation(kept.job_id, start_seconds, spare_bytes, spare_compute, found.tenancy)


def _stays(kept: OverdueReservation, held: Held, gpu_uuid: str, now_seconds: float) -> bool:
    """Whether a job on this GPU was granted after the choice and need not end in time."""
    if held.granted_at_seconds < kept.since_seconds or all(part.gpu_uuid != gpu_uuid for part in held.slices):
        return False
    if held.duration_seconds is None:
        return True
    end_seconds = held.granted_at_seconds + held.duration_seconds
    return not now_seconds <= end_seconds <= kept.start_seconds


def _taken(held: Held, gpu: Gpu) -> int:
    return sum(taken_bytes(gpu, part.memory_bytes) for part in held.slices if part.gpu_uuid == gpu.uuid)
