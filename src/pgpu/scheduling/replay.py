"""Plays a batch of jobs forward in one order: at each moment those that fit start, best fit first.

Figures in plain sequences, by the place of a job in its batch: it is called thousands of times for one plan.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class _Job(Protocol):
    @property
    def memory_bytes(self) -> int: ...
    @property
    def duration_seconds(self) -> float: ...
    @property
    def compute_share(self) -> float: ...
    @property
    def release_seconds(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch in columns."""

    memory_bytes: tuple[int, ...]
    duration_seconds: tuple[float, ...]
    compute_share: tuple[float, ...]
    release_seconds: tuple[float, ...]
    capacity_bytes: tuple[int, ...]
    busy: tuple[tuple[int, int, float], ...]
    """(GPU, bytes, seconds until its end) of what runs already."""

    slowdown: Callable[[int], float] | None

    @classmethod
    def of(
        cls,
        jobs: Sequence[_Job],
        capacity_bytes: Sequence[int],
        busy: Sequence[tuple[int, int, float]],
        slowdown: Callable[[int], float] | None,
    ) -> "Batch":
        """Turn jobs into columns."""
        return cls(
            tuple(job.memory_bytes for job in jobs),
            tuple(job.duration_seconds for job in jobs),
            tuple(job.compute_share for job in jobs),
            tuple(job.release_seconds for job in jobs),
            tuple(capacity_bytes),
            tuple(busy),
            slowdown,
        )

    def least_seconds(self) -> float:
        """Return a time before which no plan can end, jobs never slowed down."""
        jobs = range(len(self.memory_bytes))
        ends = [self.release_seconds[job] + self.duration_seconds[job] for job in jobs]
        work = sum(self.memory_bytes[job] * self.duration_seconds[job] for job in jobs)
        work += sum(memory * seconds for _, memory, seconds in self.busy)
        half = max(self.capacity_bytes, default=0) / 2
        alone = sum(self.duration_seconds[job] for job in jobs if self.memory_bytes[job] > half)
        gpus = max(1, len(self.capacity_bytes))
        return max([work / max(1, sum(self.capacity_bytes)), alone / gpus, *ends], default=0.0)


@dataclass(frozen=True, slots=True)
class Played:
    """How a batch went."""

    order: tuple[int, ...]
    most_at_once: int
    end_seconds: float
    latest: tuple[int, ...]
    """Jobs, the last to end first."""

    value: tuple[float, float]
    """The smaller, the better: the end, then how late the jobs end together."""


def play(batch: Batch, order: Sequence[int], most_at_once: int) -> Played:
    """Play a batch.

    Args:
        batch: Jobs and GPUs.
        order: Every job's place in the batch, in the order in which they are tried.
        most_at_once: So many on one GPU at most.
    """
    machine = _Machine(batch, most_at_once)
    waiting = list(order)
    ends: dict[int, float] = {}
    while waiting:
        waiting = [job for job in waiting if not machine.try_start(job)]
        if waiting:
            ends.update(machine.go_on(waiting))
    ends.update(machine.finish())
    latest = sorted(ends, key=lambda job: -ends[job])
    end_seconds = machine.now_seconds
    return Played(
        tuple(order), most_at_once, end_seconds, tuple(latest), (end_seconds, sum(e * e for e in ends.values()))
    )


class _Machine:
    """GPUs at one moment of the play.

    All jobs of one GPU work at the same pace, which its number of jobs tells. So each GPU has a clock of its own that
    counts work, and a job ends when that clock has gone on by its duration.
    """

    def __init__(self, batch: Batch, most_at_once: int) -> None:
        self.now_seconds = 0.0
        self._batch = batch
        self._most_at_once = most_at_once
        self._free = list(batch.capacity_bytes)
        self._work_seconds = [0.0] * len(self._free)
        self._running: list[list[tuple[float, int, int]]] = [[] for _ in self._free]
        for gpu, memory_bytes, seconds in batch.busy:
            self._occupy(gpu, memory_bytes, seconds, -1)

    def try_start(self, job: int) -> bool:
        """Start a job on the fullest GPU that has room for it, if one has."""
        memory_bytes = self._batch.memory_bytes[job]
        if self._batch.release_seconds[job] > self.now_seconds:
            return False
        fullest = -1
        for gpu, free in enumerate(self._free):
            has_room = free >= memory_bytes and len(self._running[gpu]) < self._most_at_once
            if has_room and (fullest < 0 or free < self._free[fullest]):
                fullest = gpu
        if fullest >= 0:
            self._occupy(fullest, memory_bytes, self._batch.duration_seconds[job], job)
        return fullest >= 0

    def go_on(self, waiting: Sequence[int]) -> dict[int, float]:
        """Jump to the next end or release; return whose end it was."""
        releases = [seconds for job in waiting if (seconds := self._batch.release_seconds[job]) > self.now_seconds]
        if releases and min(releases) < self._next_end()[0]:
            self._advance(min(releases))
            return {}
        return self._end_next()

    def finish(self) -> dict[int, float]:
        """Play to the end of all that runs."""
        ended: dict[int, float] = {}
        while any(self._running):
            ended.update(self._end_next())
        return ended

    def _occupy(self, gpu: int, memory_bytes: int, seconds: float, job: int) -> None:
        self._free[gpu] -= memory_bytes
        heapq.heappush(self._running[gpu], (self._work_seconds[gpu] + seconds, memory_bytes, job))

    def _pace(self, gpu: int) -> float:
        """Return the seconds that a second of work takes."""
        slowdown = self._batch.slowdown
        return 1.0 if slowdown is None else slowdown(len(self._running[gpu]))

    def _next_end(self) -> tuple[float, int]:
        return min(
            (
                (self.now_seconds + (running[0][0] - self._work_seconds[gpu]) * self._pace(gpu), gpu)
                for gpu, running in enumerate(self._running)
                if running
            ),
            default=(float("inf"), -1),
        )

    def _advance(self, to_seconds: float) -> None:
        for gpu, running in enumerate(self._running):
            if running:
                self._work_seconds[gpu] += (to_seconds - self.now_seconds) / self._pace(gpu)
        self.now_seconds = to_seconds

    def _end_next(self) -> dict[int, float]:
        end_seconds, gpu = self._next_end()
        self._advance(end_seconds)
        _, memory_bytes, job = heapq.heappop(self._running[gpu])
        self._free[gpu] += memory_bytes
        return {} if job < 0 else {job: end_seconds}
