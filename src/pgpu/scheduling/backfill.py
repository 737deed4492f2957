"""When the job that does not fit yet will fit, and who may start before it without delaying it.

Source: EASY backfilling (Lifka, 1995), applied to memory and GPU time instead of nodes. What nobody knows counts against the one who
would go first: a job of unknown length never ends in time, so it starts early only on memory that the first leaves free.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from pgpu.model import Gpu
from pgpu.scheduling.candidate import Candidate, Held
from pgpu.scheduling.capacity import has_compute, taken_bytes
from pgpu.scheduling.free_capacity import FreeCapacity
from pgpu.scheduling.tenancy import IDLE, Tenancy


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
