"""A batch of jobs on GPUs, and how it goes if its jobs are started in a given order.

At each moment every job that fits starts, in that order, on the fullest GPU that has room; a job can be told to let another
one start first. Columns instead of jobs, and places in them instead of names: one plan plays thousands of times.
It knows no clock and guesses nothing: how long a job runs, and how much companions slow it down, are told.

Source: list scheduling (Graham, 1969).
"""

import heapq
import math
import operator
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import starmap

from pgpu.scheduling.durations import KNOWN, Slowdown, expected_left_seconds, possible_left_seconds


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One job of a batch, on one GPU."""

    job_id: str
    memory_bytes: int
    duration_seconds: float
    """Predicted, alone on its GPU."""

    compute_share: float = 0.0
    """Of its GPU, 0 to 1; 0 where it asked for none."""

    release_seconds: float = 0.0
    """Not before; seconds from now."""

    doubt: float | None = None
    """Of its duration: the standard deviation of the logarithm; None for what is said of the batch."""


@dataclass(frozen=True, slots=True)
class RunningBatchJob:
    """A job that runs already."""

    gpu: int
    """Place of its GPU in the capacities."""

    memory_bytes: int
    duration_seconds: float
    """Predicted, of its whole run, alone on its GPU."""

    elapsed_seconds: float = 0.0
    """Run so far, as if it had been alone."""

    compute_share: float = 0.0
    doubt: float | None = None
    """As of a job that waits."""


@dataclass(frozen=True)
class Batch:
    """A batch in columns."""

    memory_bytes: tuple[int, ...]
    duration_seconds: tuple[float, ...]
    compute_share: tuple[float, ...]
    release_seconds: tuple[float, ...]
    capacity_bytes: tuple[int, ...]
    busy: tuple[RunningBatchJob, ...]
    busy_left_seconds: tuple[float, ...]
    """How long each that runs already would still run if it were alone."""

    doubts: tuple[float | None, ...]
    """Of those that wait."""

    pace: tuple[float, ...]
    """By number of jobs on a GPU: the seconds that one second of work takes."""

    @classmethod
    def of(
        cls,
        jobs: Sequence[BatchJob],
        capacity_bytes: Sequence[int],
        busy: Sequence[RunningBatchJob] = (),
        slowdown: Slowdown | None = None,
    ) -> "Batch":
        """Turn jobs into columns.

        Raises:
            ValueError: A job fits on none of the GPUs.
        """
        most_bytes = max(capacity_bytes, default=0)
        for job in jobs:
            if job.memory_bytes > most_bytes or job.compute_share > 1:
                raise ValueError(f"job {job.job_id} fits on none of {len(capacity_bytes)} GPUs")
        counts = range(1, len(jobs) + len(busy) + 1)
        return cls(
            tuple(job.memory_bytes for job in jobs),
            tuple(job.duration_seconds for job in jobs),
            tuple(job.compute_share for job in jobs),
            tuple(job.release_seconds for job in jobs),
            tuple(capacity_bytes),
            tuple(busy),
            tuple(expected_left_seconds(each.duration_seconds, each.elapsed_seconds) for each in busy),
            tuple(job.doubt for job in jobs),
            (1.0, *(1.0 if slowdown is None else slowdown(count) for count in counts)),
        )

    def as_it_may_be(self, doubt: float, count: int, dice: random.Random) -> "tuple[Batch, ...]":
        """Return so many copies whose durations are what they may turn out to be; just itself where all are known.

        Args:
            doubt: Of those jobs that have none of their own; as of `possible_left_seconds`.
            count: So many copies.
            dice: As of `possible_left_seconds`.
        """
        doubts = [doubt if each is None else each for each in (*self.doubts, *(busy.doubt for busy in self.busy))]
        if max(doubts, default=0.0) <= KNOWN:
            return (self,)
        runs = [(seconds, 0.0) for seconds in self.duration_seconds]
        runs += [(busy.duration_seconds, busy.elapsed_seconds) for busy in self.busy]
        draws = [
            possible_left_seconds(lasts, elapsed, each, count, dice)
            for (lasts, elapsed), each in zip(runs, doubts, strict=True)
        ]
        waiting, running = draws[: len(self.duration_seconds)], draws[len(self.duration_seconds) :]
        return tuple(
            replace(
                self,
                duration_seconds=tuple(each[copy] for each in waiting),
                busy_left_seconds=tuple(each[copy] for each in running),
            )
            for copy in range(count)
        )

    @cached_property
    def work(self) -> tuple[float, ...]:
        """Memory times duration of each job."""
        return tuple(map(operator.mul, self.memory_bytes, self.duration_seconds))

    @property
    def is_slowed(self) -> bool:
        """Whether companions cost time."""
        return any(seconds > 1 for seconds in self.pace)

    def least_seconds(self) -> float:
        """Return a time before which no plan can end.

        No job ends before its release and duration, and no GPU gives more memory-seconds than it has. A large job takes all
        of a GPU where what it leaves is too small for anything else: with each threshold below half a GPU, those that leave
        less than it count as a whole GPU and those smaller than it as nothing.

        Source: Martello and Toth's bound L2 for bin packing (1990), on memory-seconds.
        """
        most_bytes, count = max(self.capacity_bytes, default=1), max(1, len(self.capacity_bytes))
        pieces = list(zip(self.memory_bytes, self.duration_seconds, strict=True))
        pieces += [(busy.memory_bytes, left) for busy, left in zip(self.busy, self.busy_left_seconds, strict=True)]
        ends = [start + lasts for start, lasts in zip(self.release_seconds, self.duration_seconds, strict=True)]
        ends += self.busy_left_seconds
        thresholds = {0, *(memory_bytes for memory_bytes, _ in pieces if 2 * memory_bytes <= most_bytes)}
        loads = [_load(pieces, threshold, most_bytes) / count for threshold in thresholds]
        work = sum(starmap(lambda memory_bytes, seconds: memory_bytes * seconds, pieces))
        return max([work / max(1, sum(self.capacity_bytes)), *loads, *ends], default=0.0) * min(self.pace)


def _load(pieces: Sequence[tuple[int, float]], threshold: int, most_bytes: int) -> float:
    """Sum the seconds of GPU that pieces take at least."""
    whole = sum(seconds for memory_bytes, seconds in pieces if memory_bytes > most_bytes - threshold)
    parts = (memory * seconds for memory, seconds in pieces if threshold <= memory <= most_bytes - threshold)
    return whole + sum(parts) / most_bytes


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """How a batch went."""

    order: tuple[int, ...]
    """Every job's place in the batch, in the order in which they were tried."""

    holds: Mapping[int, int]
    """Who let whom start first."""

    most_at_once: int
    starts_seconds: tuple[float, ...]
    """By place in the batch."""

    ends_seconds: tuple[float, ...]
    gpus: tuple[int, ...]
    value: tuple[float, float]
    """The smaller, the better: the end, then how late memory-time starts: what comes later finds the more room, the sooner it does."""

    @property
    def end_seconds(self) -> float:
        """When the last ended."""
        return self.value[0]


