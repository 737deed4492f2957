"""pgpu's own placer on openb. It learns the mix from the pods that came, and knows nothing of those to come."""

from benchmarks.placement.cluster import WHOLE, Cluster, of_kind

from pgpu.scheduling.outlook import GpuResources, JobShape, NodeResources, Outlook
from pgpu.scheduling.placement import Placer
from pgpu.units import MIB

FIRST_LOOK = 32
"""Pods after which the mix is looked at for the first time; then after twice as many."""

MOST_RECENT = 16_384
"""Pods that the mix is taken from; after so many it is looked at again."""


class Ours:
    """`pgpu.scheduling.placement` behind the replay's words."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._gpus: dict[tuple[int, int], GpuResources] = {}
        self.shapes = [self._shape(kind) for kind in range(len(cluster.trace.kinds))]
        self.idle = self._offers()
        self._recent: list[JobShape] = []
        self._next_look = FIRST_LOOK
        self._placer = Placer(Outlook([], self.idle), self.idle)

    def choose(self, kind: int) -> tuple[int, list[int]] | None:
        """Return node and GPUs, or None if no node can host the pod."""
        if len(self._recent) == self._next_look:
            self._placer = Placer(Outlook(self._recent[-MOST_RECENT:], self.idle), self._offers())
            self._next_look += min(self._next_look, MOST_RECENT)
        shape = self.shapes[kind]
        self._recent.append(shape)
        placement = self._placer.place(shape)
        return None if placement is None else (int(placement.node), [int(uuid) for uuid in placement.gpu_uuids])

    def changed(self, node: int) -> None:
        """Learn that a node is no longer what it was."""
        self._placer.change(node, self._offer(node))

    def _shape(self, kind: int) -> JobShape:
        cpu_milli, memory_mib, gpus, milli = of_kind(self._cluster.trace.kinds, kind)
        return JobShape(gpus, milli, 0, cpu_milli, memory_mib * MIB)

    def _offers(self) -> list[NodeResources]:
        return [self._offer(node) for node in range(len(self._cluster.trace.gpus))]

    def _offer(self, node: int) -> NodeResources:
        cluster = self._cluster
        cards = cluster.cards[node, : cluster.trace.gpus[node]].tolist()
        gpus = tuple(map(self._gpu, range(len(cards)), cards))
        return NodeResources(str(node), gpus, int(cluster.cpu_milli[node]), int(cluster.memory_mib[node]) * MIB)

    def _gpu(self, card: int, free: int) -> GpuResources:
        gpu = self._gpus.get((card, free))
        if gpu is None:
            gpu = self._gpus[card, free] = GpuResources(str(card), free, compute_milli=WHOLE)
        return gpu
