"""What the free part of a GPU will be worth to the jobs that are likely to come, judged by the jobs of the recent past.

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
from collections import Counter
from collections.abc import Iterable, Sequence

from pgpu.model import SharingMode
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

# Factor on the share of jobs with several GPUs, in the value of idle GPUs for them. A larger one is better on openb with
# departures and worse without: 0.5 to 2 changes either by 0.3 points at most.
WIDE_WEIGHT = 0.7


class JobShape(Struct, frozen=True):
    """Resources that one job asks for. Integers, so that no fit depends on rounding; GPU amounts are per GPU."""

    gpu_count: int = 1
    """Distinct GPUs of one node; 0 for a job without a GPU."""

    compute_milli: int = 0
    """Thousandths of a GPU's compute; 0 if the job asks for memory only."""

    memory_bytes: int = 0
    """CUDA context included; 0 if the job asks for compute only."""

    cpu_milli: int = 0
    """Thousandths of a CPU core of the node."""

    host_memory_bytes: int = 0


class GpuResources(Struct, frozen=True):
    """Size of one GPU, and what is free of it."""

    uuid: str
    free_compute_milli: int
    """Thousandths of its compute."""

    free_memory_bytes: int = 0
    compute_milli: int = 1000
    """All of it."""

    memory_bytes: int = 0
    """The most that slices may sum to; 0 if only compute is divided."""

    sharing_mode: SharingMode | None = None
    """None before its first job."""

    @property
    def is_idle(self) -> bool:
        """Whether all of it is free."""
        return self.free_compute_milli == self.compute_milli and self.free_memory_bytes == self.memory_bytes

    @property
    def free_share(self) -> float:
        """Free share, 0 to 1: the mean of compute and memory."""
        return self.share_of(self.free_compute_milli, self.free_memory_bytes)

    def share_of(self, compute_milli: int, memory_bytes: int) -> float:
        """Return the share of this GPU that such amounts are, 0 to 1: the mean of compute and memory."""
        compute_share = compute_milli / self.compute_milli
        return (compute_share + memory_bytes / self.memory_bytes) / 2 if self.memory_bytes else compute_share

    def can_host(self, shape: JobShape, wanted: SharingMode | None = None) -> bool:
        """Whether a slice of this shape fits here beside the jobs on it, in the wanted sharing mode.

        A GPU with nothing free hosts no job, even one that asks for nothing of it.
        """
        if not (self.free_compute_milli or self.free_memory_bytes):
            return False
        fits = shape.compute_milli <= self.free_compute_milli and shape.memory_bytes <= self.free_memory_bytes
        return fits and self.admits(wanted)

    def admits(self, wanted: SharingMode | None) -> bool:
        """Whether the jobs on it let in a job that needs this sharing mode; None for any."""
        if wanted is None and self.sharing_mode is None:
            return True
        if self.is_idle or wanted is SharingMode.EXCLUSIVE:
            return self.is_idle
        return self.sharing_mode is not SharingMode.EXCLUSIVE and (
            wanted is None or self.sharing_mode is None or self.sharing_mode is wanted
        )

    def changes_mode(self, wanted: SharingMode | None) -> bool:
        """Whether a job that needs this sharing mode changes that of the GPU."""
        return wanted is not None and self.sharing_mode is not wanted


