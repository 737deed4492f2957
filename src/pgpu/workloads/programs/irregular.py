"""Programs with irregular reads or many short launches: k-means and breadth-first search, pathfinder and Needleman-Wunsch.

After Rodinia. The number of launches never depends on a kernel's result, so that the programs also end on a GPU that computes
nothing. Steps of dynamic programming are not fused, since the cost of launches is their purpose.
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

_BLOCK_THREADS = 256
_NOT_REACHED = -1
_WORD_BYTES = 4
_GAP = 1
_LETTERS = 4


def _integers(*values: int) -> list[Argument]:
    return [(value, ctypes.c_int) for value in values]


def _begin(module: Module, address: int, count: int, value: int, first: int) -> None:
    """Set all words but the first to a value."""
    arguments = [(address, None), *_integers(count, value, first, 0)]
    module.launch("begin", count, arguments, block_threads=_BLOCK_THREADS)


@dataclass(frozen=True, slots=True)
class Clusters(Problem):
    """One round of k-means, as in Rodinia's kmeans: every point finds its centre, then each centre's points are added."""

    name: ClassVar[str] = "kmeans"
    kernels: ClassVar[str] = "irregular"
    options: ClassVar[Mapping[str, Option]] = {
        "points": Option("--points", 500_000, "points (500000)"),
        "features": Option("--features", 34, "numbers that a point has (34)"),
        "clusters": Option("--clusters", 5, "centres (5)"),
    }
    small_sizes: ClassVar[Mapping[str, int]] = {"points": 301, "features": 7, "clusters": 5}

    points: int
    features: int
    clusters: int

    @property
    def _sizes(self) -> list[Argument]:
        return _integers(self.points, self.features, self.clusters)

    @property
    def fillings(self) -> Sequence[Filling]:
        # Points, centres, each point's centre, and the sums with the numbers of points behind them.
        return (
            Filling("f", self.points * self.features, 16),
            Filling("f", self.clusters * self.features, 16),
            Filling("i", self.points),
            Filling("f", self.clusters * (self.features + 1)),
        )

    def launch(self, module: Module, addresses: Sequence[int]) -> None:
        """Launch both halves of one round, with new sums."""
        _begin(module, addresses[3], self.clusters * (self.features + 1), 0, 0)
        points, centres, owners, sums = ((address, None) for address in addresses)
        module.launch("assign", self.points, [points, centres, owners, *self._sizes], block_threads=_BLOCK_THREADS)
        module.launch("gather", self.points, [points, owners, sums, *self._sizes], block_threads=_BLOCK_THREADS)

    def solve(self, buffers: Buffers) -> array[Any]:
        points, centres, _, sums = buffers
        found = array("f", sums)
        for number in range(self.points):
            point = points[number :: self.points]
            owner = min(range(self.clusters), key=lambda cluster: self._squared_distance(point, centres, cluster))
            for feature, value in enumerate(point):
                found[owner * self.features + feature] += value
            found[self.clusters * self.features + owner] += 1
        return found

    def _squared_distance(self, point: array[Any], centres: array[Any], cluster: int) -> float:
        centre = centres[cluster * self.features : (cluster + 1) * self.features]
        return float(sum((ours - theirs) ** 2 for ours, theirs in zip(point, centre, strict=True)))


@dataclass(frozen=True, slots=True)
class Levels(Problem):
    """Breadth-first search in a graph drawn by lot, as in Rodinia's bfs: a launch for each level."""

    name: ClassVar[str] = "bfs"
    kernels: ClassVar[str] = "irregular"
    options: ClassVar[Mapping[str, Option]] = {
        "nodes": Option("--nodes", 1_000_000, "nodes (1000000)"),
        "degree": Option("--degree", 6, "edges of each node (6)"),
        "levels": Option("--levels", 12, "levels, a launch for each (12)"),
    }
    small_sizes: ClassVar[Mapping[str, int]] = {"nodes": 501, "degree": 3, "levels": 4}

    nodes: int
    degree: int
    levels: int

    @property
    def fillings(self) -> Sequence[Filling]:
        # Edges, stored edge by edge, and each node's level.
        return Filling("i", self.nodes * self.degree, self.nodes), Filling("i", self.nodes)

    def launch(self, module: Module, addresses: Sequence[int]) -> None:
        """Forget all levels but the first node's, then launch one kernel for each level."""
        edges, levels = addresses
        _begin(module, levels, self.nodes, _NOT_REACHED, 0)
        for level in range(self.levels):
            arguments = [(edges, None), (levels, None), *_integers(self.nodes, self.degree, level)]
            module.launch("spread", self.nodes, arguments, block_threads=_BLOCK_THREADS)

    def solve(self, buffers: Buffers) -> array[Any]:
        edges, _ = buffers
        levels = array("i", [0] + [_NOT_REACHED] * (self.nodes - 1))
        reached = [0]
        for level in range(1, self.levels + 1):
            behind = {edges[edge * self.nodes + node] for node in reached for edge in range(self.degree)}
            reached = [node for node in behind if levels[node] == _NOT_REACHED]
            for node in reached:
                levels[node] = level
        return levels


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
