"""What one pod asks of GPUs, in the words of placement.

A pod whose requests differ is rated by the largest of them: the others mostly fit beside it. It refuses to know where
anything is.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pgpu.kubernetes.extender.cluster_state import ClusterState
from pgpu.kubernetes.extender.scheduled_objects import GIB_RESOURCE, WHOLE_MILLI, ClaimKey, GpuAsk, PodState
from pgpu.model import SharingMode
from pgpu.scheduling.outlook import JobShape
from pgpu.scheduling.placement import NO_PREFERENCE, PlacementPreference
from pgpu.units import GIB

_OF_A_CLASS = "deviceclass.resource.kubernetes.io/"
"""What a container may ask for in place of any class. Source: KEP-5004."""

_ALONE = PlacementPreference(SharingMode.EXCLUSIVE)


@dataclass(frozen=True, slots=True)
class PodDemand:
    """What a pod asks for."""

    shape: JobShape
    wish: PlacementPreference = NO_PREFERENCE
    """Alone on its GPUs, or not."""


def demand_of(pod: PodState, stock: ClusterState, *, even_allocated: bool = False) -> PodDemand:
    """Say what a pod asks for that it has not got yet, or, even of what it has, what it once asked for."""
    asks = list(_asks(pod, stock, even_allocated=even_allocated))
    host = JobShape(gpu_count=0, cpu_milli=pod.cpu_milli, host_memory_bytes=pod.host_memory_bytes)
    if not asks:
        return PodDemand(host)
    rated = [_wanted(ask, host, stock) for ask in asks]
    return max(rated, key=lambda each: (each.wish is _ALONE, each.shape.memory_bytes, each.shape.compute_milli))


def _asks(pod: PodState, stock: ClusterState, *, even_allocated: bool) -> Iterator[GpuAsk]:
    for use in pod.claims:
        claim = None if use.name is None else stock.claims.get(ClaimKey(pod.namespace, use.name))
        if claim is None:
            asks = () if use.template is None else stock.templates.get(ClaimKey(pod.namespace, use.template), ())
        else:
            asks = claim.asks if even_allocated or not claim.is_allocated else ()
        yield from (ask for ask in asks if ask.class_name in stock.classes)
    extended = {_OF_A_CLASS + name: name for name in stock.classes}
    extended |= {one.extended_resource: name for name, one in stock.classes.items() if one.extended_resource}
    for resource, count in pod.resources.items():
        if count > 0 and resource == GIB_RESOURCE:
            yield GpuAsk(GIB_RESOURCE, memory_bytes=count * GIB)
        elif count > 0 and resource in extended:
            yield GpuAsk(extended[resource], gpu_count=count)


def _wanted(ask: GpuAsk, host: JobShape, stock: ClusterState) -> PodDemand:
    known = stock.classes.get(ask.class_name)
    card = min(stock.cards, key=lambda each: each.memory_bytes, default=None)
    if known is not None and known.is_whole:
        memory_bytes = 0 if card is None else card.memory_bytes
        return PodDemand(_on(host, ask.gpu_count, WHOLE_MILLI, memory_bytes), _ALONE)
    asked_bytes = ask.memory_bytes if ask.memory_bytes is not None else (card.default_bytes if card else 0)
    step_bytes = 1 if card is None else card.step_bytes
    memory_bytes = -(-asked_bytes // step_bytes) * step_bytes
    return PodDemand(_on(host, ask.gpu_count, 10 * ask.compute_percent, memory_bytes))


def _on(host: JobShape, gpu_count: int, compute_milli: int, memory_bytes: int) -> JobShape:
    return JobShape(gpu_count, compute_milli, memory_bytes, host.cpu_milli, host.host_memory_bytes)
