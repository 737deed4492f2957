"""Alibaba's openb trace as two streams of pods: arrivals only, and arrivals with departures.

The data stays outside of the project (github.com/alibaba/clusterdata, cluster-trace-gpu-v2023; for research and study). In the
mix `default` no pod names models of GPUs; in `gpuspec33` a third of those with GPUs do. The first stream is that of the FGD paper (Weng et al., USENIX ATC 2023); the second has the same pods, Poisson arrivals and
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
ANY_MODEL = -1
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
    model: Ints
    """Of each node's GPUs, a number."""

    kinds: Ints
    """A row for each kind of pod: CPU (milli), memory (MiB), GPUs, milli of each of these GPUs, models: one bit for each
    model that it accepts, −1 for any."""

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
        nodes = (self.cpu_milli[order], self.memory_mib[order], self.gpus[order], self.model[order])
        return Trace(*nodes, self.kinds, self.pods)


@dataclass(frozen=True, slots=True)
class Stream:
    """What happens, in order."""

    kinds: Ints
    """Of each pod, in order of arrival."""

    events: Ints
    """The number of a pod that arrives, or −1 − the number of one that leaves."""

    first_counted: int
    """Pods before it warm the cluster up."""

    full: int
    """Pods before it ask together for no more than the cluster has."""


def read_trace(folder: Path, mix: str = "default") -> Trace:
    """Read nodes with GPUs, and the pods of a mix."""
    with (folder / "openb_node_list_gpu_node.csv").open(encoding="utf-8") as file:
        nodes = list(csv.DictReader(file))
    with (folder / f"openb_pod_list_{mix}.csv").open(encoding="utf-8") as file:
        pods = list(csv.DictReader(file))
    names = sorted({row["model"] for row in nodes})
    number = {name: index for index, name in enumerate(names)}
    cpu_milli, memory_mib, gpus, model = np.array(
        [(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), number[row["model"]]) for row in nodes],
        dtype=np.int64,
    ).T
    named = sorted((row["name"], _kind(row, number)) for row in pods)
    kinds = sorted({kind for _, kind in named})
    index = {kind: place for place, kind in enumerate(kinds)}
    rows = np.array(kinds, dtype=np.int64)
    return Trace(cpu_milli, memory_mib, gpus, model, rows, [index[kind] for _, kind in named])


def _kind(row: dict[str, str], number: dict[str, int]) -> tuple[int, int, int, int, int]:
    gpus = int(row["num_gpu"])
    milli = int(row["gpu_milli"]) if gpus else 0
    accepted = set(row["gpu_spec"].split("|")) if gpus and row["gpu_spec"] else set()
    models = sum(1 << number[name] for name in accepted) if accepted else ANY_MODEL
    return int(row["cpu_milli"]), int(row["memory_mib"]), gpus, milli, models


def arrivals(trace: Trace, seed: int) -> Stream:
    """Pods shuffled, then drawn with replacement until the next one would pass 130 % of the GPUs."""
    dice = random.Random(seed)
    kinds = list(trace.pods)
    dice.shuffle(kinds)
    kinds += _more(trace, kinds, dice)
    arrived = np.array(kinds, dtype=np.int64)
    full = int(np.searchsorted(np.cumsum(trace.gpu_milli[arrived]), trace.capacity_milli, side="right"))
    return Stream(arrived, np.arange(len(arrived), dtype=np.int64), 0, full)


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
    return Stream(kinds, events[: last_arrival + 1], int(pods_per_lifetime * WARM_LIFETIMES), len(kinds))
