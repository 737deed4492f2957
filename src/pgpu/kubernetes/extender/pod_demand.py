"""What pods request of GPUs, in terms of placement: one pod's demand, and the mix of recent pods that predicts coming ones."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pgpu.kubernetes.extender.cluster_state import ClusterState
from pgpu.kubernetes.extender.scheduled_objects import GIB_RESOURCE, WHOLE_MILLI, ClaimKey, GpuDemand, PodState
from pgpu.model import SharingMode
from pgpu.scheduling.outlook import JobShape
from pgpu.scheduling.placement import NO_PREFERENCE, PlacementPreference
from pgpu.units import GIB

FIRST_RATING = 32
"""The mix is rated after so many pods for the first time, and then each time that the number has doubled."""

MOST_RECENT = 16_384
"""Number of pods in the mix, and the most pods between two ratings."""

# Before a class name: extended resource that every DeviceClass has. Source: KEP-5004.
_CLASS_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"

_ALONE = PlacementPreference(SharingMode.EXCLUSIVE)


@dataclass(frozen=True, slots=True)
class PodDemand:
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
