"""openb asked as the scheduler asks: for the nodes that can host a pod, which is the best?

A GPU's thousandths are steps of memory, as claims are. The scheduler filters and takes the best; on the node its allocator
takes the first GPU that fits, fullest first, as the driver publishes them: the scorer chooses nodes and no GPUs.
"""

import json
import time
from collections import defaultdict

import numpy as np
from benchmarks.placement.cluster import Cluster
from benchmarks.placement.openb import ANY_MODEL, MOST_GPUS

from pgpu.kubernetes.extender.scheduled_objects import (
    ClaimKey,
    ClaimState,
    ConsumedGpu,
    GpuClass,
    GpuDemand,
    NodeCapacity,
    PodClaim,
    PodState,
    PublishedSlice,
    SharedGpu,
)
from pgpu.kubernetes.extender.scorer import BEST, Scorer
from pgpu.kubernetes.names import DRIVER, MODEL
from pgpu.structs import replace
from pgpu.units import MIB

STEP_BYTES = 256 * MIB
_CLASS = "openb"
_Asked = tuple[int, int, tuple[int, ...]]
"""CPU, memory, and thousandths of each GPU."""


class Asking:
    """The scheduler and its extender as a placer of the replay. The extender gets each allocation before the next pod."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._scorer = Scorer(time.monotonic)
        self._names = [f"{node:04}" for node in range(len(cluster.trace.gpus))]
        self._pods = 0
        self._held: dict[int, dict[_Asked, list[tuple[str, ClaimKey | None]]]] = defaultdict(lambda: defaultdict(list))
        """By node and what they took, the pods there."""

        self.seconds: list[float] = []
        stock = self._scorer.state
        stock.put_class(_CLASS, GpuClass(_CLASS, is_whole=False))
        for node, name in enumerate(self._names):
            stock.put_node(name, NodeCapacity(name, int(cluster.cpu_milli[node]), int(cluster.memory_mib[node]) * MIB))
            gpus, model = int(cluster.trace.gpus[node]), str(cluster.trace.model[node])
            attributes = frozenset({(MODEL, model)})
            cards = tuple(
                SharedGpu(f"{name}-{card}", 1000 * STEP_BYTES, STEP_BYTES, STEP_BYTES, model, attributes)
                for card in range(gpus)
            )
            stock.put_slice(name, PublishedSlice(name, name, 1, name, cards))

    def choose(self, kind: int) -> tuple[int, list[int]] | None:
        """Return node and GPUs, or None if no node can host the pod."""
        cpu_milli, memory_mib, gpus, milli, models = self._cluster.trace.kinds[kind].tolist()
        hosts: list[int] = np.flatnonzero(self._cluster.hosts(kind)).tolist()
        if not hosts:
            return None
        self._pods += 1
        pod = PodState(
            str(self._pods), "ns", None, cpu_milli, memory_mib * MIB, {}, (PodClaim(str(self._pods)),) if gpus else ()
        )
        demand = GpuDemand(_CLASS, gpus, milli * STEP_BYTES, selectors=self._selectors(models))
        claim = ClaimState(ClaimKey("ns", pod.uid), (demand,)) if gpus else None
        if claim is not None:
            self._scorer.put_claim(claim.key, claim)
        start = time.thread_time()
        scores = self._scorer.score(pod, [self._names[node] for node in hosts])
        self.seconds.append(time.thread_time() - start)
        node = hosts[scores.index(BEST)]
        cards = self._first_fit(node, gpus, milli)
        self._bind(pod, claim, node, cards, milli)
        return node, cards

    def changed(self, node: int) -> None:
        """Remove the pod that has left a node, if one has: its requests equal the difference between the node's and the recorded free amounts."""
        cluster, known = self._cluster, self._scorer.state.offer(self._names[node])
        more = (
            int(cluster.cpu_milli[node]) - known.cpu_milli,
            int(cluster.memory_mib[node]) * MIB - known.host_memory_bytes,
        )
        free = [
            int(free) - gpu.free_memory_bytes // STEP_BYTES
            for free, gpu in zip(cluster.cards[node], known.gpus, strict=False)
        ]
        if not any((*more, *free)):
            return
        asked = (*more, tuple(free))
        uid, key = self._held[node][asked].pop()
        self._scorer.put_pod(uid, None)
        if key is not None:
            self._scorer.put_claim(key, None)

    def _selectors(self, models: int) -> tuple[str, ...]:
        if models == ANY_MODEL:
            return ()
        accepted = [str(model) for model in range(int(self._cluster.trace.model.max()) + 1) if models >> model & 1]
        return (f'device.attributes["{DRIVER}"].{MODEL} in {json.dumps(accepted)}',)

    def _first_fit(self, node: int, gpus: int, milli: int) -> list[int]:
        free = self._cluster.cards[node, : min(MOST_GPUS, int(self._cluster.trace.gpus[node]))].tolist()
        fitting = sorted((left, card) for card, left in enumerate(free) if left >= milli)
        return [card for _, card in fitting[:gpus]]

    def _bind(self, pod: PodState, claim: ClaimState | None, node: int, cards: list[int], milli: int) -> None:
        name = self._names[node]
        taken_of = tuple(milli * (card in cards) for card in range(int(self._cluster.trace.gpus[node])))
        asked = (pod.cpu_milli, pod.host_memory_bytes, taken_of)
        self._held[node][asked].append((pod.uid, claim.key if claim else None))
        self._scorer.put_pod(pod.uid, replace(pod, node=name))
        if claim is not None:
            taken = tuple(ConsumedGpu(name, f"{name}-{card}", milli * STEP_BYTES) for card in cards)
            self._scorer.put_claim(claim.key, replace(claim, is_allocated=True, taken=taken))
