"""Explains why a pod waits for its GPU: the scheduler reports "cannot allocate all claims", whatever did not fit."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter

from lightkube.models.core_v1 import PodCondition
from lightkube.models.resource_v1 import DeviceRequestAllocationResult
from lightkube.resources.core_v1 import Node
from lightkube.resources.core_v1 import Pod as PodObject
from lightkube.resources.resource_v1 import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice

from pgpu.errors import ObjectNotFoundError, RequestError
from pgpu.kubernetes import names
from pgpu.kubernetes.api.cluster import ClusterInspector
from pgpu.kubernetes.extender.scheduled_objects import (
    WHOLE_MILLI,
    ClaimKey,
    ClaimState,
    ConsumedGpu,
    GpuClass,
    GpuDemand,
    PodClaim,
    PodState,
    PublishedSlice,
    SharedGpu,
    claim_of,
    class_of,
    demands_of,
    pod_of,
    slice_of,
)
from pgpu.kubernetes.names import DeviceKind
from pgpu.model.finding import Finding, broken, fine, weak
from pgpu.structs import Struct
from pgpu.units import format_memory

_MOST_GPUS = 24
_MOST_HOLDERS = 8
_SPECIAL_KINDS = {DeviceKind.MPS, DeviceKind.OVERSUBSCRIBED}
_NO_CLASS = "kubectl get deviceclasses; kubectl apply -k deploy/kubernetes makes those of pgpu"


class GpuUsage(Struct, frozen=True):
    """What is free of one GPU, and which claims have the rest."""

    node: str
    gpu: SharedGpu
    holders: tuple[tuple[ClaimKey, ConsumedGpu], ...] = ()
    """Claims with a part of it, by name."""

    kind: DeviceKind | None = None
    """How it is shared now; None: it is unused."""

    @property
    def free_bytes(self) -> int:
        """Memory that a claim could get."""
        held_bytes = sum(taken.memory_bytes for _, taken in self.holders)
        return 0 if self.kind is DeviceKind.WHOLE else max(0, self.gpu.memory_bytes - held_bytes)

    @property
    def free_percent(self) -> int:
        """Percent of its time that a claim could get."""
        held_milli = sum(taken.compute_milli for _, taken in self.holders)
        return 0 if self.kind is DeviceKind.WHOLE else max(0, WHOLE_MILLI - held_milli) * 100 // WHOLE_MILLI

    def needed_bytes(self, demand: GpuDemand) -> int:
        """Return what a demand takes of it: the default if it names no amount, in whole steps."""
        requested_bytes = self.gpu.default_bytes if demand.memory_bytes is None else demand.memory_bytes
        return -(-requested_bytes // self.gpu.step_bytes) * self.gpu.step_bytes

    def has_room_for(self, demand: GpuDemand, kind: DeviceKind) -> bool:
        """Whether one GPU of a demand fits here now; a GPU is shared in one kind at a time."""
        if self.kind is not None and (kind is not self.kind or kind is DeviceKind.WHOLE):
            return False
        if kind is DeviceKind.WHOLE:
            return True
        return self.needed_bytes(demand) <= self.free_bytes and demand.compute_percent <= self.free_percent


def gpu_usages(
    slices: Iterable[PublishedSlice], claims: Iterable[ClaimState], kinds: Mapping[tuple[str, str], DeviceKind]
) -> tuple[GpuUsage, ...]:
    """Return every published GPU, by node and in the order in which the scheduler tries them.

    Args:
        slices: All published slices.
        claims: All claims.
        kinds: By pool and GPU in lower case how a GPU is shared; unused GPUs are missing.
    """
    held = defaultdict(list)
    for claim in claims:
        for taken in claim.taken:
            held[taken.pool, taken.gpu].append((claim.key, taken))
    ordered = sorted(slices, key=lambda each: (each.node, each.pool, each.name))
    newest: dict[str, int] = {}
    for each in ordered:
        newest[each.pool] = max(each.generation, newest.get(each.pool, 0))
    return tuple(
        GpuUsage(
            each.node,
            gpu,
            tuple(sorted(held[each.pool, gpu.gpu], key=lambda holder: holder[0])),
            kinds.get((each.pool, gpu.gpu)),
        )
        for each in ordered
        if each.generation == newest[each.pool]
        for gpu in each.gpus
    )


def explain_pending_pod(cluster: ClusterInspector, namespace: str, name: str) -> Iterator[Finding]:
    """Report what a pod requests, where that would fit, and which claims have the rest.

    Raises:
        RequestError: There is no such pod, or an amount in it is no quantity.
        ClusterError: The API server does not answer, or does not allow it.
    """
    title = f"{namespace}/{name}"
    try:
        found = cluster.one(PodObject, name, namespace)
    except ObjectNotFoundError as exc:
        raise RequestError(f"there is no pod {title}", hint="kubectl get pods --all-namespaces") from exc
    pod = pod_of(found)
    if pod is None:
        yield fine(title, "it has ended and waits for nothing")
    elif pod.node is not None:
        yield fine(
            title, f"it has its GPUs, on {pod.node}; if it does not start: kubectl -n {namespace} describe pod {name}"
        )
    else:
        yield from _why_it_waits(cluster, title, found, pod)


def _why_it_waits(cluster: ClusterInspector, title: str, found: PodObject, pod: PodState) -> Iterator[Finding]:
    message = _scheduler_message(found)
    decoded = [(each, one) for each in cluster.all(DeviceClass, namespace=None) if (one := class_of(each))]
    kinds = {one.name: _kind_of(each, one) for each, one in decoded}
    demands: list[GpuDemand] = []
    for use in pod.claims:
        try:
            demands += _demands_of_claim(cluster, pod, use)
        except ObjectNotFoundError:
            yield broken(
                title, f"it names a claim that is not there: {use.template or use.name}", "make it, in its namespace"
            )
    for _, one in decoded:
        if count := pod.resources.get(one.extended_resource or "", 0):
            demands.append(GpuDemand(one.name, gpu_count=count))
    if not demands:
        yield weak(title, f"it asks for no GPU that it has not got; the scheduler says: {message}", None)
        return
    # Claims and slices are read one after the other: a pod that starts meanwhile can make the sums differ by its
    # slice.
    usages = _read_usages(cluster)
    open_nodes = _open_nodes(cluster, found)
    reachable = tuple(usage for usage in usages if usage.node in open_nodes)
    if usages and not reachable:
        yield broken(title, "no node with a GPU is open to it", "see its node selector, and which nodes are cordoned")
    for demand in demands if reachable or not usages else ():
        yield _fit(title, demand, kinds.get(demand.class_name), reachable, message)
    yield from _list_gpus(usages)


def _demands_of_claim(cluster: ClusterInspector, pod: PodState, use: PodClaim) -> tuple[GpuDemand, ...]:
    if use.name is None:
        template = cluster.one(ResourceClaimTemplate, use.template or "", pod.namespace)
        return demands_of(template.spec.spec if template.spec else None)
    claim = claim_of(cluster.one(ResourceClaim, use.name, pod.namespace))
    return () if claim.is_allocated else claim.demands


def _read_usages(cluster: ClusterInspector) -> tuple[GpuUsage, ...]:
    ours = {"fieldSelector": f"spec.driver={names.DRIVER}"}
    published = [slice_of(each) for each in cluster.all(ResourceSlice, namespace=None, parameters=ours)]
    claims = cluster.all(ResourceClaim)
    kinds = {
        (result.pool, names.gpu_of(result.device)): names.kind_of(result.device)
        for claim in claims
        for result in _results(claim)
        if result.driver == names.DRIVER
    }
    return gpu_usages([each for each in published if each is not None], map(claim_of, claims), kinds)


def _results(claim: ResourceClaim) -> list[DeviceRequestAllocationResult]:
    allocation = claim.status.allocation if claim.status else None
    return (allocation.devices.results if allocation and allocation.devices else None) or []


def _open_nodes(cluster: ClusterInspector, found: PodObject) -> set[str]:
    """Return the nodes that match a pod's node selector and are not cordoned."""
    wanted = (found.spec.nodeSelector if found.spec else None) or {}
    return {
        node.metadata.name or ""
        for node in cluster.all(Node, namespace=None)
        if node.metadata is not None
        and wanted.items() <= (node.metadata.labels or {}).items()
        and not (node.spec and node.spec.unschedulable)
    }