NO_HOLDS: Mapping[int, int] = {}


def simulate(
    batch: Batch, order: Sequence[int], holds: Mapping[int, int] = NO_HOLDS, most_at_once: int = 0
) -> SimulatedRun:
    """Play a batch.

    Args:
        batch: Jobs and GPUs.
        order: Every job's place in the batch, in the order in which they are tried.
        holds: Who lets whom start first; it binds only those that come later in the order, so nothing waits in a circle.
        most_at_once: So many on one GPU at most; 0 for as many as fit.
    """
    machine = _Machine(batch, holds, most_at_once or len(batch.pace))
    waiting = list(order)
    while waiting := machine.start_what_fits(waiting):
        machine.go_on()
    machine.finish()
    ends = machine.ends_seconds
    starts = tuple(machine.starts_seconds)
    late = sum(map(operator.mul, batch.work, starts))
    return SimulatedRun(
        tuple(order), holds, most_at_once, starts, tuple(ends), tuple(machine.gpu_of), (max(ends, default=0.0), late)
    )


@dataclass(slots=True)
class _PlayedGpu:
    """One GPU at one moment of the play.

    All its jobs work at the same pace, which their number tells. So it has a clock of its own that counts work, and a job
    ends when that clock has gone on by its duration.
    """

    free_bytes: int
    free_compute: float = 1.0
    running: list[tuple[float, int]] = field(default_factory=list)
    """(Clock of work at its end, place in the batch), a heap."""

    work_seconds: float = 0.0
    since_seconds: float = 0.0
    """When the clock of work showed `work_seconds`."""

    next_end_seconds: float = math.inf


_TOLERANCE = 1e-9
"""Sums of compute shares may be off by rounding."""


