"""pgpu's own placer on openb. It learns the mix from the pods that came, and knows nothing of those to come."""

from benchmarks.placement.cluster import WHOLE, Cluster
from benchmarks.placement.openb import ANY_MODEL

from pgpu.scheduling.cluster_resources import GpuResources, JobShape, NodeResources
from pgpu.scheduling.outlook import Fleet, Outlook
from pgpu.scheduling.placer import Placer
from pgpu.structs import replace
from pgpu.units import MIB

FIRST_LOOK = 32
"""Pods after which the mix is looked at for the first time; then after twice as many."""

MOST_RECENT = 16_384
"""Pods that the mix is taken from; after so many it is looked at again."""


class Ours:
    """`pgpu.scheduling.placement` behind the replay's words."""

    def __init__(self, cluster: Cluster, *, knows_models: bool = True) -> None:
        """Take a cluster; without `knows_models`, the mix is taken from pods as if they accepted every model."""
        self._cluster = cluster
        self._gpus: dict[tuple[int, int, int], GpuResources] = {}
        self.models = list(map(str, range(int(cluster.trace.model.max()) + 1)))
        self.shapes = [self._shape(kind) for kind in cluster.trace.kinds.tolist()]
        self.counted = self.shapes if knows_models else [replace(shape, models=None) for shape in self.shapes]
        self.fleet = Fleet(self._offers())
        self._recent: list[JobShape] = []
        self._next_look = FIRST_LOOK
        self._placer = Placer(Outlook([], self.fleet), self._offers())

    def choose(self, kind: int) -> tuple[int, list[int]] | None:
        """Return node and GPUs, or None if no node can host the pod."""
        if len(self._recent) == self._next_look:
            self._placer = Placer(Outlook(self._recent[-MOST_RECENT:], self.fleet), self._offers())
            self._next_look += min(self._next_look, MOST_RECENT)
        self._recent.append(self.counted[kind])
        placement = self._placer.place(self.shapes[kind])
        return None if placement is None else (int(placement.node), [int(uuid) for uuid in placement.gpu_uuids])

    def changed(self, node: int) -> None:
        """Learn that a node is no longer what it was."""
        self._placer.change(node, self._offer(node))

    def _shape(self, kind: list[int]) -> JobShape:
        cpu_milli, memory_mib, gpus, milli, mask = kind
        accepted = frozenset(name for number, name in enumerate(self.models) if mask >> number & 1)
        models = None if mask == ANY_MODEL else accepted
        return JobShape(gpus, milli, 0, cpu_milli, memory_mib * MIB, models)

    def _offers(self) -> list[NodeResources]:
        return [self._offer(node) for node in range(len(self._cluster.trace.gpus))]

    def _offer(self, node: int) -> NodeResources:
        cluster = self._cluster
        cards = cluster.cards[node, : cluster.trace.gpus[node]].tolist()
        model = int(cluster.trace.model[node])
        gpus = tuple(self._gpu(card, free, model) for card, free in enumerate(cards))
        return NodeResources(str(node), gpus, int(cluster.cpu_milli[node]), int(cluster.memory_mib[node]) * MIB)

    def _gpu(self, card: int, free: int, model: int) -> GpuResources:
        gpu = self._gpus.get((card, free, model))
        if gpu is None:
            gpu = GpuResources(str(card), free, compute_milli=WHOLE, model=self.models[model])
            self._gpus[card, free, model] = gpu
        return gpu
