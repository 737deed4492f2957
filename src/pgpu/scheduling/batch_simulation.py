"""Simulation of a batch of jobs on GPUs that are started in a given order (list scheduling).

Whenever something is free, every job that fits starts, in order, on the fullest GPU that has room; a job can be held until
another one has started. Jobs are places in columns instead of objects, since one plan is found by thousands of simulations.
Durations and slowdowns are inputs.

Source: list scheduling (Graham, 1969).
"""

import heapq
import math
import operator
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import starmap
from typing import TYPE_CHECKING

from pgpu.scheduling.run_times import KNOWN, Slowdown, expected_left_seconds, sample_left_seconds
from pgpu.structs import Struct, field, replace

if TYPE_CHECKING:
    import random


class BatchJob(Struct, frozen=True):
    """One job of a batch, on one GPU."""

    job_id: str
    memory_bytes: int
    duration_seconds: float
    """Predicted, alone on its GPU."""

    compute_share: float = 0.0
    """Of its GPU, 0 to 1; 0 if it asked for none."""

    release_seconds: float = 0.0
    """Earliest start, in seconds from now."""

    doubt: float | None = None
    """Standard deviation of the logarithm of true over predicted duration; None for that of the batch."""


class RunningBatchJob(Struct, frozen=True):
    gpu: int
    """Index of its GPU in the capacities."""

    memory_bytes: int
    duration_seconds: float
    """Predicted for its whole run, alone on its GPU."""

    elapsed_seconds: float = 0.0
    """Work done so far, in seconds alone."""

    compute_share: float = 0.0
    doubt: float | None = None
    """As for a waiting job."""


class SimulatedBatch(Struct, frozen=True, dict=True):
    """A batch in columns."""

    memory_bytes: tuple[int, ...]
    duration_seconds: tuple[float, ...]
    compute_share: tuple[float, ...]
    release_seconds: tuple[float, ...]
    capacity_bytes: tuple[int, ...]
    busy: tuple[RunningBatchJob, ...]
    busy_left_seconds: tuple[float, ...]
    """Remaining run time of each running job, alone."""

    doubts: tuple[float | None, ...]
    """Of the waiting jobs."""

    pace: tuple[float, ...]
    """By number of jobs on a GPU: seconds that one second of work takes."""

    @classmethod
    def of(
        cls,
        jobs: Sequence[BatchJob],
        capacity_bytes: Sequence[int],
        busy: Sequence[RunningBatchJob] = (),
        slowdown: Slowdown | None = None,
    ) -> "SimulatedBatch":
        """Convert jobs to columns.

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

    def sample_worlds(self, doubt: float, count: int, generator: "random.Random") -> "tuple[SimulatedBatch, ...]":
        """Return sampled worlds: copies with drawn durations; only itself if all durations are known.

        Args:
            doubt: For jobs without one of their own; as for `sample_left_seconds`.
            count: Number of copies.
            generator: As for `sample_left_seconds`.
        """
        doubts = [doubt if each is None else each for each in (*self.doubts, *(busy.doubt for busy in self.busy))]
        if max(doubts, default=0.0) <= KNOWN:
            return (self,)
        runs = [(seconds, 0.0) for seconds in self.duration_seconds]
        runs += [(busy.duration_seconds, busy.elapsed_seconds) for busy in self.busy]
        draws = [
            sample_left_seconds(lasts, elapsed, each, count, generator)
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

    def least_seconds(self) -> float:
        """Return a lower bound for the end of any plan.

        No job ends before its release plus duration, and no GPU gives more memory-seconds than it has. A large job occupies a
        whole GPU if what it leaves is too small for any other job: for each threshold up to half a GPU, jobs that leave less
        than the threshold count as a whole GPU, and jobs smaller than the threshold count as nothing.

        Source: Martello and Toth's bound L2 for bin packing (1990), on memory-seconds.
        """
        # Capacities are 0 where processes outside of pgpu hold all of a GPU.
        most_bytes, count = max((1, *self.capacity_bytes)), max(1, len(self.capacity_bytes))
        pieces = list(zip(self.memory_bytes, self.duration_seconds, strict=True))
        pieces += [(busy.memory_bytes, left) for busy, left in zip(self.busy, self.busy_left_seconds, strict=True)]
        ends = [start + lasts for start, lasts in zip(self.release_seconds, self.duration_seconds, strict=True)]
        ends += self.busy_left_seconds
        thresholds = {0, *(memory_bytes for memory_bytes, _ in pieces if 2 * memory_bytes <= most_bytes)}
        loads = [_least_gpu_seconds(pieces, threshold, most_bytes) / count for threshold in thresholds]
        work = sum(starmap(lambda memory_bytes, seconds: memory_bytes * seconds, pieces))
        return max([work / max(1, sum(self.capacity_bytes)), *loads, *ends], default=0.0) * min(self.pace)


def _least_gpu_seconds(pieces: Sequence[tuple[int, float]], threshold: int, most_bytes: int) -> float:
    """Return the GPU seconds that pieces take at least, with this threshold."""
    whole = sum(seconds for memory_bytes, seconds in pieces if memory_bytes > most_bytes - threshold)
    parts = (memory * seconds for memory, seconds in pieces if threshold <= memory <= most_bytes - threshold)
    return whole + sum(parts) / most_bytes


class SimulatedRun(Struct, frozen=True):
    order: tuple[int, ...]
    """Every job's place in the batch, in the order in which they were started."""

    holds: Mapping[int, int]
    """By job: the job that had to start before it."""

    most_at_once: int
    starts_seconds: tuple[float, ...]
    """By place in the batch."""

    ends_seconds: tuple[float, ...]
    gpus: tuple[int, ...]
    value: tuple[float, float]
    """Smaller is better: the end, then the sum of memory-time times start, since work that starts early leaves room later."""

    @property
    def end_seconds(self) -> float:
        """End of the last job."""
        return self.value[0]


