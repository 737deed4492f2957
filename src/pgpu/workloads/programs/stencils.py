"""Stencils: heat diffusion as in Rodinia's hotspot and hotspot3D, and speckle reducing diffusion of an image as in srad.

Heat: an iteration is two steps, from the first grid to the second and back, with closed boundaries. Speckle: two kernels in turn,
with a fixed speckle scale q0, so that no reduction hides the stencils.
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

_FLOW = 0.125
_GAIN = 0.0625
_Q0_SQUARED = 0.05
_RATE = 0.5
_BLOCK_THREADS = 256


@dataclass(frozen=True, slots=True)
class Stack(Problem):
    """3-D heat diffusion, as in Rodinia's hotspot3D: a seven-point stencil. P3's program of the memory limit."""

    name: ClassVar[str] = "hotspot3d"
    kernels: ClassVar[str] = "stencils"
    result: ClassVar[int] = 0
    tolerance: ClassVar[float] = 1e-5
    options: ClassVar[Mapping[str, Option]] = {
        "layers": Option("--layers", 8, "layers (8; a layer of 512 × 512 takes 3 MiB)"),
        "rows": Option("--rows", 512, "rows of a layer (512)"),
        "columns": Option("--columns", 512, "columns of a layer (512)"),
    }
    small_sizes: ClassVar[Mapping[str, int]] = {"layers": 3, "rows": 11, "columns": 13}

    layers: int
    rows: int
    columns: int

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.layers, self.rows, self.columns

    @property
    def _cells(self) -> int:
        return self.layers * self.rows * self.columns

    @property
    def fillings(self) -> Sequence[Filling]:
        # Heat, power, and the heat of the next step.
        return Filling("f", self._cells, 50, 300), Filling("f", self._cells, 8), Filling("f", self._cells)

    def launch(self, module: Module, addresses: Sequence[int]) -> None:
        heat, power, following = addresses
        sizes = [(size, ctypes.c_int) for size in self._sizes]
        constants = [(_FLOW, ctypes.c_float), (_GAIN, ctypes.c_float)]
        for source, target in ((heat, following), (following, heat)):
            arguments = [(source, None), (power, None), (target, None), *sizes, *constants]
            module.launch(self.name, self._cells, arguments, block_threads=_BLOCK_THREADS)

    def solve(self, buffers: Buffers) -> array[Any]:
        heat, power, _ = buffers
        return self._step(self._step(heat, power), power)

    def _step(self, heat: array[Any], power: array[Any]) -> array[Any]:
        following = array("f")
        for cell in range(self._cells):
            incoming = sum(heat[each] - heat[cell] for each in self._neighbours(cell))
            following.append(heat[cell] + _FLOW * incoming + _GAIN * power[cell])
        return following

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
    options: ClassVar[Mapping[str, Option]] = {
        "rows": Option("--rows", 2048, "rows (2048)"),
        "columns": Option("--columns", 2048, "columns (2048)"),
    }
    fixed: ClassVar[Mapping[str, int]] = {"layers": 1}
    small_sizes: ClassVar[Mapping[str, int]] = {"layers": 1, "rows": 17, "columns": 19}

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.rows, self.columns


@dataclass(frozen=True, slots=True)
class Speckle(Problem):
    """Speckle reducing anisotropic diffusion, as in Rodinia's srad: a stencil of divisions and one of products."""

    name: ClassVar[str] = "srad"
    kernels: ClassVar[str] = "stencils"
    tolerance: ClassVar[float] = 1e-4
    options: ClassVar[Mapping[str, Option]] = {
        "rows": Option("--rows", 2048, "rows (2048)"),
        "columns": Option("--columns", 2048, "columns (2048)"),
    }
    small_sizes: ClassVar[Mapping[str, int]] = {"rows": 17, "columns": 19}

    rows: int
    columns: int

    @property
    def _pixels(self) -> int:
        return self.rows * self.columns

    @property
    def fillings(self) -> Sequence[Filling]:
        # Image, flow, and the image of the next step.
        return Filling("f", self._pixels, 100, 100), Filling("f", self._pixels), Filling("f", self._pixels)

    def launch(self, module: Module, addresses: Sequence[int]) -> None:
        """Launch both halves of one step."""
        image, flow, following = ((address, None) for address in addresses)
        sizes = [(self.rows, ctypes.c_int), (self.columns, ctypes.c_int)]
        q0_squared, rate = (_Q0_SQUARED, ctypes.c_float), (_RATE, ctypes.c_float)
        module.launch("srad_flow", self._pixels, [image, flow, *sizes, q0_squared], block_threads=_BLOCK_THREADS)
        module.launch("srad_move", self._pixels, [image, flow, following, *sizes, rate], block_threads=_BLOCK_THREADS)

    def solve(self, buffers: Buffers) -> array[Any]:
        image = buffers[0]
        flow = [self._flow(image, pixel) for pixel in range(self._pixels)]
        return array("f", (self._move(image, flow, pixel) for pixel in range(self._pixels)))

    def _flow(self, image: array[Any], pixel: int) -> float:
        mine = image[pixel]
        apart = [image[each] - mine for each in self._neighbours(pixel)]
        gradient = sum(each * each for each in apart) / mine**2
        laplacian = sum(apart) / mine
        q_squared = (0.5 * gradient - 0.0625 * laplacian**2) / (1 + 0.25 * laplacian) ** 2
        answer = 1 / (1 + (q_squared - _Q0_SQUARED) / (_Q0_SQUARED * (1 + _Q0_SQUARED)))
        return float(min(max(answer, 0), 1))

    def _move(self, image: array[Any], flow: Sequence[float], pixel: int) -> float:
        north, south, west, east = self._neighbours(pixel)
        ways = ((south, flow[south]), (east, flow[east]), (north, flow[pixel]), (west, flow[pixel]))
        divergence = sum(freely * (image[each] - image[pixel]) for each, freely in ways)
        return float(image[pixel] + 0.25 * _RATE * divergence)

    def _neighbours(self, pixel: int) -> Sequence[int]:
        """Return north, south, west and east; the pixel itself at the edge of the image."""
        row, column = divmod(pixel, self.columns)
        return (
            pixel - self.columns if row > 0 else pixel,
            pixel + self.columns if row < self.rows - 1 else pixel,
            pixel - 1 if column > 0 else pixel,
            pixel + 1 if column < self.columns - 1 else pixel,
        )
