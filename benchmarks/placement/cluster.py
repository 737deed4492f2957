"""The replay: pods arrive and leave, a placer chooses the node of each, and every choice is verified."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from benchmarks.placement.openb import MOST_GPUS, Stream, Trace
from numpy.typing import NDArray

WHOLE = 1000


class Cluster:
    """What is free on each node."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.cpu_milli = trace.cpu_milli.copy()
        self.memory_mib = trace.memory_mib.copy()
        self.cards = np.where(np.arange(MOST_GPUS) < trace.gpus[:, None], WHOLE, 0).astype(np.int64)
        """Milli that are free of each node's GPUs; 0 past its last."""

    def take(self, kind: int, node: int, cards: list[int], sign: int = 1) -> None:
        """Take what a pod asks for, or give it back with a sign of −1.

        Raises:
            AssertionError: It is not there: the placer is wrong.
        """
        cpu_milli, memory_mib, gpus, milli, models = self.trace.kinds[kind].tolist()
        self.cpu_milli[node] -= sign * cpu_milli
        self.memory_mib[node] -= sign * memory_mib
        for card in cards:
            self.cards[node, card] -= sign * milli
        fits = self.cpu_milli[node] >= 0 and self.memory_mib[node] >= 0 and self.cards[node].min() >= 0
        accepts = models >> int(self.trace.model[node]) & 1
        if not fits or not accepts or len(set(cards)) != gpus:
            raise AssertionError(f"a pod of kind {kind} was placed where it does not fit: node {node}, GPUs {cards}")

    def can_host(self, kind: int) -> bool:
        """Whether any node can."""
        return bool(self.hosts(kind).any())

    def hosts(self, kind: int) -> NDArray[np.bool_]:
        """Return of each node whether it can host a pod."""
        cpu_milli, memory_mib, gpus, milli, models = self.trace.kinds[kind]
        has_room = (self.cpu_milli >= cpu_milli) & (self.memory_mib >= memory_mib)
        has_gpus = ((self.cards >= milli).sum(axis=1) >= gpus) & (models >> self.trace.model & 1 == 1)
        return np.asarray(has_room & has_gpus if gpus else has_room)


class Placer(Protocol):
    """A placement policy."""

    def choose(self, kind: int) -> tuple[int, list[int]] | None:
        """Return node and GPUs, or None if no node can host the pod."""

    def changed(self, node: int) -> None:
        """Learn that a node is no longer what it was."""


@dataclass(slots=True)
class Outcome:
    """What came of one stream."""

    allocated: float = 0.0
    """Of all GPUs, at the end."""

    allocated_at_full: float = 0.0
    """When pods have asked for as much as the cluster has."""

    asked_milli: int = 0
    rejected_milli: int = 0
    """Of pods that count."""

    seconds: list[float] = field(default_factory=list)
    """CPU time of each decision."""

    changing_seconds: float = 0.0
    """Total CPU time of the placer's updates."""

    places: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    """Node and GPUs of each pod that was placed."""

    @property
    def rejected(self) -> float:
        """Share of the GPUs that were asked for."""
        return self.rejected_milli / self.asked_milli


def replay(cluster: Cluster, stream: Stream, placer: Placer) -> Outcome:
    """Play a stream to its end.

    Raises:
        AssertionError: A pod was placed where it does not fit, or refused although some node could host it.
    """
    outcome = Outcome()
    gpu_milli = cluster.trace.gpu_milli
    for event in stream.events.tolist():
        if event < 0:
            left = outcome.places.get(-1 - event)
            if left is not None:
                cluster.take(int(stream.kinds[-1 - event]), *left, sign=-1)
                outcome.changing_seconds += _told(placer, left[0])
            continue
        kind = int(stream.kinds[event])
        chosen = _timed(placer, kind, outcome.seconds)
        counts = int(gpu_milli[kind]) if event >= stream.first_counted else 0
        outcome.asked_milli += counts
        if chosen is None:
            if cluster.can_host(kind):
                raise AssertionError(f"a pod of kind {kind} was refused, and some node can host it")
            outcome.rejected_milli += counts
            continue
        cluster.take(kind, *chosen)
        outcome.places[event] = chosen
        outcome.changing_seconds += _told(placer, chosen[0])
    outcome.allocated = 1 - int(cluster.cards.sum()) / cluster.trace.capacity_milli
    outcome.allocated_at_full = allocated_until(cluster.trace, stream, outcome.places)
    return outcome


def allocated_until(trace: Trace, stream: Stream, places: Iterable[int]) -> float:
    """Return the share of all GPUs that the placed pods before `stream.full` ask for."""
    kinds = [int(stream.kinds[pod]) for pod in places if pod < stream.full]
    return int(trace.gpu_milli[kinds].sum()) / trace.capacity_milli


def _timed(placer: Placer, kind: int, seconds: list[float]) -> tuple[int, list[int]] | None:
    start = time.thread_time()
    chosen = placer.choose(kind)
    seconds.append(time.thread_time() - start)
    return chosen


def _told(placer: Placer, node: int) -> float:
    start = time.thread_time()
    placer.changed(node)
    return time.thread_time() - start


def percentile(values: list[float], share: float) -> float:
    """Return the value that this share of them does not pass."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