def _kind_of(found: DeviceClass, decoded: GpuClass) -> DeviceKind:
    """Return the kind of device that a class selects, if its expressions name exactly one; else time slices."""
    if decoded.is_whole:
        return DeviceKind.WHOLE
    selectors = (found.spec.selectors if found.spec else None) or []
    expressions = " ".join(each.cel.expression for each in selectors if each.cel)
    named = [kind for kind in DeviceKind if f'"{kind}"' in expressions or f"'{kind}'" in expressions]
    return named[0] if len(named) == 1 else DeviceKind.TIME_SLICE


def _fit(title: str, demand: GpuDemand, kind: DeviceKind | None, usages: tuple[GpuUsage, ...], message: str) -> Finding:
    if kind is None:
        return broken(title, f"it asks for {demand.class_name}, and no class of pgpu's GPUs is called so", _NO_CLASS)
    if not usages:
        return broken(title, "no node publishes a GPU", "pgpu doctor --kubernetes")
    fitting: dict[str, int] = defaultdict(int)
    # A claim for several GPUs needs them all on one node.
    for usage in usages:
        fitting[usage.node] += usage.has_room_for(demand, kind)
    enough = sorted(node for node, count in fitting.items() if count >= max(1, demand.gpu_count))
    wanted = f"it asks for {_described(demand, usages, kind)}"
    if enough:
        finding = (
            f"{wanted}, and that fits on {', '.join(enough)} now: the scheduler keeps it for another reason: {message}"
        )
        return weak(title, finding, "see its other claims, its node selector, its tolerations, CPU and memory")
    return broken(title, f"{wanted}, and no node that is open to it has that free", _remedy(demand, usages, kind))


