"""Scores the nodes that could host a pod: 10 for the best, 1 to 9 for others, 0 for those that cannot host it as far as is known.

Only one node gets 10. The scheduler draws lots among equal nodes, but which of several equally good nodes is best must not change from
pod to pod: with random ties 4.6 points of GPU are lost on openb.

What a pod requests is computed here, too: its demand, and the mix of recent pods that predicts coming ones.

Source: k8s.io/kube-scheduler/extender/v1, MaxExtenderPriority.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from pgpu.kubernetes.extender.cluster_state import ClusterState
from pgpu.kubernetes.extender.scheduled_objects import (
    GIB_RESOURCE,
    WHOLE_MILLI,
    ClaimKey,
    ClaimState,
    ConsumedGpu,
    GpuDemand,
    PodState,
)
from pgpu.model import SharingMode
from pgpu.scheduling.outlook import JobShape, NodeResources, Outlook
from pgpu.scheduling.placement import NO_PREFERENCE, PlacementPreference, Placer, prefer_fuller_nodes
from pgpu.structs import Struct
from pgpu.units import GIB

BEST = 10
NOT_AT_ALL = 0
_NEXT_BEST = 9
_WORST = 1
ALIKE = 0.02
"""In GPUs: a fuller node may cost so much more than the best and is still preferred. Without it, claims of one size begin a GPU on each
node before they fill those that are begun, 137 in place of 125; openb loses 0.1 points by it."""

GIVE_UP_SECONDS = 60.0
"""Writing an allocation takes some 10 ms; a pod that waits for a volume may take longer, and is scored wrongly then."""

FIRST_RATING = 32
"""The mix is rated after so many pods for the first time, and then each time that the number has doubled."""

MOST_RECENT = 16_384
"""Number of pods in the mix, and the most pods between two ratings."""

# Before a class name: extended resource that every DeviceClass has. Source: KEP-5004.
_CLASS_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"

_ALONE = PlacementPreference(SharingMode.EXCLUSIVE)


class PodDemand(Struct, frozen=True):
    """What a pod requests."""

    shape: JobShape
    preference: PlacementPreference = NO_PREFERENCE
    """Whether it is alone on its GPUs."""


def demand_of(pod: PodState, state: ClusterState, *, even_allocated: bool = False) -> PodDemand:
    """Return what a pod requests and does not have yet, or with `even_allocated` everything that it requests.

    Of several requests the largest counts: the others mostly fit beside it.
    """
    demands = list(_gpu_demands(pod, state, even_allocated=even_allocated))
    if not demands:
        return PodDemand(JobShape(gpu_count=0, cpu_milli=pod.cpu_milli, host_memory_bytes=pod.host_memory_bytes))
    rated = [_pod_demand(demand, pod, state) for demand in demands]
    return max(rated, key=lambda each: (each.preference is _ALONE, each.shape.memory_bytes, each.shape.compute_milli))


def _gpu_demands(pod: PodState, state: ClusterState, *, even_allocated: bool) -> Iterator[GpuDemand]:
    for use in pod.claims:
        claim = None if use.name is None else state.claims.get(ClaimKey(pod.namespace, use.name))
        demands: Iterable[GpuDemand] = ()
        if claim is not None:
            demands = claim.demands if even_allocated or not claim.is_allocated else ()
        elif use.template is not None:
            demands = state.templates.get(ClaimKey(pod.namespace, use.template), ())
        yield from (demand for demand in demands if demand.class_name in state.classes)
    class_of_resource = {_CLASS_RESOURCE_PREFIX + name: name for name in state.classes}
    class_of_resource |= {one.extended_resource: name for name, one in state.classes.items() if one.extended_resource}
    for resource, count in pod.resources.items():
        if count > 0 and resource == GIB_RESOURCE:
            yield GpuDemand(GIB_RESOURCE, memory_bytes=count * GIB)
        elif count > 0 and resource in class_of_resource:
            yield GpuDemand(class_of_resource[resource], gpu_count=count)


def _pod_demand(demand: GpuDemand, pod: PodState, state: ClusterState) -> PodDemand:
    known = state.classes.get(demand.class_name)
    # GPUs of a cluster may differ: default and step are those of the smallest.
    smallest = min(state.gpus, key=lambda each: each.memory_bytes, default=None)
    if known is not None and known.is_whole:
        memory_bytes = 0 if smallest is None else smallest.memory_bytes
        compute_milli, preference = WHOLE_MILLI, _ALONE
    else:
        default_bytes = 0 if smallest is None else smallest.default_bytes
        step_bytes = 1 if smallest is None else smallest.step_bytes
        requested_bytes = default_bytes if demand.memory_bytes is None else demand.memory_bytes
        memory_bytes = -(-requested_bytes // step_bytes) * step_bytes
        compute_milli, preference = 10 * demand.compute_percent, NO_PREFERENCE
    shape = JobShape(demand.gpu_count, compute_milli, memory_bytes, pod.cpu_milli, pod.host_memory_bytes)
    return PodDemand(shape, preference)


class DemandMix:
    """The shapes of the last pods, each counted once, however often the scheduler tries it."""

    def __init__(self) -> None:
        self._shapes: deque[JobShape] = deque(maxlen=MOST_RECENT)
        self._uids: dict[str, None] = {}
        self._count = 0
        self._next_rating = FIRST_RATING

    @property
    def shapes(self) -> Iterable[JobShape]:
        """Their shapes."""
        return self._shapes

    def add(self, uid: str, shape: JobShape) -> None:
        """Count a pod, unless it was counted."""
        if uid in self._uids:
            return
        self._uids[uid] = None
        if len(self._uids) > MOST_RECENT:
            # Dictionaries keep insertion order: the first key is the oldest.
            del self._uids[next(iter(self._uids))]
        self._shapes.append(shape)
        self._count += 1

    def is_due(self) -> bool:
        """Whether the mix should be rated anew; True once for each time."""
        if self._count < self._next_rating:
            return False
        while self._next_rating <= self._count:
            self._next_rating += min(self._next_rating, MOST_RECENT)
        return True


class _Assumption(Struct, frozen=True):
    until_seconds: float
    keys: tuple[ClaimKey, ...]


class AssumedPods:
    """Pods that were scored and whose allocation is not visible in the cluster yet, in order of age. Not thread-safe.

    The scheduler goes on to the next pod before it has written the allocation of the last one. Until the allocation is seen, a pod counts
    on the best node, as in the scheduler's own cache; after a minute without news it no longer counts. What assumed pods take is
    in the state under their UIDs.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._by_uid: dict[str, _Assumption] = {}
        self._uid_by_key: dict[ClaimKey, str] = {}

    def assume(self, pod: PodState, demand: PodDemand, node: NodeResources, now_seconds: float) -> None:
        """Count a pod on a node, on the GPUs that the scheduler will choose there: the first that fit."""
        self.forget(pod.uid)
        keys = tuple(ClaimKey(pod.namespace, use.name) for use in pod.claims if use.name is not None)
        self._by_uid[pod.uid] = _Assumption(now_seconds + GIVE_UP_SECONDS, keys)
        # Claims of templates have names once the claim controller has created them, which is before scheduling.
        self._uid_by_key.update(dict.fromkeys(keys, pod.uid))
        self._state.load(pod.uid, pod, node.name)
        shape, mode = demand.shape, demand.preference.sharing_mode
        fitting = [gpu.uuid for gpu in node.gpus if gpu.can_host(shape, mode)][: shape.gpu_count]
        taken = (
            ConsumedGpu(self._state.pool_of(node.name, gpu) or "", gpu, shape.memory_bytes, shape.compute_milli)
            for gpu in fitting
        )
        self._state.take(pod.uid, tuple(taken))

    def see_claim(self, claim: ClaimState) -> None:
        """End the assumed GPUs of the pods of an allocated claim; what they take of the node stays until the pod is seen."""
        if claim.is_allocated:
            uids = claim.user_uids & self._by_uid.keys()
            if (uid := self._uid_by_key.get(claim.key)) is not None:
                uids |= {uid}
            for each in uids:
                self._state.take(each, ())

    def forget(self, uid: str) -> None:
        """Count a pod only as the cluster reports it."""
        assumption = self._by_uid.pop(uid, None)
        if assumption is None:
            return
        for key in assumption.keys:
            self._uid_by_key.pop(key, None)
        self._state.take(uid, ())
        known = self._state.pods.get(uid)
        node = None if known is None else known.node
        self._state.load(uid, None if node is None else known, node or "")

    def forget_old(self, now_seconds: float) -> None:
        """Forget pods of which nothing was seen in time."""
        while self._by_uid:
            uid, assumption = next(iter(self._by_uid.items()))
            if assumption.until_seconds > now_seconds:
                return
            self.forget(uid)


