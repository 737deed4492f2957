"""Dynamic programming as in Rodinia's pathfinder and Needleman-Wunsch: many short launches, each after the one before.

Steps are not fused, since the cost of launches is the purpose of these programs.
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
_WORD_BYTES = 4
_GAP = 1
_LETTERS = 4


@dataclass(frozen=True, slots=True)
class Path(Problem):
    """The cheapest way down a wall of costs, as in Rodinia's pathfinder: a launch for each row.

    An iteration goes on below the one before.
    """

    name: ClassVar[str] = "pathfinder"
    kernels: ClassVar[str] = "dynamic"
    options: ClassVar[Mapping[str, Option]] = {
        "rows": Option("--rows", 100, "rows, a launch for each (100)"),
        "columns": Option("--columns", 100_000, "columns (100000)"),
    }
    small_sizes: ClassVar[Mapping[str, int]] = {"rows": 9, "columns": 301}

    rows: int
    columns: int

    @property
    def fillings(self) -> Sequence[Filling]:
        # Costs of all rows, and the ways' costs down to two rows in turn.
        return Filling("i", self.rows * self.columns, 10), Filling("i", self.columns), Filling("i", self.columns)

    def launch(self, module: Module, addresses: Sequence[int]) -> None:
        """Launch one kernel for each row; the last one writes the last buffer."""
        costs, *ways = addresses
        for row in range(self.rows):
            above, following = ways if (self.rows - row) % 2 else reversed(ways)
            address = costs + row * self.columns * _WORD_BYTES
            arguments = [(address, None), (above, None), (following, None), (self.columns, ctypes.c_int)]
            module.launch(self.name, self.columns, arguments, block_threads=_BLOCK_THREADS)

    def solve(self, buffers: Buffers) -> array[Any]:
        costs, above, _ = buffers
        for row in range(self.rows):
            least = (min(above[max(0, column - 1) : column + 2]) for column in range(self.columns))
            above = array("i", (costs[row * self.columns + column] + each for column, each in enumerate(least)))
        return above


@dataclass(frozen=True, slots=True)
class Alignment(Problem):
    """The best alignment of two sequences, as in Rodinia's nw: a launch for each anti-diagonal of the scores."""

    name: ClassVar[str] = "nw"
    kernels: ClassVar[str] = "dynamic"
    options: ClassVar[Mapping[str, Option]] = {
        "length": Option("--length", 512, "letters of each sequence (512)"),
    }
    small_sizes: ClassVar[Mapping[str, int]] = {"length": 37}

    length: int

    @property
    def fillings(self) -> Sequence[Filling]:
        # Both sequences, and the scores, whose first row and column stay 0: gaps at the ends cost nothing.
        letters = Filling("i", self.length, _LETTERS)
        return letters, letters, Filling("i", (self.length + 1) ** 2)

    def launch(self, module: Module, addresses: Sequence[int]) -> None:
        for diagonal in range(2, 2 * self.length + 1):
            first, last = max(1, diagonal - self.length), min(self.length, diagonal - 1)
            numbers = [(number, ctypes.c_int) for number in (self.length, diagonal, first, last - first + 1, _GAP)]
            arguments = [*((address, None) for address in addresses), *numbers]
            module.launch("align", last - first + 1, arguments, block_threads=_BLOCK_THREADS)

    def solve(self, buffers: Buffers) -> array[Any]:
        left, right, scores = buffers
        width = self.length + 1
        found = array("i", scores)
        for row in range(1, width):
            for column in range(1, width):
                at = row * width + column
                matched = found[at - width - 1] + (2 if left[row - 1] == right[column - 1] else -1)
                found[at] = max(matched, found[at - width] - _GAP, found[at - 1] - _GAP)
        return found
