"""A program's problem, and the loop that solves it: check, memory, iterations, and the JSON line.

A problem consists of buffers that the GPU fills itself, launches, and a solution on the host. If kernels compute on the device, a
small problem of odd sizes is solved first and compared with the host's solution, number by number; a difference ends the program.
All buffers lie in one allocation, so the memory that a program holds is known exactly.
"""

from __future__ import annotations

import argparse
import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from pgpu.workloads.cuda_driver import Module
from pgpu.workloads.kernels import Filling
from pgpu.workloads.workload_run import GRANULE_BYTES, MIB, WorkloadError, WorkloadRun, wait_seconds, whole_granules

# CUDA aligns each allocation to at least this; the buffers within one allocation are aligned alike.
_ALIGNMENT_BYTES = 256

Buffers: TypeAlias = "Sequence[array[Any]]"
"""Host copies of a problem's buffers, in its order."""


class Option(NamedTuple):
    """An option of the command line for one size."""

    flag: str
    default: int
    help: str


@dataclass(frozen=True, slots=True)
class Problem(ABC):
    """One size of one program's problem; subclasses are frozen dataclasses of sizes."""

    name: ClassVar[str]
    kernels: ClassVar[str]
    """Name of the PTX file beside this one that holds its kernels, without the suffix."""

    result: ClassVar[int] = -1
    """Index of the buffer that holds the solution after an iteration."""

    tolerance: ClassVar[float] = 0.0
    """Relative difference to the host's solution that is allowed; 0 for sums of whole numbers."""

    options: ClassVar[Mapping[str, Option]]
    """The option of each size, by field."""

    fixed: ClassVar[Mapping[str, int]] = {}
    """Sizes without an option."""

    small_sizes: ClassVar[Mapping[str, int]]
    """A size that the host solves quickly and that is no multiple of a block."""

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        for option in cls.options.values():
            parser.add_argument(option.flag, type=int, default=option.default, help=option.help)

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Self:
        given = {size: getattr(arguments, option.flag.removeprefix("--")) for size, option in cls.options.items()}
        return cls(**given, **cls.fixed)

    @classmethod
    def small(cls) -> Self:
        return cls(**cls.small_sizes)

    @property
    @abstractmethod
    def fillings(self) -> Sequence[Filling]:
        """Contents of each buffer before the first iteration."""

    @abstractmethod
    def launch(self, module: Module, addresses: Sequence[int]) -> None:
        """Launch one iteration.

        Args:
            module: The kernels.
            addresses: Of the buffers, in their order.
        """

    @abstractmethod
    def solve(self, buffers: Buffers) -> array[Any]:
        """Run one iteration on the host.

        Args:
            buffers: As filled.

        Returns:
            The expected contents of the buffer `result`.
        """

    def host_buffers(self) -> Buffers:
        """Return host copies of the filled buffers."""
        return [filling.values(seed) for seed, filling in enumerate(self.fillings)]

    def difference(self, found: array[Any], buffers: Buffers) -> str | None:
        """Compare a solution with the host's; None if they agree, else the first difference."""
        expected = self.solve(buffers)
        for place, (ours, theirs) in enumerate(zip(expected, found, strict=True)):
            if not math.isclose(ours, theirs, rel_tol=self.tolerance, abs_tol=self.tolerance):
                return f"{self.name}: at {place} the GPU has {theirs} and the host {ours}"
        return None


@dataclass(frozen=True, slots=True)
class Program:
    """One problem as a workload of the command line."""

    problem: type[Problem]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
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
        solve(WorkloadRun(self.problem.name), self.problem.from_arguments(arguments), arguments)
        return 0


def solve(this: WorkloadRun, problem: Problem, arguments: argparse.Namespace) -> None:
    """Check, solve repeatedly, and write the JSON line.

    Raises:
        WorkloadError: The requested memory is too small, or GPU and host disagree.
    """
    arena = _Arena(this, problem, arguments.memory)
    is_checked = arena.check_small_problem()
    arena.fill(problem)
    began_seconds = this.elapsed_seconds()
    iterations = rounds = 0
    while True:
        spent_seconds = this.elapsed_seconds() - began_seconds
        if rounds >= arguments.iterations if arguments.seconds is None else spent_seconds >= arguments.seconds:
            break
        if rounds:
            wait_seconds(arguments.host_ms / 1000)
        iterations += arena.solve(problem, arguments.ahead)
        rounds += 1
    this.device.synchronize()
    this.finish(
        sizes=asdict(problem),
        iterations=iterations,
        compute_seconds=round(this.elapsed_seconds() - began_seconds, 6),
        computed=is_checked,
    )


def needed_bytes(fillings: Sequence[Filling]) -> int:
    """Return the size of one allocation for these buffers, in whole pages of the driver."""
    used_bytes = sum(_padded(filling.amount_bytes) for filling in fillings)
    return -(-used_bytes // GRANULE_BYTES) * GRANULE_BYTES


def _padded(amount_bytes: int) -> int:
    return -(-amount_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


class _Arena:
    """The allocation that holds first the small problem, then the real one."""

    def __init__(self, this: WorkloadRun, problem: Problem, memory_bytes: int | None) -> None:
        self._run = this
        self._small = type(problem).small()
        needs_bytes = max(needed_bytes(problem.fillings), needed_bytes(self._small.fillings))
        room_bytes = needs_bytes
        if memory_bytes is not None:
            room_bytes = whole_granules(memory_bytes - this.context.context_bytes)
        if room_bytes < needs_bytes:
            context_mib = -(-this.context.context_bytes // MIB)
            raise WorkloadError(f"--memory must be at least {needs_bytes // MIB + context_mib}MiB for these sizes")
        self._start = this.memory.take(room_bytes)
        self._module = this.device.load((Path(__file__).parent / f"{problem.kernels}.ptx").read_bytes())
        self._marks: list[Any] = []

    def addresses(self, problem: Problem) -> Sequence[int]:
        """Return the address of each buffer of a problem."""
        found = [self._start]
        for filling in problem.fillings:
            found.append(found[-1] + _padded(filling.amount_bytes))
        return found[:-1]

    def fill(self, problem: Problem) -> None:
        for seed, (address, filling) in enumerate(zip(self.addresses(problem), problem.fillings, strict=True)):
            self._run.kernels.fill(address, filling, seed=seed)
        self._run.device.synchronize()

    def solve(self, problem: Problem, times: int = 1) -> int:
        """Launch some iterations, and return their number; waits for a single one, else for those of the call before."""
        addresses = self.addresses(problem)
        for _ in range(times):
            problem.launch(self._module, addresses)
        self._marks.append(self._run.device.mark())
        # With several iterations one call's work stays queued, so the GPU is busy while the host prepares the next.
        while len(self._marks) > (times > 1):
            self._run.device.wait_for(self._marks.pop(0))
        return times

    def check_small_problem(self) -> bool:
        """Solve the small problem and compare; return whether kernels compute here.

        Raises:
            WorkloadError: GPU and host disagree.
        """
        # Overwrites the beginning of the allocation, so it comes before `fill`.
        if not self._run.kernels.compute_here(self._start):
            return False
        small = self._small
        self.fill(small)
        self.solve(small)
        answer = array(small.fillings[small.result].typecode, bytes(small.fillings[small.result].amount_bytes))
        self._run.device.read(self.addresses(small)[small.result], answer)
        difference = small.difference(answer, small.host_buffers())
        if difference is not None:
            raise WorkloadError(difference)
        return True
