"""What the free part of a GPU will be worth to the jobs that are likely to come.

All it knows of the future is who came lately. Each kind of job has a price in whole GPUs: what one more of it adds to the
number of GPUs that all of them need when packed as well as can be. A free part is worth a mean of two sums of prices:

- that of its best filling;
- that which jobs coming at random will bring, where a gap that waits long for a job that fits counts less.

The first knows which fillings are good, and that a gap is worth nothing when more of its kind are left than jobs that
fill them. The second tells those apart that the first finds equal. It refuses to know what is free now: `placement` does.

Sources: the prices are the dual of the cutting-stock problem (Gilmore and Gomory 1961); to count what a job drawn from
the recent mix cannot use is fragmentation gradient descent (Weng et al., USENIX ATC 2023). Their mean and the
constants are ours, chosen on openb with other seeds than those reported; that the first weight of the best filling had missed a
bar on those was known when this one was chosen (benchmarks/README.md).
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgpu.model import SharingMode


@dataclass(frozen=True, slots=True)
class JobShape:
    """What one job asks for; the amounts of a GPU are of each of its GPUs."""

    gpu_count: int = 1
    """Distinct GPUs of one node; 0 for a job without any."""

    compute_milli: int = 0
    """Thousandths of a GPU's compute; 0 where the job asks for memory only."""

    memory_bytes: int = 0
    """Of each GPU, CUDA context included; 0 where it asks for compute only."""

    cpu_milli: int = 0
    """Thousandths of a CPU core of the node."""

    host_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GpuResources:
    """One GPU: how large it is, and what is free of it."""

    uuid: str
    free_compute_milli: int
    """Thousandths of its compute."""

    free_memory_bytes: int = 0
    compute_milli: int = 1000
    """All of it."""

    memory_bytes: int = 0
    """All of it that slices may sum to; 0 where only compute is shared out."""

    sharing_mode: SharingMode | None = None
    """The mode it is in; None before its first job."""

    @property
    def is_idle(self) -> bool:
        """Whether all of it is free."""
        return self.free_compute_milli == self.compute_milli and self.free_memory_bytes == self.memory_bytes

    @property
    def free_share(self) -> float:
        """What is free of it, 0 to 1: the mean of compute and memory."""
        return self.share_of(self.free_compute_milli, self.free_memory_bytes)

    def share_of(self, compute_milli: int, memory_bytes: int) -> float:
        """Return how much of it such amounts are, 0 to 1: the mean of compute and memory."""
        compute_share = compute_milli / self.compute_milli
        return (compute_share + memory_bytes / self.memory_bytes) / 2 if self.memory_bytes else compute_share

    def can_host(self, shape: JobShape, wanted: SharingMode | None = None) -> bool:
        """Whether a slice of this shape fits here beside the jobs that are on it, in the wanted sharing mode.

        A GPU of which nothing is free hosts nobody, even one who asks for nothing of it.
        """
        if not (self.free_compute_milli or self.free_memory_bytes):
            return False
        fits = shape.compute_milli <= self.free_compute_milli and shape.memory_bytes <= self.free_memory_bytes
        return fits and self.admits(wanted)

    def admits(self, wanted: SharingMode | None) -> bool:
        """Whether the jobs that are on it let one in that wants this sharing mode; None for any."""
        if wanted is None and self.sharing_mode is None:
            return True
        if self.is_idle or wanted is SharingMode.EXCLUSIVE:
            return self.is_idle
        return self.sharing_mode is not SharingMode.EXCLUSIVE and (
            wanted is None or self.sharing_mode is None or self.sharing_mode is wanted
        )

    def changes_mode(self, wanted: SharingMode | None) -> bool:
        """Whether a job that wants this sharing mode changes the one it is in."""
        return wanted is not None and self.sharing_mode is not wanted


@dataclass(frozen=True, slots=True)
class NodeResources:
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


STEPS_ALONE = 100
"""Steps that a GPU is divided into where its jobs ask for one resource: so many, or a multiple of it where they are of
few kinds. Finer ones change nothing on openb, whose jobs ask for hundredths."""

MOST_STEPS_ALONE = 1000

STEPS_OF_ALL_KINDS = 6400
"""Steps times kinds: what making the prices costs, some 10 ms of CPU at most."""

STEPS_TOGETHER = 32
"""Steps of each resource where jobs ask for two: a thousand free parts to weigh, not ten thousand."""

PATIENCE = 0.03
"""How rare the jobs that fit may be before a gap loses half of what they would bring, as a share of arrivals."""

BEST_SHARE = 0.65
"""Weight of the best filling; the rest is the random one's."""

MOST_KINDS = 64
"""Kinds of job that are weighed: the most frequent. openb has 20 on one GPU."""

MOST_TRIED = 16
"""Kinds that are tried in front when prices are made: the most frequent."""