class NodeResources(Struct, frozen=True):
    """One node: its GPUs in NVML index order, and what is free of the rest."""

    name: str
    gpus: tuple[GpuResources, ...]
    cpu_milli: int = 0
    """Free thousandths of CPU cores."""

    host_memory_bytes: int = 0
    """Free."""

    nvlinks: frozenset[frozenset[str]] = frozenset()
    """Pairs of UUIDs that NVLink joins."""

    def can_host(self, shape: JobShape, wanted: SharingMode | None = None) -> bool:
        """Whether the job fits on this node now."""
        return (
            shape.cpu_milli <= self.cpu_milli
            and shape.host_memory_bytes <= self.host_memory_bytes
            and shape.gpu_count <= sum(gpu.can_host(shape, wanted) for gpu in self.gpus)
        )


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

    def __init__(self, kinds: Sequence[_Kind], width: int, best_share: float) -> None:
        super().__init__()
        self._best_share = best_share
        self._kinds = kinds
        self._width = width
        self._parts: dict[int, tuple[float, float]] = {}

    def __missing__(self, cell: int) -> float:
        best, filled = self._both(cell)
        self[cell] = worth = self._best_share * best + (1 - self._best_share) * filled
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
    """Worth of free parts of GPUs of one size. Caches what it computed; results never change."""

    def __init__(
        self, recent: Counter[JobShape], compute_milli: int, memory_bytes: int, best_share: float = BEST_SHARE
    ) -> None:
        alone = [shape for shape in recent if shape.gpu_count == 1]
        self._compute_milli = compute_milli if any(shape.compute_milli for shape in alone) else 0
        self._memory_bytes = memory_bytes if any(shape.memory_bytes for shape in alone) else 0
        fitting = [
            shape
            for shape in alone
            if (shape.compute_milli or shape.memory_bytes)
            and shape.compute_milli <= compute_milli
            and shape.memory_bytes <= memory_bytes
        ]
        self._steps = self._steps_for(fitting)
        self._width = self._steps + 1 if self._memory_bytes else 1
        kinds = self._kinds(recent, fitting)
        self.thresholds_milli = sorted({kind.cpu_milli for kind in kinds})
        # One table for each amount of CPU at which one more kind can run; the first is for less than any kind needs.
        self.by_cpu = [
            _Worth([kind for kind in kinds if kind.cpu_milli <= most], self._width, best_share)
            for most in (-1, *self.thresholds_milli)
        ]

    def cell(self, free_compute_milli: int, free_memory_bytes: int) -> int:
        """Return the number of a free part, in whole steps.

        Rounded up like the shapes of jobs, so that the gap left by a job is filled by the next one of its kind. Whether a job
        really fits is checked elsewhere.
        """
        steps = -(-free_compute_milli * self._steps // self._compute_milli) if self._compute_milli else 0
        if not self._memory_bytes:
            return steps
        return steps * self._width - (-free_memory_bytes * self._steps // self._memory_bytes)

    def _steps_for(self, fitting: Sequence[JobShape]) -> int:
        if self._compute_milli and self._memory_bytes:
            return STEPS_TOGETHER
        kinds = len({(shape.compute_milli, shape.memory_bytes) for shape in fitting})
        steps = STEPS_OF_ALL_KINDS // max(1, kinds) // STEPS_ALONE * STEPS_ALONE
        return max(STEPS_ALONE, min(MOST_STEPS_ALONE, steps))

    def _steps_of(self, shape: JobShape) -> tuple[int, int]:
        compute = -(-shape.compute_milli * self._steps // self._compute_milli) if self._compute_milli else 0
        memory = -(-shape.memory_bytes * self._steps // self._memory_bytes) if self._memory_bytes else 0
        return compute, memory

    def _kinds(self, recent: Counter[JobShape], fitting: Sequence[JobShape]) -> list[_Kind]:
        steps: Counter[tuple[int, int]] = Counter()
        with_cpu: Counter[tuple[tuple[int, int], int]] = Counter()
        for shape in fitting:
            steps[self._steps_of(shape)] += recent[shape]
            with_cpu[self._steps_of(shape), shape.cpu_milli] += recent[shape]
        frequent = sorted(steps, key=lambda kind: (-steps[kind], kind))[:MOST_KINDS]
        prices = _prices(Counter({kind: steps[kind] for kind in frequent}), self._steps, self._width)
        return [
            _Kind(
                cell=compute * self._width + memory,
                compute_steps=compute,
                memory_steps=memory,
                cpu_milli=cpu_milli,
                frequency=count / with_cpu.total(),
                price=prices[compute, memory],
            )
            for ((compute, memory), cpu_milli), count in sorted(with_cpu.items())
            if (compute, memory) in prices
        ]


def _prices(counts: Counter[tuple[int, int]], most: int, width: int) -> dict[tuple[int, int], float]:
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
                if free % width >= memory:
                    worth[free] = max(worth[free], price + worth[free - cell])
    return prices


class Outlook:
    """Jobs that are likely to come, by those of the recent past. Caches what it computed; results never change."""

    def __init__(
        self, recent: Iterable[JobShape], idle_nodes: Sequence[NodeResources] = (), *, best_share: float = BEST_SHARE
    ) -> None:
        """Take the recent past.

        Args:
            recent: The last few thousand shapes.
            idle_nodes: Every node as it is without jobs.
            best_share: Weight of the best filling, 0 to 1; the rest is that of random arrivals.
        """
        self._best_share = best_share
        self.recent = Counter(recent)
        self._worths: dict[tuple[int, int], GpuWorth] = {}
        self.wide = [
            (shape, WIDE_WEIGHT * count / self.recent.total() * _scarcity(shape, idle_nodes))
            for shape, count in self.recent.items()
            if shape.gpu_count > 1
        ]
        self._least_wide = min((shape.gpu_count for shape, _ in self.wide), default=math.inf)
        self._most_wide = max((shape.gpu_count for shape, _ in self.wide), default=0)
        self._wide_cpu_milli = sorted({shape.cpu_milli for shape, _ in self.wide})
        self._wide_host_bytes = sorted({shape.host_memory_bytes for shape, _ in self.wide})
        self._wide_weights: dict[tuple[int, int, int], float] = {}

    def worth(self, gpu: GpuResources) -> GpuWorth:
        """Return the worth of free parts of GPUs of this size."""
        size = (gpu.compute_milli, gpu.memory_bytes)
        known = self._worths.get(size)
        if known is None:
            known = self._worths[size] = GpuWorth(self.recent, *size, self._best_share)
        return known

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


def _scarcity(shape: JobShape, idle_nodes: Sequence[NodeResources]) -> float:
    """Return the number of nodes divided by the number that can ever host a shape; 0 if none can."""
    if not idle_nodes:
        return 1.0
    hosts = sum(node.can_host(shape) for node in idle_nodes)
    return len(idle_nodes) / hosts if hosts else 0.0
