"""Solves a program's problem over and over: check, memory, iterations, and the one JSON line.

All buffers lie in one allocation, as in a program that knows its sizes, so that what it holds is known to the granule.
It refuses to print a time for a problem whose small sister came out wrong.
"""

from __future__ import annotations

import argparse
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pgpu.workloads.cuda_driver import Module
from pgpu.workloads.kernels import Filling
from pgpu.workloads.memory_pool import GRANULE_BYTES, MIB, whole_granules
from pgpu.workloads.programs.problem import Problem
from pgpu.workloads.workload_run import Run, WorkloadError, wait_seconds

_ALIGNMENT_BYTES = 256


@dataclass(frozen=True, slots=True)
class Program:
    """One problem as a workload of the command line."""

    problem: type[Problem]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Name what a user may choose."""
        self.problem.add_arguments(parser)
        parser.add_argument(
            "--iterations", type=int, default=10, help="times that the problem is solved, and waited for (10)"
        )
        parser.add_argument(
            "--ahead", type=int, default=1, help="have twice as many iterations on their way (1: wait for each)"
        )
        parser.add_argument("--seconds", type=float, help="solve it again and again for so long instead")
        parser.add_argument("--host-ms", type=float, default=0.0, help="host time between iterations, waited (0)")

    def run(self, arguments: argparse.Namespace) -> int:
        """Check, solve and report; return the exit code."""
        solve(Run(self.problem.name), self.problem.from_arguments(arguments), arguments)
        return 0


def solve(this: Run, problem: Problem, arguments: argparse.Namespace) -> None:
    """Check, solve as often as asked, and write the JSON line.

    Raises:
        WorkloadError: The memory asked for is too little, or the GPU computes something else than the host.
    """
    arena = _Arena(this, problem, arguments.memory)
    is_checked = arena.check_small_sister()
    arena.fill(problem)
    began_seconds = this.elapsed_seconds()
    iterations = sum(arena.solve(problem, arguments.ahead) for _ in _iterations(this, arguments))
    this.device.synchronize()
    this.finish(
        sizes=asdict(problem),
        iterations=iterations,
        compute_seconds=round(this.elapsed_seconds() - began_seconds, 6),
        computed=is_checked,
    )


def _iterations(this: Run, arguments: argparse.Namespace) -> Iterator[None]:
    began_seconds = this.elapsed_seconds()
    done = 0
    while True:
        spent_seconds = this.elapsed_seconds() - began_seconds
        is_over = done >= arguments.iterations if arguments.seconds is None else spent_seconds >= arguments.seconds
        if is_over:
            return
        if done:
            wait_seconds(arguments.host_ms / 1000)
        yield
        done += 1


def needed_bytes(fillings: Sequence[Filling]) -> int:
    """Return what these buffers take in one allocation, in whole granules."""
    used_bytes = sum(_padded(filling.amount_bytes) for filling in fillings)
    return -(-used_bytes // GRANULE_BYTES) * GRANULE_BYTES


def _padded(amount_bytes: int) -> int:
    return -(-amount_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


class _Arena:
    """The one allocation, in which a problem and before it its small sister lie."""

    def __init__(self, this: Run, problem: Problem, memory_bytes: int | None) -> None:
        self._run = this
        self._small = type(problem).small()
        self._start = this.memory.take(_arena_bytes(this, problem, self._small, memory_bytes))
        self._module = _load(this, problem)
        self._marks: list[Any] = []

    def addresses(self, problem: Problem) -> Sequence[int]:
        """Return where each buffer of a problem lies."""
        found = [self._start]
        for filling in problem.fillings:
            found.append(found[-1] + _padded(filling.amount_bytes))
        return found[:-1]

    def fill(self, problem: Problem) -> None:
        """Write what stands in the buffers before the first iteration."""
        for seed, (address, filling) in enumerate(zip(self.addresses(problem), problem.fillings, strict=True)):
            self._run.kernels.fill(address, filling, seed=seed)
        self._run.device.synchronize()

    def solve(self, problem: Problem, times: int = 1) -> int:
        """Run some iterations, and return how many: one to its end; of more, those launched the time before."""
        addresses = self.addresses(problem)
        for _ in range(times):
            problem.launch(self._module, addresses)
        self._marks.append(self._run.device.mark())
        while len(self._marks) > (times > 1):
            self._run.device.wait_for(self._marks.pop(0))
        return times

    def check_small_sister(self) -> bool:
        """Solve the small problem and compare; return whether kernels compute here at all.

        Raises:
            WorkloadError: The GPU and the host do not agree.
        """
        if not self._run.kernels.compute_here(self._start):
            return False
        small = self._small
        self.fill(small)
        self.solve(small)
        answer = array(small.fillings[small.result].typecode, bytes(small.fillings[small.result].amount_bytes))
        self._run.device.read(self.addresses(small)[small.result], answer)
        difference = small.difference(answer, small.filled())
        if difference is not None:
            raise WorkloadError(difference)
        return True


def _arena_bytes(this: Run, problem: Problem, small: Problem, memory_bytes: int | None) -> int:
    needs_bytes = max(needed_bytes(problem.fillings), needed_bytes(small.fillings))
    if memory_bytes is None:
        return needs_bytes
    room_bytes = whole_granules(memory_bytes - this.context.context_bytes)
    if room_bytes < needs_bytes:
        context_mib = -(-this.context.context_bytes // MIB)
        raise WorkloadError(f"--memory must be at least {needs_bytes // MIB + context_mib}MiB for these sizes")
    return room_bytes


def _load(this: Run, problem: Problem) -> Module:
    return this.device.load((Path(__file__).parent / f"{problem.kernels}.ptx").read_bytes())