def _described(demand: GpuDemand, usages: tuple[GpuUsage, ...], kind: DeviceKind) -> str:
    each = "a whole GPU"
    if kind is not DeviceKind.WHOLE:
        each = format_memory(max(usage.needed_bytes(demand) for usage in usages))
    each += f" in the kind {kind}" if kind in _SPECIAL_KINDS else ""
    share = f" and {demand.compute_percent}% of its time" if demand.compute_percent else ""
    return f"{demand.gpu_count} times {each}{share}" if demand.gpu_count > 1 else f"{each}{share}"


def _remedy(demand: GpuDemand, usages: tuple[GpuUsage, ...], kind: DeviceKind) -> str:
    if kind is DeviceKind.WHOLE:
        return "it starts when a GPU is free; a slice may do"
    if all(usage.needed_bytes(demand) > usage.gpu.memory_bytes for usage in usages):
        most_bytes = max(usage.gpu.memory_bytes for usage in usages)
        return f"it never starts here: no GPU has more than {format_memory(most_bytes)}"
    most_bytes = max((usage.free_bytes for usage in usages if usage.kind in {None, kind}), default=0)
    return f"it starts when a claim below ends; now at most {format_memory(most_bytes)} of one GPU are free for it"


def _list_gpus(usages: tuple[GpuUsage, ...]) -> Iterator[Finding]:
    for usage in sorted(usages, key=attrgetter("free_bytes"), reverse=True)[:_MOST_GPUS]:
        free = f"{format_memory(usage.free_bytes)} of {format_memory(usage.gpu.memory_bytes)}, {usage.free_percent}% of its time free"
        holders = [
            f"{key.namespace}/{key.name} {'all of it' if taken.is_whole else format_memory(taken.memory_bytes)}"
            for key, taken in usage.holders
        ]
        more = [f"{len(holders) - _MOST_HOLDERS} more"] if len(holders) > _MOST_HOLDERS else []
        kind = f", in the kind {usage.kind}" if usage.kind in _SPECIAL_KINDS else ""
        held = f"{kind}; held by {', '.join(holders[:_MOST_HOLDERS] + more)}" if holders else ""
        yield fine(f"{usage.node} {usage.gpu.gpu}", free + held)
    if len(usages) > _MOST_GPUS:
        yield fine("GPUs", f"{len(usages) - _MOST_GPUS} more, with less free")


def _scheduler_message(found: PodObject) -> str:
    conditions: list[PodCondition] = (found.status.conditions if found.status else None) or []
    messages = [each.message for each in conditions if each.type == "PodScheduled" and each.message]
    return messages[0] if messages else "nothing yet"
