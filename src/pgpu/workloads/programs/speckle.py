"""Speckle reducing anisotropic diffusion of an image, as Rodinia's srad does it: two kernels in turn.

It refuses to estimate the speckle's scale from the image: q0 is fixed, so that no reduction hides the stencils.
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

_Q0_SQUARED = 0.05
_RATE = 0.5
_BLOCK_THREADS = 256


@dataclass(frozen=True, slots=True)
class Speckle(Problem):
    """Speckle reducing anisotropic diffusion, as in Rodinia's srad: a stencil of divisions and one of products."""

    name: ClassVar[str] = "srad"
    kernels: ClassVar[str] = "stencils"
    tolerance: ClassVar[float] = 1e-4

    rows: int
    columns: int

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Name the sizes that a user may choose."""
        parser.add_argument("--rows", type=int, default=2048, help="rows (2048)")
        parser.add_argument("--columns", type=int, default=2048, help="columns (2048)")

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Self:
        """Read the sizes from the command line."""
        return cls(rows=arguments.rows, columns=arguments.columns)

    @classmethod
    def small(cls) -> Self:
        """Return a size that the host solves at once."""
        return cls(rows=17, columns=19)

    @property
    def _pixels(self) -> int:
        return self.rows * self.columns

    @property
    def fillings(self) -> Sequence[Filling]:
        """Image, flow, and the image of the next step."""
        return Filling("f", self._pixels, 100, 100), Filling("f", self._pixels), Filling("f", self._pixels)

    def launch(self, module: Module, addresses: Sequence[int]) -> None:
        """Launch both halves of one step."""
        image, flow, following = ((address, None) for address in addresses)
        sizes = [(self.rows, ctypes.c_int), (self.columns, ctypes.c_int)]
        q0_squared, rate = (_Q0_SQUARED, ctypes.c_float), (_RATE, ctypes.c_float)
        module.launch("srad_flow", self._pixels, [image, flow, *sizes, q0_squared], block_threads=_BLOCK_THREADS)
        module.launch("srad_move", self._pixels, [image, flow, following, *sizes, rate], block_threads=_BLOCK_THREADS)

    def solve(self, buffers: Buffers) -> array[Any]:
        """Do one step on the host."""
        image = buffers[0]
        flow = [self._flow(image, pixel) for pixel in range(self._pixels)]
        return array("f", (self._moved(image, flow, pixel) for pixel in range(self._pixels)))

    def _flow(self, image: array[Any], pixel: int) -> float:
        mine = image[pixel]
        apart = [image[each] - mine for each in self._neighbours(pixel)]
        gradient = sum(each * each for each in apart) / mine**2
        laplacian = sum(apart) / mine
        q_squared = (0.5 * gradient - 0.0625 * laplacian**2) / (1 + 0.25 * laplacian) ** 2
        answer = 1 / (1 + (q_squared - _Q0_SQUARED) / (_Q0_SQUARED * (1 + _Q0_SQUARED)))
        return float(min(max(answer, 0), 1))

    def _moved(self, image: array[Any], flow: Sequence[float], pixel: int) -> float:
        north, south, west, east = self._neighbours(pixel)
        ways = ((south, flow[south]), (east, flow[east]), (north, flow[pixel]), (west, flow[pixel]))
        divergence = sum(freely * (image[each] - image[pixel]) for each, freely in ways)
        return float(image[pixel] + 0.25 * _RATE * divergence)

    def _neighbours(self, pixel: int) -> Sequence[int]:
        """Return north, south, west and east; the pixel itself where the image ends."""
        row, column = divmod(pixel, self.columns)
        return (
            pixel - self.columns if row > 0 else pixel,
            pixel + self.columns if row < self.rows - 1 else pixel,
            pixel - 1 if column > 0 else pixel,
            pixel + 1 if column < self.columns - 1 else pixel,
        )
