"""Heat diffusion on a chip and in a stack of chips, as Rodinia's hotspot and hotspot3D simulate it.

An iteration is two steps: from the first grid to the second and back. They refuse to run other boundary conditions than
closed ones.
"""

from __future__ import annotations

import argparse
import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pgpu.workloads.cuda_driver import Module
from pgpu.workloads.kernels import Filling
from pgpu.workloads.programs.problem import Buffers, Problem

_FLOW = 0.125
_GAIN = 0.0625
_BLOCK_THREADS = 256


@dataclass(frozen=True, slots=True)
class Stack(Problem):
    """3-D heat diffusion, as in Rodinia's hotspot3D: a seven-point stencil. P3's program of the memory limit."""

    name: ClassVar[str] = "hotspot3d"
    kernels: ClassVar[str] = "stencils"
    result: ClassVar[int] = 0
    tolerance: ClassVar[float] = 1e-5

    layers: int
    rows: int
    columns: int

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Name the sizes that a user may choose."""
        parser.add_argument("--layers", type=int, default=8, help="layers (8; a layer of 512 × 512 takes 3 MiB)")
        parser.add_argument("--rows", type=int, default=512, help="rows of a layer (512)")
        parser.add_argument("--columns", type=int, default=512, help="columns of a layer (512)")

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Self:
        """Read the sizes from the command line."""
        return cls(layers=arguments.layers, rows=arguments.rows, columns=arguments.columns)

    @classmethod
    def small(cls) -> Self:
        """Return a size that the host solves at once."""
        return cls(layers=3, rows=11, columns=13)

    @property
    def _sizes(self) -> tuple[int, ...]:
        """What the kernel is told of the grid."""
        return self.layers, self.rows, self.columns

    @property
    def _cells(self) -> int:
        return self.layers * self.rows * self.columns

    @property
    def fillings(self) -> Sequence[Filling]:
        """Heat, power, and the heat of the next step."""
        return Filling("f", self._cells, 50, 300), Filling("f", self._cells, 8), Filling("f", self._cells)

    def launch(self, module: Module, addresses: Sequence[int]) -> None:
        """Launch two steps."""
        heat, power, following = addresses
        sizes = [(size, ctypes.c_int) for size in self._sizes]
        constants = [(_FLOW, ctypes.c_float), (_GAIN, ctypes.c_float)]
        for source, target in ((heat, following), (following, heat)):
            arguments = [(source, None), (power, None), (target, None), *sizes, *constants]
            module.launch(self.name, self._cells, arguments, block_threads=_BLOCK_THREADS)

    def solve(self, buffers: Buffers) -> array[Any]:
        """Do two steps on the host."""
        heat, power, _ = buffers
        return self._step(self._step(heat, power), power)

    def _step(self, heat: array[Any], power: array[Any]) -> array[Any]:
        cells = range(self._cells)
        return array("f", (self._next(heat, power, cell) for cell in cells))

    def _next(self, heat: array[Any], power: array[Any], cell: int) -> float:
        neighbours = self._neighbours(cell)
        incoming = sum(heat[each] - heat[cell] for each in neighbours)
        return float(heat[cell] + _FLOW * incoming + _GAIN * power[cell])

    def _neighbours(self, cell: int) -> Sequence[int]:
        plane = self.rows * self.columns
        layer, row, column = cell // plane, cell // self.columns % self.rows, cell % self.columns
        sides = (
            (layer > 0, -plane),
            (layer < self.layers - 1, plane),
            (row > 0, -self.columns),
            (row < self.rows - 1, self.columns),
            (column > 0, -1),
            (column < self.columns - 1, 1),
        )
        return [cell + step for is_inside, step in sides if is_inside]


class Chip(Stack):
    """2-D heat diffusion, as in Rodinia's hotspot: a five-point stencil."""

    __slots__ = ()
    name: ClassVar[str] = "hotspot"

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Name the sizes that a user may choose."""
        parser.add_argument("--rows", type=int, default=2048, help="rows (2048)")
        parser.add_argument("--columns", type=int, default=2048, help="columns (2048)")

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Self:
        """Read the sizes from the command line."""
        return cls(layers=1, rows=arguments.rows, columns=arguments.columns)

    @classmethod
    def small(cls) -> Self:
        """Return a size that the host solves at once."""
        return cls(layers=1, rows=17, columns=19)

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.rows, self.columns
