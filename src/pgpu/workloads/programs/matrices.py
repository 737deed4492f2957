"""Products of a dense matrix, as PolyBench has them: by rows, by columns, and tile by tile.

The matrix of the first two has N rows of a fixed length, not N × N: 40,960² floats would take 6.7 GB, more than P3's
card has. All values are small whole numbers, whose sums are exact in any order.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pgpu.workloads.cuda_driver import Argument, Module
from pgpu.workloads.kernels import Filling
from pgpu.workloads.programs.problem import Buffers, Option, Problem

_TILE = 64
_TILE_THREADS = 256
_BLOCK_THREADS = 256


def _integers(*values: int) -> list[Argument]:
    return [(value, ctypes.c_int) for value in values]


@dataclass(frozen=True, slots=True)
class RowWalk(Problem):
    """Matrix times vector, a thread for each row: as fast as the caches keep one line for each thread.

    P3's cache-sensitive program: of PolyBench's ATAX, BICG, MVT and GESUMMV the product that reads along rows.
    """

    name: ClassVar[str] = "matvec"
    kernels: ClassVar[str] = "matrices"
    options: ClassVar[Mapping[str, Option]] = {
        "rows": Option("--size", 10_240, "rows, one for each thread (10240)"),
        "columns": Option("--columns", 4096, "columns (4096)"),
    }
    small_sizes: ClassVar[Mapping[str, int]] = {"rows": 67, "columns": 35}

    rows: int
    columns: int

    @property
    def fillings(self) -> Sequence[Filling]:
        # Matrix, vector and result.
        length = self._vector_length
        matrix, vector = Filling("f", self.rows * self.columns, 5, -2), Filling("f", length, 5, -2)
        return matrix, vector, Filling("f", self.rows + self.columns - length)

    @property
    def _vector_length(self) -> int:
        return self.columns

    def launch(self, module: Module, addresses: Sequence[int]) -> None:
        arguments = [*((address, None) for address in addresses), *_integers(self.rows, self.columns)]
        threads = self.rows + self.columns - self._vector_length
        module.launch(self.name, threads, arguments, block_threads=_BLOCK_THREADS)

    def solve(self, buffers: Buffers) -> array[Any]:
        matrix, vector, _ = buffers
        rows = (matrix[row * self.columns : (row + 1) * self.columns] for row in range(self.rows))
        return array("f", (sum(map(_product, row, vector)) for row in rows))


class ColumnWalk(RowWalk):
    """Transposed matrix times vector, a thread for each column: every line is read whole, once; no cache matters."""

    __slots__ = ()
    name: ClassVar[str] = "matvec_t"

    @property
    def _vector_length(self) -> int:
        return self.rows

    def solve(self, buffers: Buffers) -> array[Any]:
        matrix, vector, _ = buffers
        columns = (matrix[column :: self.columns] for column in range(self.columns))
        return array("f", (sum(map(_product, column, vector)) for column in columns))


@dataclass(frozen=True, slots=True)
class TiledProduct(Problem):
    """Matrix times matrix by tiles in shared memory and registers: arithmetic is what it waits for, and L2 next."""

    name: ClassVar[str] = "gemm"
    kernels: ClassVar[str] = "matrices"
    options: ClassVar[Mapping[str, Option]] = {
        "rows": Option("--size", 10_240, "rows of the left matrix (10240)"),
        "inner": Option("--inner", 512, "columns of the left, rows of the right (512)"),
        "columns": Option("--columns", 256, "columns of the right matrix (256)"),
    }
    small_sizes: ClassVar[Mapping[str, int]] = {"rows": 67, "inner": 37, "columns": 70}

    rows: int
    inner: int
    columns: int

    @property
    def fillings(self) -> Sequence[Filling]:
        # Left, right and product.
        left, right = Filling("f", self.rows * self.inner, 5, -2), Filling("f", self.inner * self.columns, 5, -2)
        return left, right, Filling("f", self.rows * self.columns)

    def launch(self, module: Module, addresses: Sequence[int]) -> None:
        tiles = -(-self.rows // _TILE) * -(-self.columns // _TILE)
        arguments = [
            *((address, None) for address in addresses),
            *_integers(self.rows, self.inner, self.columns),
        ]
        module.launch(self.name, tiles * _TILE_THREADS, arguments, block_threads=_TILE_THREADS)

    def solve(self, buffers: Buffers) -> array[Any]:
        left, right, _ = buffers
        rows = [left[row * self.inner : (row + 1) * self.inner] for row in range(self.rows)]
        columns = [right[column :: self.columns] for column in range(self.columns)]
        return array("f", (sum(map(_product, row, column)) for row in rows for column in columns))


def _product(one: float, other: float) -> float:
    return one * other
