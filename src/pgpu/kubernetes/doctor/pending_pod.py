"""Why a pod waits for its GPU. The scheduler says "cannot allocate all claims", whatever it was that did not fit."""

from collections.abc import Iterator
from operator import attrgetter

from lightkube.models.core_v1 import PodCondition
from lightkube.models.resource_v1 import DeviceRequestAllocationResult
from lightkube.resources.core_v1 import Node
from lightkube.resources.core_v1 import Pod as PodObject
from lightkube.resources.resource_v1 import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice

from pgpu.errors import ObjectNotFoundError, RequestError
from pgpu.kubernetes import names
from pgpu.kubernetes.api.cluster import ClusterInspector
from pgpu.kubernetes.doctor.gpu_usage import GpuUsage, gpu_usages
from pgpu.kubernetes.extender.object_decoding import asks_of, claim_of, class_of, pod_of, shelf_of
from pgpu.kubernetes.extender.scheduled_objects import ConsumedGpu, GpuAsk, GpuClass, PodClaim, PodState
from pgpu.kubernetes.names import DeviceKind
from pgpu.model.finding import Finding, broken, fine, weak
from pgpu.units import format_memory

_MOST_GPUS = 24
_MOST_HOLDERS = 8
_NO_CLASS = "kubectl get deviceclasses; kubectl apply -k deploy/kubernetes makes those of pgpu"


def explain_pending_pod(cluster: ClusterInspector, namespace: str, name: str) -> Iterator[Finding]:
    """Say what a pod asks for, where that would fit, and who has the rest.

    Raises:
        RequestError: There is no such pod, or an amount in it is no quantity.
        ClusterError: The API server cannot be asked.
    """
    told = f"{namespace}/{name}"
    try:
        found = cluster.one(PodObject, name, namespace)
    except ObjectNotFoundError as exc:
        raise RequestError(f"there is no pod {told}", hint="kubectl get pods --all-namespaces") from exc
    pod = pod_of(found)
    if pod is None:
        yield fine(told, "it has ended and waits for nothing")
    elif pod.node is not None:
        yield fine(
            told, f"it has its GPUs, on {pod.node}; if it does not start: kubectl -n {namespace} describe pod {name}"
        )
    else:
        yield from _why_it_waits(cluster, told, found, pod)


def _why_it_waits(cluster: ClusterInspector, told: str, found: PodObject, pod: PodState) -> Iterator[Finding]:
    words = _of_the_scheduler(found)
    known = cluster.all(DeviceClass, namespace=None)
    classes = {one.name: one for each in known if (one := class_of(each))}
    kinds = {one.name: _kind_of(each, one) for each in known if (one := class_of(each))}
    asks: list[GpuAsk] = []
    for use in pod.claims:
        try:
            asks += _asks_of_claim(cluster, pod, use)
        except ObjectNotFoundError:
            yield broken(
                told, f"it names a claim that is not there: {use.template or use.name}", "make it, in its namespace"
            )
    asks += _asks_of_limits(pod, classes)
    if not asks:
        yield weak(told, f"it asks for no GPU that it has not got; the scheduler says: {words}", None)
        return
    rooms = _rooms(cluster)
    hosts = _hosts(cluster, found)
    reachable = tuple(room for room in rooms if room.node in hosts)
    if rooms and not reachable:
        yield broken(told, "no node with a GPU is open to it", "see its node selector, and which nodes are cordoned")
    for ask in asks if reachable or not rooms else ():
        yield _fitting(told, ask, kinds.get(ask.class_name), reachable, words)
    yield from _all_rooms(rooms)


def _asks_of_claim(cluster: ClusterInspector, pod: PodState, use: PodClaim) -> tuple[GpuAsk, ...]:
    if use.name is None:
        template = cluster.one(ResourceClaimTemplate, use.template or "", pod.namespace)
        return asks_of(template.spec.spec if template.spec else None)
    claim = claim_of(cluster.one(ResourceClaim, use.name, pod.namespace))
    return () if claim.is_allocated else claim.asks


def _asks_of_limits(pod: PodState, classes: dict[str, GpuClass]) -> Iterator[GpuAsk]:
    for one in classes.values():
        count = pod.resources.get(one.extended_resource or "", 0)
        if count:
            yield GpuAsk(one.name, gpu_count=count)


def _rooms(cluster: ClusterInspector) -> tuple[GpuUsage, ...]:
    ours = {"fieldSelector": f"spec.driver={names.DRIVER}"}
    published = [shelf_of(each) for each in cluster.all(ResourceSlice, namespace=None, parameters=ours)]
    claims = cluster.all(ResourceClaim)
    kinds = {
        (result.pool, names.gpu_of(result.device)): names.kind_of(result.device)
        for claim in claims
        for result in _results(claim)
        if result.driver == names.DRIVER
    }
    return gpu_usages([each for each in published if each is not None], map(claim_of, claims), kinds)


