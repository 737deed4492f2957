"""When the job that does not fit yet will fit, and who may start before it without delaying it.

Source: EASY backfilling (Lifka, 1995), applied to memory instead of nodes. What nobody knows counts against the one who
would go first: a job of unknown length never ends in time, so it starts early only on memory that the first leaves free.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from pgpu.model import Gpu
from pgpu.scheduling.candidate import Candidate, Held
from pgpu.scheduling.capacity import taken_bytes


@dataclass(slots=True)
class Reservation:
    """Memory kept for one job from some time on; `spare_bytes` shrinks as others are let in."""

    job_id: str
    start_seconds: float
    """When its slices will probably fit, in seconds since the epoch."""

    spare_bytes: dict[str, int]
    """By UUID of its GPUs: what it leaves free there."""

    def admits(self, gpu: Gpu, memory_bytes: int, end_seconds: float) -> bool:
        """Whether a slice on this GPU that ends then delays nobody."""
        if gpu.uuid not in self.spare_bytes or end_seconds <= self.start_seconds:
            return True
        return taken_bytes(gpu, memory_bytes) <= self.spare_bytes[gpu.uuid]

    def let_in(self, gpu: Gpu, memory_bytes: int, end_seconds: float) -> None:
        """Count a slice that was granted before it."""
        if gpu.uuid in self.spare_bytes and end_seconds > self.start_seconds:
            self.spare_bytes[gpu.uuid] -= taken_bytes(gpu, memory_bytes)


def expected_end_seconds(held: Held, default_duration_seconds: float, now_seconds: float) -> float:
    """Return when a job will probably end: one that runs longer than it should has as long again before it."""
    elapsed = max(0.0, now_seconds - held.granted_at_seconds)
    duration = held.duration_seconds if held.duration_seconds is not None else default_duration_seconds
    return held.granted_at_seconds + duration if duration > elapsed else now_seconds + elapsed


def reserve(
    candidate: Candidate,
    gpus: Sequence[Gpu],
    free_bytes: Mapping[str, int],
    ends: Sequence[tuple[float, Held]],
    now_seconds: float,
) -> Reservation | None:
    """Find the earliest time at which a request will fit.

    Args:
        candidate: What must fit.
        gpus: Those that it can use, in the order in which they are tried.
        free_bytes: By UUID, now.
        ends: Every job that holds memory with its expected end.
        now_seconds: Seconds since the epoch.

    Returns:
        None if it does not even fit once all of them ended: outsiders hold the memory, and nobody can tell until when.
    """
    known = {gpu.uuid: gpu for gpu in gpus}
    request = candidate.request
    for start_seconds, free in _moments(known, free_bytes, ends, now_seconds):
        fitting = [gpu.uuid for gpu in gpus if free[gpu.uuid] >= request.memory_bytes]
        if len(fitting) >= request.gpu_count:
            chosen = fitting[: request.gpu_count]
            spare = {uuid: free[uuid] - taken_bytes(known[uuid], request.memory_bytes) for uuid in chosen}
            return Reservation(candidate.job_id, start_seconds, spare)
    return None


def _moments(
    gpus: Mapping[str, Gpu], free_bytes: Mapping[str, int], ends: Sequence[tuple[float, Held]], now_seconds: float
) -> Iterator[tuple[float, Mapping[str, int]]]:
    """Yield each time at which memory becomes free, and what is free then."""
    free = dict(free_bytes)
    yield now_seconds, free
    for end_seconds, group in groupby(sorted(ends, key=lambda pair: pair[0]), key=lambda pair: pair[0]):
        for _, held in group:
            for part in held.slices:
                if part.gpu_uuid in gpus:
                    free[part.gpu_uuid] += taken_bytes(gpus[part.gpu_uuid], part.memory_bytes)
        yield end_seconds, free


NEVER = math.inf
"""The end of a job of unknown length."""