WIDE_WEIGHT = 0.7
"""Of the share of jobs that need several GPUs, in what idle GPUs are worth to them. More of it serves openb with
departures better and without them worse: 0.5 to 2 moves either by 0.3 points at most."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Jobs on one GPU that ask alike."""

    cell: int
    compute_steps: int
    memory_steps: int
    cpu_milli: int
    frequency: float
    price: float
    """In whole GPUs."""


class _Worth(dict[int, float]):
    """Worth of each free part, found when it is first asked for, to the kinds that the CPU suffices for."""

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
        known = self._parts.get(cell)
        if known is None:
            known = self._parts[cell] = self._fill(cell)
        return known

    def _fill(self, cell: int) -> tuple[float, float]:
        compute_steps, memory_steps = divmod(cell, self._width)
        best, brought, rate = 0.0, 0.0, PATIENCE
        for kind in self._kinds:
            if kind.compute_steps <= compute_steps and kind.memory_steps <= memory_steps:
                best_of_rest, filled_of_rest = self._both(cell - kind.cell)
                best = max(best, kind.price + best_of_rest)
                brought += kind.frequency * (kind.price + filled_of_rest)
                rate += kind.frequency
        return best, brought / rate


class GpuWorth:
    """What free parts of GPUs of one size are worth. Remembers what it computed; its answers never change."""

    def __init__(
        self, recent: Counter[JobShape], compute_milli: int, memory_bytes: int, best_share: float = BEST_SHARE
    ) -> None:
        alone = [shape for shape in recent if shape.gpu_count == 1]
        self._compute_milli = compute_milli if any(shape.compute_milli for shape in alone) else 0
        self._memory_bytes = memory_bytes if any(shape.memory_bytes for shape in alone) else 0
        fitting = [shape for shape in alone if self._fits(shape, compute_milli, memory_bytes)]
        self._steps = self._steps_for(fitting)
        self._width = self._steps + 1 if self._memory_bytes else 1
        kinds = self._kinds(recent, fitting)
        self.thresholds_milli = sorted({kind.cpu_milli for kind in kinds})
        self.by_cpu = [
            _Worth([kind for kind in kinds if kind.cpu_milli <= most], self._width, best_share)
            for most in (-1, *self.thresholds_milli)
        ]

    def cell(self, free_compute_milli: int, free_memory_bytes: int) -> int:
        """Name a free part, in whole steps.

        Rounded up, as what jobs ask for is: a gap that a job leaves is one that the next of its kind fills. Whether it
        really fits is not asked here.
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

    @staticmethod
    def _fits(shape: JobShape, compute_milli: int, memory_bytes: int) -> bool:
        asks = shape.compute_milli or shape.memory_bytes
        return bool(asks) and shape.compute_milli <= compute_milli and shape.memory_bytes <= memory_bytes

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
    """Price kinds of job so that no filling of a GPU is worth over 1, and all of them together nearly as much as can be.

    Kinds are priced one after the other, the most frequent first; then those are tried in front. On openb the first order
    ends at the optimum of the linear program already; on samples of it some do 0.6 points worse.
    """
    order = sorted(counts, key=lambda kind: (-counts[kind], kind))
    prices = _prices_in(order, most, width)
    for kind in order[:MOST_TRIED]:
        tried = [kind, *(other for other in order if other != kind)]
        found = _prices_in(tried, most, width)
        if _total(found, counts) > _total(prices, counts) + 1e-9:
            order, prices = tried, found
    return prices


def _total(prices: dict[tuple[int, int], float], counts: Counter[tuple[int, int]]) -> float:
    return sum(price * counts[kind] for kind, price in prices.items())


def _prices_in(order: Sequence[tuple[int, int]], most: int, width: int) -> dict[tuple[int, int], float]:
    """Price kinds in this order, each as high as those before it let it."""
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
    """What is likely to come, by who came lately. Remembers what it computed; its answers never change."""

    def __init__(
        self, recent: Iterable[JobShape], idle_nodes: Sequence[NodeResources] = (), *, best_share: float = BEST_SHARE
    ) -> None:
        """Take what came lately.

        Args:
            recent: The last few thousand shapes.
            idle_nodes: Every node as it is when nothing runs on it.
            best_share: Weight of the best filling, 0 to 1; the rest is the random one's.
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
        """Return what free parts of GPUs of this size are worth."""
        size = (gpu.compute_milli, gpu.memory_bytes)
        known = self._worths.get(size)
        if known is None:
            known = self._worths[size] = GpuWorth(self.recent, *size, self._best_share)
        return known

    def idle_worth(self, idle_gpus: int, cpu_milli: int, host_memory_bytes: int) -> float:
        """Return what so many idle GPUs of one node are worth to jobs that need several, in whole GPUs."""
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
    """Return how many times fewer nodes can ever host it than there are; 0 if none can."""
    if not idle_nodes:
        return 1.0
    hosts = sum(node.can_host(shape) for node in idle_nodes)
    return len(idle_nodes) / hosts if hosts else 0.0