class _Machine:
    """GPUs at one moment of the play."""

    def __init__(self, batch: Batch, holds: Mapping[int, int], most_at_once: int) -> None:
        count = len(batch.memory_bytes)
        self.starts_seconds, self.ends_seconds, self.gpu_of = [0.0] * count, [0.0] * count, [0] * count
        self._now_seconds = 0.0
        self._smallest_bytes = 0
        """Of those that still wait."""
        self._batch, self._holds, self._most_at_once = batch, holds, most_at_once
        self._memory_bytes = batch.memory_bytes + tuple(busy.memory_bytes for busy in batch.busy)
        self._compute_share = batch.compute_share + tuple(busy.compute_share for busy in batch.busy)
        self._gpus = [_PlayedGpu(free) for free in batch.capacity_bytes]
        self._releases = sorted({seconds for seconds in batch.release_seconds if seconds > 0}, reverse=True)
        for place, (busy, left_seconds) in enumerate(
            zip(batch.busy, batch.busy_left_seconds, strict=True), start=count
        ):
            self._occupy(self._gpus[busy.gpu], place, left_seconds)

    def start_what_fits(self, waiting: Sequence[int]) -> list[int]:
        """Start each job that fits, in order; return those that still wait."""
        memory_bytes, release_seconds, now_seconds = self._memory_bytes, self._batch.release_seconds, self._now_seconds
        most_free = self._most_free()
        if most_free < self._smallest_bytes:
            return list(waiting)
        kept: list[int] = []
        for job in waiting:
            fits = memory_bytes[job] <= most_free and release_seconds[job] <= now_seconds
            if fits and not self._is_held(job, kept) and self._start(job):
                most_free = self._most_free()
            else:
                kept.append(job)
        self._smallest_bytes = min((memory_bytes[job] for job in kept), default=0)
        return kept

    def go_on(self) -> None:
        """Jump to the next end or release."""
        gpu = min(self._gpus, key=lambda gpu: gpu.next_end_seconds)
        if self._releases and self._releases[-1] < gpu.next_end_seconds:
            self._now_seconds = self._releases.pop()
            return
        self._end_next(gpu)
        while self._releases and self._releases[-1] <= self._now_seconds:
            self._releases.pop()

    def finish(self) -> None:
        """Play to the end of all that runs."""
        for gpu in self._gpus:
            while gpu.running:
                self._end_next(gpu)

    def _most_free(self) -> int:
        return max((gpu.free_bytes for gpu in self._gpus if len(gpu.running) < self._most_at_once), default=-1)

    def _is_held(self, job: int, kept: Sequence[int]) -> bool:
        return job in self._holds and self._holds[job] in kept

    def _start(self, job: int) -> bool:
        memory_bytes, compute_share = self._memory_bytes[job], self._compute_share[job] - _TOLERANCE
        best = -1
        for place, gpu in enumerate(self._gpus):
            fits = gpu.free_bytes >= memory_bytes and gpu.free_compute >= compute_share
            if fits and len(gpu.running) < self._most_at_once:
                best = place if best < 0 or gpu.free_bytes < self._gpus[best].free_bytes else best
        if best >= 0:
            self.starts_seconds[job], self.gpu_of[job] = self._now_seconds, best
            self._occupy(self._gpus[best], job, self._batch.duration_seconds[job])
        return best >= 0

    def _occupy(self, gpu: _PlayedGpu, job: int, seconds: float) -> None:
        pace = self._batch.pace
        gpu.work_seconds += (self._now_seconds - gpu.since_seconds) / pace[len(gpu.running)]
        gpu.since_seconds = self._now_seconds
        gpu.free_bytes -= self._memory_bytes[job]
        gpu.free_compute -= self._compute_share[job]
        heapq.heappush(gpu.running, (gpu.work_seconds + seconds, job))
        self._foresee(gpu)

    def _end_next(self, gpu: _PlayedGpu) -> None:
        self._now_seconds = gpu.since_seconds = gpu.next_end_seconds
        gpu.work_seconds, job = heapq.heappop(gpu.running)
        gpu.free_bytes += self._memory_bytes[job]
        gpu.free_compute += self._compute_share[job]
        if job < len(self.ends_seconds):
            self.ends_seconds[job] = self._now_seconds
        self._foresee(gpu)

    def _foresee(self, gpu: _PlayedGpu) -> None:
        if not gpu.running:
            gpu.next_end_seconds = math.inf
            return
        left_seconds = gpu.running[0][0] - gpu.work_seconds
        gpu.next_end_seconds = gpu.since_seconds + left_seconds * self._batch.pace[len(gpu.running)]
