"""Scores the nodes that could host a pod: 10 for the best, 1 to 9 for others, 0 for those that cannot host it as far as is known.

Only one node gets 10. The scheduler draws lots among equal nodes, but which of several equally good nodes is best must not change from
pod to pod: with random ties 4.6 points of GPU are lost on openb.

What a pod requests is computed here, too: its demand, and the mix of recent pods that predicts coming ones.

Source: k8s.io/kube-scheduler/extender/v1, MaxExtenderPriority.
"""

import gc
import threading
from collections import Counter
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
from pgpu.scheduling.cluster_resources import JobShape, NodeResources
from pgpu.scheduling.outlook import Outlook
from pgpu.scheduling.placement import NO_PREFERENCE, PlacementPreference
from pgpu.scheduling.placer import Placer, prefer_fuller_nodes
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

NODES_AT_ONCE = 64
"""Nodes that are rated anew within one answer, which takes 1 to 3 ms, when the mix is rated."""

# Before a class name: extended resource that every DeviceClass has. Source: KEP-5004.
_CLASS_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"

_ALONE = PlacementPreference(SharingMode.EXCLUSIVE)


class PodDemand(Struct, frozen=True, gc=False):
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
    models, smallest = state.admitted(demand, pod.nodes)
    # The admitted GPUs may differ: default and step are those of the smallest.
    if known is not None and known.is_whole:
        memory_bytes = 0 if smallest is None else smallest.memory_bytes
        compute_milli, preference = WHOLE_MILLI, _ALONE
    else:
        default_bytes = 0 if smallest is None else smallest.default_bytes
        step_bytes = 1 if smallest is None else smallest.step_bytes
        requested_bytes = default_bytes if demand.memory_bytes is None else demand.memory_bytes
        memory_bytes = -(-requested_bytes // step_bytes) * step_bytes
        compute_milli, preference = 10 * demand.compute_percent, NO_PREFERENCE
    shape = JobShape(demand.gpu_count, compute_milli, memory_bytes, pod.cpu_milli, pod.host_memory_bytes, models)
    return PodDemand(shape, preference)


class DemandMix:
    """The shapes of the last pods, each counted once, however often the scheduler tries it."""

    def __init__(self) -> None:
        self.counts: Counter[JobShape] = Counter()
        """Of each shape."""

        # In order of age.
        self._shape_by_uid: dict[str, JobShape] = {}
        self._count = 0
        self._next_rating = FIRST_RATING

    def add(self, uid: str, shape: JobShape) -> None:
        """Count a pod, unless it was counted."""
        if uid in self._shape_by_uid:
            return
        self._shape_by_uid[uid] = shape
        self.counts[shape] += 1
        if len(self._shape_by_uid) > MOST_RECENT:
            oldest = self._shape_by_uid.pop(next(iter(self._shape_by_uid)))
            self.counts[oldest] -= 1
            if not self.counts[oldest]:
                del self.counts[oldest]
        self._count += 1

    def is_due(self) -> bool:
        """Whether the mix should be rated anew; True once for each time."""
        if self._count < self._next_rating:
            return False
        while self._next_rating <= self._count:
            self._next_rating += min(self._next_rating, MOST_RECENT)
        return True


class _Assumption(Struct, frozen=True, gc=False):
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
        # The placer with the present mix, while it is prepared, and what is left of its preparation.
        self._next_placer: Placer | None = None
        self._renewal: Iterator[None] = iter(())

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
        if names != self._index.keys():
            self._rebuild_placer(sorted(names))
        else:
            for name in changed & names:
                offer = self.state.offer(name)
                for placer in filter(None, (self._placer, self._next_placer)):
                    placer.change(self._index[name], offer)
        changed.clear()
        if self._mix.is_due():
            self._renewal = self._renew_placer()
        next(self._renewal, None)

    def _renew_placer(self) -> Iterator[None]:
        """Rate the mix anew, a part with each answer: at once it would take as long as a hundred answers."""
        self._next_placer = None
        fleet = self.state.fleet
        outlook = Outlook(self._mix.counts, fleet)
        for type_ in fleet.gpus:
            outlook.worth(type_)
            yield
        self._next_placer = self._placer.renewed(outlook)
        while not self._next_placer.settle(NODES_AT_ONCE):
            yield
        self._placer, self._next_placer = self._next_placer, None
        _spare_the_collector()

    def _rebuild_placer(self, names: list[str]) -> None:
        if not self._names:  # the first time, the mix is that of the pods that are there
            for uid, pod in self.state.pods.items():
                self._mix.add(uid, demand_of(pod, self.state, even_allocated=True).shape)
        self._names, self._index = names, {name: index for index, name in enumerate(names)}
        self._next_placer, self._renewal = None, iter(())
        outlook = Outlook(self._mix.counts, self.state.fleet)
        self._placer = Placer(outlook, [self.state.offer(name) for name in names])
        _spare_the_collector()

    def _scores(self, demand: PodDemand, nodes: Sequence[str]) -> list[int]:
        costs, state_of = self._placer.costs(demand.shape, demand.preference), self._placer.states
        indexes = list(map(self._index.get, nodes))
        states = [None if index is None else state_of[index] for index in indexes]
        # Far fewer than nodes, before the nodes differ, and after most of them are full.
        found = {state: costs[state] for state in set(states) if state is not None and state in costs}
        if not found:
            return [NOT_AT_ALL] * len(nodes)
        cost_of = dict(zip(found, prefer_fuller_nodes(list(found.values()), ALIKE), strict=True))
        least, most = min(cost_of.values()), max(cost_of.values())
        # Evenly between the cheapest and the dearest node: 9 for the least cost, 1 for the most.
        score_of: dict[int | None, int] = {
            state: _WORST + (_NEXT_BEST - _WORST) * (most - cost) // (most - least) if most > least else _NEXT_BEST
            for state, cost in cost_of.items()
        }
        scores = [score_of.get(state, NOT_AT_ALL) for state in states]
        cheapest = {state for state, cost in cost_of.items() if cost == least}
        best = min(
            index for index, state in zip(indexes, states, strict=True) if index is not None and state in cheapest
        )
        if self.state.has_gpus(self._names[best]):
            scores[indexes.index(best)] = BEST
            return scores
        # Without GPUs the choice does not matter for packing: the scheduler may draw lots.
        return [BEST if state in cheapest else one for state, one in zip(states, scores, strict=True)]


def _spare_the_collector() -> None:
    """Exempt all objects that exist from garbage collection: traversing those of a large cluster delays an answer by up to 50 ms.

    Reference counting still frees them; none of the state, of a placer or of an outlook is in a cycle.
    """
    gc.freeze()
