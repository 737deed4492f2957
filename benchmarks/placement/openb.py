"""Alibaba's openb trace as two streams of pods: arrivals only, and arrivals with departures.

The data stays outside of the project (github.com/alibaba/clusterdata, cluster-trace-gpu-v2023; for research and study). The
first stream is that of the FGD paper (Weng et al., USENIX ATC 2023); the second has the same pods, Poisson arrivals and
exponential lifetimes.
"""

import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MOST_GPUS = 8
WARM_LIFETIMES = 3
"""Mean lifetimes until rejections count: the cluster is full by then."""

COUNTED_LIFETIMES = 10
CROWDED = 1.3
"""Of the cluster's GPUs, what arrives in the FGD paper's experiment."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Nodes and pods; pods that ask alike are of one kind."""

    cpu_milli: Ints
    """Of each node."""

    memory_mib: Ints
    gpus: Ints
    kinds: Ints
    """A row for each kind of pod: CPU (milli), memory (MiB), GPUs, milli of each of these GPUs."""

    pods: list[int]
    """The kind of each pod, in order of names."""

    @property
    def capacity_milli(self) -> int:
        """Of all GPUs."""
        return int(self.gpus.sum()) * 1000

    @property
    def gpu_milli(self) -> Ints:
        """What each kind asks for in all."""
        return np.asarray(self.kinds[:, 2] * self.kinds[:, 3])

    def shuffled(self, seed: int) -> "Trace":
        """Return the same with nodes in a random order, which settles ties."""
        order = list(range(len(self.gpus)))
        random.Random(seed).shuffle(order)
        return Trace(self.cpu_milli[order], self.memory_mib[order], self.gpus[order], self.kinds, self.pods)


@dataclass(frozen=True, slots=True)
class Stream:
    """What happens, in order."""

    kinds: Ints
    """Of each pod, in order of arrival."""

    events: Ints
    """The number of a pod that arrives, or −1 − the number of one that leaves."""

    first_counted: int
    """Pods before it warm the cluster up."""


def read_trace(folder: Path) -> Trace:
    """Read nodes with GPUs, and pods."""
    with (folder / "openb_node_list_gpu_node.csv").open(encoding="utf-8") as file:
        nodes = [(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"])) for row in csv.DictReader(file)]
    with (folder / "openb_pod_list_default.csv").open(encoding="utf-8") as file:
        pods = sorted((row["name"], _kind(row)) for row in csv.DictReader(file))
    kinds = sorted({kind for _, kind in pods})
    number = {kind: index for index, kind in enumerate(kinds)}
    cpu_milli, memory_mib, gpus = np.array(nodes, dtype=np.int64).T
    return Trace(cpu_milli, memory_mib, gpus, np.array(kinds, dtype=np.int64), [number[kind] for _, kind in pods])


def _kind(row: dict[str, str]) -> tuple[int, int, int, int]:
    if row["gpu_spec"]:
        raise ValueError(f"{row['name']} asks for a GPU model: this replay knows only the default mix, which has none")
    gpus = int(row["num_gpu"])
    return int(row["cpu_milli"]), int(row["memory_mib"]), gpus, int(row["gpu_milli"]) if gpus else 0


def arrivals(trace: Trace, seed: int) -> Stream:
    """Pods shuffled, then drawn with replacement until the next one would pass 130 % of the GPUs."""
    dice = random.Random(seed)
    kinds = list(trace.pods)
    dice.shuffle(kinds)
    kinds += _more(trace, kinds, dice)
    return Stream(np.array(kinds, dtype=np.int64), np.arange(len(kinds), dtype=np.int64), 0)


def _more(trace: Trace, kinds: list[int], dice: random.Random) -> Iterator[int]:
    gpu_milli = trace.gpu_milli
    asked = sum(int(gpu_milli[kind]) for kind in kinds)
    while True:
        kind = trace.pods[dice.randrange(len(trace.pods))]
        asked += int(gpu_milli[kind])
        if asked > CROWDED * trace.capacity_milli:
            return
        yield kind


def departures(trace: Trace, seed: int, load: float) -> Stream:
    """Poisson arrivals and exponential lifetimes; their mean makes pods request `load` of all GPUs at any time.

    Lifetimes are scaled so that the load of each seed is exactly that: by chance alone it would vary by 2 %.
    """
    dice = np.random.default_rng(seed)
    gpu_milli = trace.gpu_milli
    pods = np.array(trace.pods)
    pods_per_lifetime = trace.capacity_milli * load / gpu_milli[pods].mean()
    count = int(pods_per_lifetime * (WARM_LIFETIMES + COUNTED_LIFETIMES))
    kinds = pods[dice.integers(0, len(pods), count)]
    comes = np.cumsum(dice.exponential(1 / pods_per_lifetime, count))
    lasts = dice.exponential(1.0, count)
    lasts *= load * trace.capacity_milli * comes[-1] / (gpu_milli[kinds] * lasts).sum()
    numbers = np.arange(count)
    order = np.argsort(np.concatenate([comes, comes + lasts]), kind="stable")
    events = np.concatenate([numbers, -1 - numbers])[order]
    last_arrival = int(np.nonzero(events == count - 1)[0][0])
    return Stream(kinds, events[: last_arrival + 1], int(pods_per_lifetime * WARM_LIFETIMES))
