"""Particles that attract each other: limited by arithmetic and independent of caches, in place of P3's cache-insensitive program.

The particles do not move, so each iteration computes the same.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pgpu.workloads.cuda_driver import Module
from pgpu.workloads.kernels import Filling
from pgpu.workloads.programs.problem import Buffers, Option, Problem

_BLOCK_THREADS = 256
# Of a particle: its place and its mass.
_NUMBERS = 4


@dataclass(frozen=True, slots=True)
class Particles(Problem):
    """Pulls between all pairs of particles, by tiles in shared memory: arithmetic is what it waits for.

    P3's cache-insensitive program: the amount of arithmetic grows with the square of the input's size.
    """

    name: ClassVar[str] = "nbody"
    kernels: ClassVar[str] = "particles"
    tolerance: ClassVar[float] = 1e-3
    options: ClassVar[Mapping[str, Option]] = {
        "particles": Option("--size", 10_240, "particles (10240)"),
    }
    small_sizes: ClassVar[Mapping[str, int]] = {"particles": 301}

    particles: int

    @property
    def fillings(self) -> Sequence[Filling]:
        # Particles, and what one step adds to their velocities.
        return Filling("f", self.particles * _NUMBERS, 20, 1), Filling("f", self.particles * _NUMBERS)

    def launch(self, module: Module, addresses: Sequence[int]) -> None:
        arguments = [*((address, None) for address in addresses), (self.particles, ctypes.c_int)]
        module.launch(self.name, self.particles, arguments, block_threads=_BLOCK_THREADS)

    def solve(self, buffers: Buffers) -> array[Any]:
        numbers = buffers[0]
        all_of_them = [tuple(numbers[at : at + _NUMBERS]) for at in range(0, len(numbers), _NUMBERS)]
        return array("f", (pull for particle in all_of_them for pull in _pull(particle, all_of_them)))


def _pull(particle: tuple[float, ...], others: Sequence[tuple[float, ...]]) -> tuple[float, float, float, float]:
    x = y = z = 0.0
    for other in others:
        across, along, up = (theirs - ours for ours, theirs in zip(particle[:3], other[:3], strict=True))
        pull = other[3] / (across**2 + along**2 + up**2 + 1) ** 1.5
        x, y, z = x + across * pull, y + along * pull, z + up * pull
    return x, y, z, 0.0