NO_HOLDS: Mapping[int, int] = {}


def simulate(
    batch: SimulatedBatch, order: Sequence[int], holds: Mapping[int, int] = NO_HOLDS, most_at_once: int = 0
) -> SimulatedRun:
    """Simulate a batch.

    Args:
        batch: Jobs and GPUs.
        order: Every job's place in the batch, in the order in which they are started.
        holds: By job: one that must start before it. Effective only if that one is earlier in the order, so there is no cycle.
        most_at_once: Most jobs on one GPU; 0 for as many as fit.
    """
    machine = _Machine(batch, holds, most_at_once or len(batch.pace))
    waiting = list(order)
    while waiting := machine.start_what_fits(waiting):
        machine.advance()
    machine.finish()
    ends = machine.ends_seconds
    starts = tuple(machine.starts_seconds)
    late = sum(map(operator.mul, batch.work, starts))
    return SimulatedRun(
        tuple(order), holds, most_at_once, starts, tuple(ends), tuple(machine.gpu_of), (max(ends, default=0.0), late)
    )


class _SimulatedGpu(Struct):
    """One GPU at one moment of the simulation.

    All its jobs run at the same pace, which depends on their number. So the GPU has a clock of its own that counts work, and a
    job ends when that clock has advanced by its duration.
    """

    free_bytes: int
    free_compute: float = 1.0
    running: list[tuple[float, int]] = field(default_factory=list)
    """A heap of (clock of work at its end, place in the batch)."""

    work_seconds: float = 0.0
    since_seconds: float = 0.0
    """Time at which the clock of work was `work_seconds`."""

    next_end_seconds: float = math.inf


# Rounding error of sums of compute shares.
_TOLERANCE = 1e-9


