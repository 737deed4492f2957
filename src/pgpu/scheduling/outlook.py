"""What the free parts of a cluster's GPUs will be worth to the jobs that are likely to come, judged by those of the recent past.

GPUs differ in size and model, and jobs in the GPUs that they accept. The parts of a type are valued by the jobs that it can host
(`gpu_worth`), and scaled by its price: what these jobs ask of it if each kind is spread evenly over all GPUs that can ever host
it. So of two types that a job accepts, the one that others need less loses less worth.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from pgpu.scheduling.cluster_resources import GpuType, JobShape, NodeResources
from pgpu.scheduling.gpu_worth import BEST_SHARE, GpuWorth

# Factor on the share of jobs with several GPUs, in the value of idle GPUs for them. A larger one is better on openb with
# departures and worse without: 0.5 to 2 changes either by 0.3 points at most.
WIDE_WEIGHT = 0.7


class Fleet:
    """Nodes and GPUs as they are without jobs; alike ones are counted."""

    def __init__(self, idle_nodes: Iterable[NodeResources] = ()) -> None:
        self._nodes = Counter(
            (node.cpu_milli, node.host_memory_bytes, tuple(gpu.type for gpu in node.gpus)) for node in idle_nodes
        )
        self.gpus: Counter[GpuType] = Counter()
        for (_, _, types), count in self._nodes.items():
            for type_ in types:
                self.gpus[type_] += count

    def node_scarcity(self, shape: JobShape) -> float:
        """Return the number of nodes divided by the number that can ever host a shape; 0 if none can."""
        if not self._nodes:
            return 1.0
        hosts = sum(
            count
            for (cpu_milli, host_memory_bytes, types), count in self._nodes.items()
            if shape.cpu_milli <= cpu_milli
            and shape.host_memory_bytes <= host_memory_bytes
            and shape.gpu_count <= sum(type_.can_host(shape) for type_ in types)
        )
        return self._nodes.total() / hosts if hosts else 0.0

    def prices(self, recent: Counter[JobShape]) -> dict[GpuType, float]:
        """Return the load of a GPU of each type if each kind of job is spread evenly over all GPUs that can ever host it.

        In GPUs of mean size and mean load. Size counts by those resources that jobs ask for.
        """
        all_compute_milli = any(shape.compute_milli for shape in recent) * sum(
            type_.compute_milli * count for type_, count in self.gpus.items()
        )
        all_memory_bytes = any(shape.memory_bytes for shape in recent) * sum(
            type_.memory_bytes * count for type_, count in self.gpus.items()
        )

        def part(compute_milli: int, memory_bytes: int) -> float:
            return compute_milli / (all_compute_milli or math.inf) + memory_bytes / (all_memory_bytes or math.inf)

        size = {type_: part(type_.compute_milli, type_.memory_bytes) for type_ in self.gpus}
        loads: dict[GpuType, float] = dict.fromkeys(self.gpus, 0.0)
        is_told_apart, hosted, total = False, 0, 0.0
        for shape, count in recent.items():
            hosts = [type_ for type_ in self.gpus if shape.gpu_count and type_.can_host(shape)]
            load = count * shape.gpu_count * part(shape.compute_milli, shape.memory_bytes)
            room = sum(self.gpus[type_] * size[type_] for type_ in hosts)
            if not (load and room):
                continue
            is_told_apart |= len(hosts) < len(self.gpus)
            hosted += count
            total += load
            for type_ in hosts:
                loads[type_] += load * size[type_] / room
        if is_told_apart:
            # As if one more job accepted each type alone. Else a rare type that no job has named yet would be the cheapest.
            for type_, count in self.gpus.items():
                loads[type_] += total / hosted / count
        mean = sum(loads[type_] * count for type_, count in self.gpus.items()) / max(1, self.gpus.total())
        return {type_: load / mean for type_, load in loads.items()} if mean else {}


class Outlook:
    """Jobs that are likely to come, by those of the recent past. Caches what it computed; results never change."""

    def __init__(
        self, recent: Iterable[JobShape], fleet: Fleet | None = None, *, best_share: float = BEST_SHARE
    ) -> None:
        """Take the recent past.

        Args:
            recent: The last few thousand shapes.
            fleet: Without it, jobs and GPUs of all types count alike.
            best_share: Weight of the best filling, 0 to 1; the rest is that of random arrivals.
        """
        self._best_share = best_share
        self._fleet = fleet or Fleet()
        self.recent = Counter(recent)
        self._prices = self._fleet.prices(self.recent)
        self._worths: dict[GpuType, GpuWorth] = {}
        self._worth_by_shapes: dict[tuple[int, int, frozenset[JobShape]], GpuWorth] = {}

    def worth(self, type_: GpuType) -> GpuWorth:
        """Return the worth of GPUs of this type; the same object for types of one size that can host the same shapes."""
        known = self._worths.get(type_)
        if known is None:
            shapes = [shape for shape in self.recent if shape.gpu_count and type_.can_host(shape)]
            alike = (type_.compute_milli, type_.memory_bytes, frozenset(shapes))
            known = self._worth_by_shapes.get(alike) or self._worth(type_, shapes)
            self._worths[type_] = self._worth_by_shapes[alike] = known
        return known

    def _worth(self, type_: GpuType, shapes: Sequence[JobShape]) -> GpuWorth:
        recent, fleet = self.recent, self._fleet
        alone = [shape for shape in shapes if shape.gpu_count == 1 and (shape.compute_milli or shape.memory_bytes)]
        wide = [shape for shape in shapes if shape.gpu_count > 1]
        return GpuWorth(
            {shape: recent[shape] for shape in alone},
            type_,
            wide=[(shape, WIDE_WEIGHT * recent[shape] / recent.total() * fleet.node_scarcity(shape)) for shape in wide],
            price=self._prices.get(type_, 1.0),
            best_share=self._best_share,
        )