def _hosts(cluster: ClusterInspector, found: PodObject) -> set[str]:
    """Return the nodes that are not closed to a pod, as far as its node selector says and nobody cordoned them."""
    wanted = (found.spec.nodeSelector if found.spec else None) or {}
    return {
        node.metadata.name or ""
        for node in cluster.all(Node, namespace=None)
        if node.metadata is not None
        and wanted.items() <= (node.metadata.labels or {}).items()
        and not (node.spec and node.spec.unschedulable)
    }


def _results(claim: ResourceClaim) -> list[DeviceRequestAllocationResult]:
    allocation = claim.status.allocation if claim.status else None
    return (allocation.devices.results if allocation and allocation.devices else None) or []


def _kind_of(found: DeviceClass, read: GpuClass) -> DeviceKind:
    """Say which kind of device a class selects; of one that does not say so, the usual."""
    if read.is_whole:
        return DeviceKind.WHOLE
    selectors = (found.spec.selectors if found.spec else None) or []
    said = " ".join(each.cel.expression for each in selectors if each.cel)
    named = [kind for kind in DeviceKind if f'"{kind}"' in said or f"'{kind}'" in said]
    return named[0] if len(named) == 1 else DeviceKind.TIME_SLICE


def _fitting(told: str, ask: GpuAsk, kind: DeviceKind | None, rooms: tuple[GpuUsage, ...], words: str) -> Finding:
    if kind is None:
        return broken(told, f"it asks for {ask.class_name}, and no class of pgpu's GPUs is called so", _NO_CLASS)
    if not rooms:
        return broken(told, "no node publishes a GPU", "pgpu doctor --kubernetes")
    fitting = [room for room in rooms if room.has_room_for(ask, kind)]
    by_node = {room.node: [each for each in fitting if each.node == room.node] for room in fitting}
    enough = sorted(node for node, found in by_node.items() if len(found) >= ask.gpu_count)
    wanted = f"it asks for {_asked(ask, rooms, kind)}"
    if enough:
        other = (
            f"{wanted}, and that fits on {', '.join(enough)} now: the scheduler keeps it for another reason: {words}"
        )
        return weak(told, other, "see its other claims, its node selector, its tolerations, CPU and memory")
    return broken(told, f"{wanted}, and no node that is open to it has that free", _remedy(ask, rooms, kind))


def _asked(ask: GpuAsk, rooms: tuple[GpuUsage, ...], kind: DeviceKind) -> str:
    each = "a whole GPU" if kind is DeviceKind.WHOLE else format_memory(max(room.needed_bytes(ask) for room in rooms))
    each += f" in the kind {kind}" if kind in {DeviceKind.MPS, DeviceKind.OVERSUBSCRIBED} else ""
    share = f" and {ask.compute_percent}% of its time" if ask.compute_percent else ""
    return f"{ask.gpu_count} times {each}{share}" if ask.gpu_count > 1 else f"{each}{share}"


def _remedy(ask: GpuAsk, rooms: tuple[GpuUsage, ...], kind: DeviceKind) -> str:
    if kind is DeviceKind.WHOLE:
        return "it starts when a GPU is nobody's; a slice may do"
    if all(room.needed_bytes(ask) > room.card.memory_bytes for room in rooms):
        most_bytes = max(room.card.memory_bytes for room in rooms)
        return f"it never starts here: no GPU has more than {format_memory(most_bytes)}"
    most_bytes = max((room.free_bytes for room in rooms if room.kind in {None, kind}), default=0)
    return f"it starts when somebody below ends; now at most {format_memory(most_bytes)} of one GPU are free for it"


def _all_rooms(rooms: tuple[GpuUsage, ...]) -> Iterator[Finding]:
    for room in sorted(rooms, key=attrgetter("free_bytes"), reverse=True)[:_MOST_GPUS]:
        free = f"{format_memory(room.free_bytes)} of {format_memory(room.card.memory_bytes)}, {room.free_percent}% of its time free"
        holders = [f"{key.namespace}/{key.name} {_held(taken)}" for key, taken in room.holders]
        more = [f"{len(holders) - _MOST_HOLDERS} more"] if len(holders) > _MOST_HOLDERS else []
        kind = f", in the kind {room.kind}" if room.kind in {DeviceKind.MPS, DeviceKind.OVERSUBSCRIBED} else ""
        held = f"{kind}; held by {', '.join(holders[:_MOST_HOLDERS] + more)}" if holders else ""
        yield fine(f"{room.node} {room.card.gpu}", free + held)
    if len(rooms) > _MOST_GPUS:
        yield fine("GPUs", f"{len(rooms) - _MOST_GPUS} more, with less free")


def _held(taken: ConsumedGpu) -> str:
    return "all of it" if taken.is_whole else format_memory(taken.memory_bytes)


def _of_the_scheduler(found: PodObject) -> str:
    conditions: list[PodCondition] = (found.status.conditions if found.status else None) or []
    scheduled = [each.message for each in conditions if each.type == "PodScheduled" and each.message]
    return scheduled[0] if scheduled else "nothing yet"
