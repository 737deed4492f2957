"""What the free part of a GPU is worth to a mix of jobs.

Each kind of job has a price in whole GPUs: how much one more of it adds to the number of GPUs that all jobs need when packed
optimally. A free part is worth a weighted mean of two sums of prices:

- that of its best filling;
- the expected sum of jobs that arrive at random, where a gap that waits long for a fitting job counts less.

The first prefers good fillings, and values a gap at nothing if more gaps of its kind are left than jobs that fill them. The
second decides between parts that the first rates equally.

Sources: the prices are the dual of the cutting-stock problem (Gilmore and Gomory 1961); counting what a job drawn from the recent
mix cannot use is fragmentation gradient descent (Weng et al., USENIX ATC 2023). Their mean and the constants are ours, chosen
on openb with other seeds than those reported; the first weight of the best filling had missed a bar on those before this one
was chosen (benchmarks/README.md).
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence

from pgpu.scheduling.cluster_resources import GpuType, JobShape
from pgpu.structs import Struct

# Steps into which a GPU is divided if jobs ask for one resource only; a multiple of it if there are few kinds of jobs. Finer
# steps change nothing on openb, where jobs ask for hundredths.
STEPS_ALONE = 100

MOST_STEPS_ALONE = 1000

# Steps times kinds, which bounds the cost of computing prices to some 10 ms of CPU.
STEPS_OF_ALL_KINDS = 6400

# Steps of each resource if jobs ask for two: a thousand free parts to value instead of ten thousand.
STEPS_TOGETHER = 32

# Frequency of fitting jobs, as a share of arrivals, at which a gap loses half of what they would bring.
PATIENCE = 0.03

# Weight of the best filling; the rest is that of random arrivals.
BEST_SHARE = 0.65

# Kinds of jobs that are valued: the most frequent. openb has 20 on one GPU.
MOST_KINDS = 64

# Kinds that are tried at the front when prices are computed: the most frequent.
MOST_TRIED = 16


class _Kind(Struct, frozen=True):
    """Jobs on one GPU that ask for the same."""

    cell: int
    compute_steps: int
    memory_steps: int
    cpu_milli: int
    frequency: float
    price: float
    """In whole GPUs."""


class _Worth(dict[int, float]):
    """Worth of each free part (by cell) to kinds of jobs, computed on first access."""

    def __init__(self, kinds: Sequence[_Kind], width: int, price: float, best_share: float) -> None:
        super().__init__()
        self._price = price
        self._best_share = best_share
        self._kinds = kinds
        self._width = width
        self._parts: dict[int, tuple[float, float]] = {}

    def __missing__(self, cell: int) -> float:
        best, filled = self._both(cell)
        self[cell] = worth = self._price * (self._best_share * best + (1 - self._best_share) * filled)
        return worth

    def _both(self, cell: int) -> tuple[float, float]:
        """Return the price sum of the best filling, and the expected one of random arrivals.

        best(c)   = max over fitting kinds k of price_k + best(c - k)
        filled(c) = sum over fitting k of f_k (price_k + filled(c - k)) / (PATIENCE + sum of f_k), with frequencies f.
        """
        known = self._parts.get(cell)
        if known is not None:
            return known
        compute_steps, memory_steps = divmod(cell, self._width)
        best, brought, rate = 0.0, 0.0, PATIENCE
        for kind in self._kinds:
            if kind.compute_steps <= compute_steps and kind.memory_steps <= memory_steps:
                best_of_rest, filled_of_rest = self._both(cell - kind.cell)
                best = max(best, kind.price + best_of_rest)
                brought += kind.frequency * (kind.price + filled_of_rest)
                rate += kind.frequency
        self._parts[cell] = best, brought / rate
        return self._parts[cell]


class GpuWorth:
    """Worth of GPUs of one type and of their free parts. Caches what it computed; results never change."""

    def __init__(
        self,
        counts: Mapping[JobShape, float],
        type_: GpuType,
        *,
        wide: Sequence[tuple[JobShape, float]] = (),
        price: float = 1.0,
        best_share: float = BEST_SHARE,
    ) -> None:
        """Take the jobs that such a GPU can host.

        Args:
            counts: Of each shape on one GPU, relative to each other.
            type_: The GPU's size.
            wide: Shapes on several GPUs, and the worth of an idle GPU to each.
            price: Factor on the worth of its parts.
            best_share: Weight of the best filling, 0 to 1; the rest is that of random arrivals.
        """
        self._compute_milli = type_.compute_milli if any(shape.compute_milli for shape in counts) else 0
        self._memory_bytes = type_.memory_bytes if any(shape.memory_bytes for shape in counts) else 0
        self._steps = self._steps_for(counts)
        self._width = self._steps + 1 if self._memory_bytes else 1
        kinds = self._kinds(counts)
        self.thresholds_milli = sorted({kind.cpu_milli for kind in kinds})
        # One table for each amount of CPU at which one more kind can run; the first is for less than any kind needs.
        self.by_cpu = [
            _Worth([kind for kind in kinds if kind.cpu_milli <= most], self._width, price, best_share)
            for most in (-1, *self.thresholds_milli)
        ]
        self.wide = wide
        self._least_wide = min((shape.gpu_count for shape, _ in wide), default=math.inf)
        self._most_wide = max((shape.gpu_count for shape, _ in wide), default=0)
        self._wide_cpu_milli = sorted({shape.cpu_milli for shape, _ in wide})
        self._wide_host_bytes = sorted({shape.host_memory_bytes for shape, _ in wide})
        self._wide_weights: dict[tuple[int, int, int], float] = {}

    def cell(self, free_compute_milli: int, free_memory_bytes: int) -> int:
        """Return the number of a free part, in whole steps.

        Rounded up like the shapes of jobs, so that the gap left by a job is filled by the next one of its kind. Whether a job
        really fits is checked elsewhere.
        """
        steps = -(-free_compute_milli * self._steps // self._compute_milli) if self._compute_milli else 0
        if not self._memory_bytes:
            return steps
        return steps * self._width - (-free_memory_bytes * self._steps // self._memory_bytes)

    def idle_worth(self, idle_gpus: int, cpu_milli: int, host_memory_bytes: int) -> float:
        """Return the worth of idle GPUs of one node to jobs that need several, in whole GPUs."""
        if idle_gpus < self._least_wide:
            return 0.0
        key = (
            min(idle_gpus, self._most_wide),
            bisect_right(self._wide_cpu_milli, cpu_milli),
            bisect_right(self._wide_host_bytes, host_memory_bytes),
        )
        weight = self._wide_weights.get(key)
        if weight is None:
            weight = self._wide_weights[key] = sum(
                weight
                for shape, weight in self.wide
                if shape.gpu_count <= idle_gpus
                and shape.cpu_milli <= cpu_milli
                and shape.host_memory_bytes <= host_memory_bytes
            )
        return idle_gpus * weight

    def _steps_for(self, counts: Mapping[JobShape, float]) -> int:
        if self._compute_milli and self._memory_bytes:
            return STEPS_TOGETHER
        kinds = len({(shape.compute_milli, shape.memory_bytes) for shape in counts})
        steps = STEPS_OF_ALL_KINDS // max(1, kinds) // STEPS_ALONE * STEPS_ALONE
        return max(STEPS_ALONE, min(MOST_STEPS_ALONE, steps))

    def _steps_of(self, shape: JobShape) -> tuple[int, int]:
        compute = -(-shape.compute_milli * self._steps // self._compute_milli) if self._compute_milli else 0
        memory = -(-shape.memory_bytes * self._steps // self._memory_bytes) if self._memory_bytes else 0
        return compute, memory

    def _kinds(self, counts: Mapping[JobShape, float]) -> list[_Kind]:
        steps: dict[tuple[int, int], float] = defaultdict(float)
        with_cpu: dict[tuple[tuple[int, int], int], float] = defaultdict(float)
        for shape, count in counts.items():
            steps[self._steps_of(shape)] += count
            with_cpu[self._steps_of(shape), shape.cpu_milli] += count
        frequent = sorted(steps, key=lambda kind: (-steps[kind], kind))[:MOST_KINDS]
        prices = _prices({kind: steps[kind] for kind in frequent}, self._steps, self._width)
        total = sum(with_cpu.values())
        return [
            _Kind(
                cell=compute * self._width + memory,
                compute_steps=compute,
                memory_steps=memory,
                cpu_milli=cpu_milli,
                frequency=count / total,
                price=prices[compute, memory],
            )
            for ((compute, memory), cpu_milli), count in sorted(with_cpu.items())
            if (compute, memory) in prices
        ]


def _prices(counts: Mapping[tuple[int, int], float], most: int, width: int) -> dict[tuple[int, int], float]:
    """Price kinds of jobs so that no filling of a GPU is worth over 1, and all jobs together nearly as much as possible.

    Kinds are priced greedily, the most frequent first; then each of the most frequent kinds is tried at the front. On openb the
    first order already reaches the optimum of the linear program; on samples of it some end 0.6 points below.
    """

    def total(prices: dict[tuple[int, int], float]) -> float:
        return sum(price * counts[kind] for kind, price in prices.items())

    order = sorted(counts, key=lambda kind: (-counts[kind], kind))
    prices = _prices_in(order, most, width)
    for kind in order[:MOST_TRIED]:
        tried = [kind, *(other for other in order if other != kind)]
        found = _prices_in(tried, most, width)
        if total(found) > total(prices) + 1e-9:
            order, prices = tried, found
    return prices


def _prices_in(order: Sequence[tuple[int, int]], most: int, width: int) -> dict[tuple[int, int], float]:
    # Each kind as high as the kinds before it allow.
    # worth[c] is the best filling of cell c with the kinds priced so far (unbounded knapsack). A kind of which n fit into
    # a whole GPU may cost (1 - worth of the rest) / n.
    worth = [0.0] * (most * width + width if any(compute for compute, _ in order) else width)
    prices: dict[tuple[int, int], float] = {}
    for compute, memory in order:
        cell = compute * width + memory
        most_times = min(most // part for part in (compute, memory) if part)
        price = max(0.0, min((1 - worth[-1 - times * cell]) / times for times in range(1, most_times + 1)))
        prices[compute, memory] = price
        if price:
            for free in range(cell, len(worth)):
                filled = price + worth[free - cell]
                if filled > worth[free] and free % width >= memory:
                    worth[free] = filled
    return prices