class _Machine:
    """All GPUs at one moment of the simulation."""

    def __init__(self, batch: SimulatedBatch, holds: Mapping[int, int], most_at_once: int) -> None:
        count = len(batch.memory_bytes)
        self.starts_seconds, self.ends_seconds, self.gpu_of = [0.0] * count, [0.0] * count, [0] * count
        self._now_seconds = 0.0
        self._smallest_bytes = 0  # of the jobs that still wait
        self._batch, self._holds, self._most_at_once = batch, holds, most_at_once
        self._memory_bytes = batch.memory_bytes + tuple(busy.memory_bytes for busy in batch.busy)
        self._compute_share = batch.compute_share + tuple(busy.compute_share for busy in batch.busy)
        self._gpus = [_SimulatedGpu(free) for free in batch.capacity_bytes]
        self._releases = sorted({seconds for seconds in batch.release_seconds if seconds > 0}, reverse=True)
        for place, (busy, left_seconds) in enumerate(
            zip(batch.busy, batch.busy_left_seconds, strict=True), start=count
        ):
            self._occupy(self._gpus[busy.gpu], place, left_seconds)

    def start_what_fits(self, waiting: Sequence[int]) -> list[int]:
        """Start each job that fits, in order; return the jobs that still wait."""
        memory_bytes, release_seconds, now_seconds = self._memory_bytes, self._batch.release_seconds, self._now_seconds
        most_free = self._most_free()
        # Skips the pass over the queue if not even the smallest waiting job fits.
        if most_free < self._smallest_bytes:
            return list(waiting)
        kept: list[int] = []
        for job in waiting:
            fits = memory_bytes[job] <= most_free and release_seconds[job] <= now_seconds
            is_held = fits and job in self._holds and self._holds[job] in kept
            if fits and not is_held and self._start(job):
                most_free = self._most_free()
            else:
                kept.append(job)
        self._smallest_bytes = min((memory_bytes[job] for job in kept), default=0)
        return kept

    def advance(self) -> None:
        """Advance to the next end or release."""
        gpu = min(self._gpus, key=lambda gpu: gpu.next_end_seconds)
        if self._releases and self._releases[-1] < gpu.next_end_seconds:
            self._now_seconds = self._releases.pop()
            return
        self._end_next(gpu)
        while self._releases and self._releases[-1] <= self._now_seconds:
            self._releases.pop()

    def finish(self) -> None:
        """Advance to the end of all running jobs."""
        for gpu in self._gpus:
            while gpu.running:
                self._end_next(gpu)

    def _most_free(self) -> int:
        return max((gpu.free_bytes for gpu in self._gpus if len(gpu.running) < self._most_at_once), default=-1)

    def _start(self, job: int) -> bool:
        memory_bytes, compute_share = self._memory_bytes[job], self._compute_share[job] - _TOLERANCE
        # Best fit: the GPU with the least free memory that has room. The first of equal ones.
        best = -1
        for place, gpu in enumerate(self._gpus):
            fits = gpu.free_bytes >= memory_bytes and gpu.free_compute >= compute_share
            if fits and len(gpu.running) < self._most_at_once:
                best = place if best < 0 or gpu.free_bytes < self._gpus[best].free_bytes else best
        if best >= 0:
            self.starts_seconds[job], self.gpu_of[job] = self._now_seconds, best
            self._occupy(self._gpus[best], job, self._batch.duration_seconds[job])
        return best >= 0

    def _occupy(self, gpu: _SimulatedGpu, job: int, seconds: float) -> None:
        # Bring the clock of work up to now at the old pace, before the number of jobs changes.
        pace = self._batch.pace
        gpu.work_seconds += (self._now_seconds - gpu.since_seconds) / pace[len(gpu.running)]
        gpu.since_seconds = self._now_seconds
        gpu.free_bytes -= self._memory_bytes[job]
        gpu.free_compute -= self._compute_share[job]
        heapq.heappush(gpu.running, (gpu.work_seconds + seconds, job))
        self._predict_end(gpu)

    def _end_next(self, gpu: _SimulatedGpu) -> None:
        self._now_seconds = gpu.since_seconds = gpu.next_end_seconds
        gpu.work_seconds, job = heapq.heappop(gpu.running)  # At its end the clock of work shows exactly its end.
        gpu.free_bytes += self._memory_bytes[job]
        gpu.free_compute += self._compute_share[job]
        if job < len(self.ends_seconds):  # Jobs that already run have numbers after those of the batch.
            self.ends_seconds[job] = self._now_seconds
        self._predict_end(gpu)

    def _predict_end(self, gpu: _SimulatedGpu) -> None:
        if not gpu.running:
            gpu.next_end_seconds = math.inf
            return
        left_seconds = gpu.running[0][0] - gpu.work_seconds
        gpu.next_end_seconds = gpu.since_seconds + left_seconds * self._batch.pace[len(gpu.running)]