class Scorer:
    """Scores nodes, and takes every change of the cluster. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without any object; `clock` returns monotonic seconds."""
        self.state = ClusterState()
        self._clock = clock
        self._lock = threading.Lock()
        self._assumed = AssumedPods(self.state)
        self._mix = DemandMix()
        self._names: list[str] = []
        self._index: dict[str, int] = {}
        self._placer = Placer(Outlook([]), [])

    def put_claim(self, key: ClaimKey, claim: ClaimState | None) -> None:
        """Store a claim; None: it was deleted."""
        with self._lock:
            self.state.put_claim(key, claim)
            if claim is not None:
                self._assumed.see_claim(claim)

    def put_pod(self, uid: str, pod: PodState | None) -> None:
        """Store a pod; None: it was deleted or has ended."""
        with self._lock:
            self.state.put_pod(uid, pod)
            if pod is None:
                self._assumed.forget(uid)

    def update(self, change: Callable[[ClusterState], None]) -> None:
        """Apply any other change under the lock."""
        with self._lock:
            change(self.state)

    def score(self, pod: PodState, nodes: Sequence[str]) -> list[int]:
        """Score nodes for a pod, in their order, and assume it on the best one, if there is one.

        Args:
            pod: Pending.
            nodes: Names of the nodes that could host it, according to the scheduler.
        """
        with self._lock:
            now_seconds = self._clock()
            self._assumed.forget_old(now_seconds)
            # The scheduler tries a pod again when it could not bind it: its former assumption is void.
            self._assumed.forget(pod.uid)
            demand = demand_of(pod, self.state)
            self._update_placer()
            self._mix.add(pod.uid, demand.shape)
            scores = self._scores(demand, nodes)
            if scores.count(BEST) == 1:
                best = self.state.offer(nodes[scores.index(BEST)])
                self._assumed.assume(pod, demand, best, now_seconds)
            return scores

    def _update_placer(self) -> None:
        names, changed = self.state.nodes, self.state.changed
        if len(names) != len(self._names) or not names.issuperset(self._names) or self._mix.is_due():
            self._rebuild_placer(sorted(names))
        else:
            for name in changed & names:
                self._placer.change(self._index[name], self.state.offer(name))
        changed.clear()

    def _rebuild_placer(self, names: list[str]) -> None:
        if not self._names:  # the first time, the mix is that of the pods that are there
            for uid, pod in self.state.pods.items():
                self._mix.add(uid, demand_of(pod, self.state, even_allocated=True).shape)
        self._names, self._index = names, {name: index for index, name in enumerate(names)}
        outlook = Outlook(self._mix.shapes, [self.state.idle_offer(name) for name in names])
        self._placer = Placer(outlook, [self.state.offer(name) for name in names])

    def _scores(self, demand: PodDemand, nodes: Sequence[str]) -> list[int]:
        costs = self._placer.costs(demand.shape, demand.preference)
        indexes = [self._index.get(name) for name in nodes]
        known = prefer_fuller_nodes([None if index is None else costs[index] for index in indexes], ALIKE)
        least = min((cost for cost in known if cost is not None), default=None)
        if least is None:
            return [NOT_AT_ALL] * len(nodes)
        most = max(cost for cost in known if cost is not None)
        # Evenly between the cheapest and the dearest node.
        scores = [_score(cost, least, most) for cost in known]
        best = min(index for index, cost in zip(indexes, known, strict=True) if index is not None and cost == least)
        if self.state.has_gpus(self._names[best]):
            scores[indexes.index(best)] = BEST
            return scores
        # Without GPUs the choice does not matter for packing: the scheduler may draw lots.
        return [BEST if cost == least else score for cost, score in zip(known, scores, strict=True)]


def _score(cost: int | None, least: int, most: int) -> int:
    """Interpolate between 9 for the least cost and 1 for the most."""
    if cost is None:
        return NOT_AT_ALL
    return _WORST + (_NEXT_BEST - _WORST) * (most - cost) // (most - least) if most > least else _NEXT_BEST
