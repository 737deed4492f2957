"""The cluster objects that scoring uses, as frozen values, and their decoding from the API server's.

A DeviceClass counts as pgpu's if its CEL expressions name pgpu's driver. A wrong guess changes a score, never what a pod gets.
The garbage collector leaves these values out (`gc=False`): they are in no reference cycle.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from lightkube.models import core_v1, resource_v1
from lightkube.utils.quantity import parse_quantity

from pgpu.errors import RequestError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import prepare_type
from pgpu.kubernetes.extender.gpu_selectors import LabelRequirement, NodeSelector, parse_version
from pgpu.structs import Struct, field
from pgpu.units import quoted

GIB_RESOURCE = "pgpu.io/gpu-memory-gib"
"""Resource of the device plugin; the scheduler counts one number for each node."""

WHOLE_MILLI = 1000
"""All of a GPU's compute, in thousandths."""

_OF_MODEL = (names.MODEL, "architecture", "cudaComputeCapability")
_ENDED_PHASES = frozenset({"Succeeded", "Failed"})
_EXCLUDING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
_CPU = "cpu"
_HOST_MEMORY = "memory"

prepare_type(resource_v1.DeviceCapacity)  # decoded below by the threads of several watches


class ClaimKey(NamedTuple):
    """Identifies a claim or a template."""

    namespace: str
    name: str


class GpuDemand(Struct, frozen=True, gc=False):
    """One request of a claim."""

    class_name: str
    """DeviceClass."""

    gpu_count: int = 1
    memory_bytes: int | None = None
    """Of each GPU; None: the default size."""

    compute_percent: int = 0
    """Of each GPU."""

    selectors: tuple[str, ...] = ()
    """CEL expressions; a GPU must satisfy all."""


class ConsumedGpu(Struct, frozen=True, gc=False):
    """What a claim has of one GPU."""

    pool: str
    gpu: str
    """UUID in lower case."""

    memory_bytes: int = 0
    compute_milli: int = 0
    is_whole: bool = False
    """All of it, whatever the amounts are."""


class ClaimState(Struct, frozen=True, gc=False):
    """A claim's requests and its allocation."""

    key: ClaimKey
    demands: tuple[GpuDemand, ...] = ()
    is_allocated: bool = False
    taken: tuple[ConsumedGpu, ...] = ()
    """Of pgpu's devices."""

    user_uids: frozenset[str] = frozenset()
    """Pods that it is reserved for."""


class PodClaim(Struct, frozen=True, gc=False):
    """A pod's reference to a claim."""

    name: str | None
    """None: the claim was not created yet."""

    template: str | None = None


class PodState(Struct, frozen=True, gc=False):
    """A pod's requests."""

    uid: str
    namespace: str
    node: str | None
    """None: it is pending."""

    cpu_milli: int
    host_memory_bytes: int
    resources: Mapping[str, int] = field(default_factory=dict)
    """Other resources by name, in whole numbers."""

    claims: tuple[PodClaim, ...] = ()
    nodes: NodeSelector = ()
    """Node selector and required node affinity, by labels."""


class NodeCapacity(Struct, frozen=True, gc=False):
    """What pods may have of a node."""

    name: str
    cpu_milli: int
    host_memory_bytes: int
    gpu_gib: int = 0
    """GPU memory of the whole node, on nodes with the device plugin."""

    labels: Mapping[str, str] = field(default_factory=dict)


class SharedGpu(Struct, frozen=True, gc=False):
    """One GPU that many claims may share."""

    gpu: str
    """UUID in lower case."""

    memory_bytes: int
    default_bytes: int
    """For claims that name no amount."""

    step_bytes: int
    model: str = ""
    """Its product name."""

    attributes: frozenset[tuple[str, str | tuple[int, ...]]] = frozenset()
    """Those that tell models apart; versions as numbers."""

    @property
    def fields(self) -> dict[str, Any]:
        """What selectors may read of its device, by the names in CEL."""
        return {
            "driver": names.DRIVER,
            "attributes": {names.DRIVER: dict(self.attributes)},
            "capacity": {names.DRIVER: {names.MEMORY: self.memory_bytes}},
        }


class PublishedSlice(Struct, frozen=True):
    """One ResourceSlice: GPUs of a pool, in the order in which the scheduler tries them."""

    name: str
    pool: str
    generation: int
    node: str
    gpus: tuple[SharedGpu, ...]


class GpuClass(Struct, frozen=True):
    """One DeviceClass of pgpu's devices."""

    name: str
    is_whole: bool
    """Whether its devices are whole GPUs."""

    selectors: tuple[str, ...] = ()
    """CEL expressions, as in `GpuDemand`."""

    extended_resource: str | None = None
    """Resource name that containers may use in its place."""


@lru_cache(maxsize=4096)  # a cluster's objects repeat the same few quantities
def _milli(quantity: str) -> int:
    """Parse a quantity, in thousandths.

    Raises:
        RequestError: It is none.
    """
    try:
        amount = parse_quantity(quantity)
    except ValueError as exc:
        raise RequestError(f"{quoted(quantity)} is no quantity of Kubernetes") from exc
    return math.ceil(1000 * (amount or 0))


def _amount(quantity: object) -> int:
    return -(-_milli(str(quantity)) // 1000)


def key_of(metadata: Any) -> ClaimKey:
    """Return the key of a namespaced object."""
    return ClaimKey((metadata and metadata.namespace) or "", (metadata and metadata.name) or "")


def pod_of(found: core_v1.Pod) -> PodState | None:
    """Decode a pod; None: it has ended and holds nothing.

    Raises:
        RequestError: An amount in it is no quantity.
    """
    metadata, spec, status = found.metadata, found.spec, found.status
    if spec is None or (status is not None and status.phase in _ENDED_PHASES):
        return None
    reserved = _reserved_milli(spec)
    created = {one.name: one.resourceClaimName for one in (status and status.resourceClaimStatuses) or ()}
    return PodState(
        uid=(metadata and metadata.uid) or "",
        namespace=(metadata and metadata.namespace) or "",
        node=spec.nodeName or None,
        cpu_milli=reserved.pop(_CPU, 0),
        host_memory_bytes=-(-reserved.pop(_HOST_MEMORY, 0) // 1000),
        resources={name: -(-amount // 1000) for name, amount in reserved.items()},
        claims=tuple(
            PodClaim(one.resourceClaimName or created.get(one.name), one.resourceClaimTemplateName)
            for one in spec.resourceClaims or ()
        ),
        nodes=_node_selector(spec),
    )


def _node_selector(spec: core_v1.PodSpec) -> NodeSelector:
    own = tuple(LabelRequirement(key, "In", (value,)) for key, value in sorted((spec.nodeSelector or {}).items()))
    affinity = spec.affinity and spec.affinity.nodeAffinity
    required = affinity and affinity.requiredDuringSchedulingIgnoredDuringExecution
    terms = [
        tuple(LabelRequirement(one.key, one.operator, tuple(one.values or ())) for one in term.matchExpressions or ())
        for term in (required and required.nodeSelectorTerms) or ()
    ]
    return tuple((*own, *term) for term in terms or ([()] if own else []))


def _reserved_milli(spec: core_v1.PodSpec) -> Counter[str]:
    """Return what the scheduler reserves for a pod, in thousandths.

    The sum of its containers and sidecars, or the most that an init container needs beside the sidecars started before it.
    """
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for container in spec.initContainers or ():
        own = _requested_milli(container.resources)
        if container.restartPolicy == "Always":  # a sidecar
            running += own
            most |= running
        else:
            most |= running + own
    for container in spec.containers or ():
        running += _requested_milli(container.resources)
    both = running | most
    both.update(_requested_milli(spec.resources) - both)  # the pod's own requests, where they are more
    return both + _all_milli(spec.overhead)


def _requested_milli(resources: core_v1.ResourceRequirements | None) -> Counter[str]:
    return _all_milli({**(resources.limits or {}), **(resources.requests or {})}) if resources else Counter()


def _all_milli(quantities: Mapping[str, Any] | None) -> Counter[str]:
    return Counter({name: _milli(str(quantity)) for name, quantity in (quantities or {}).items()})


def node_of(found: core_v1.Node) -> NodeCapacity:
    """Decode a node.

    Raises:
        RequestError: An amount in it is no quantity.
    """
    allocatable = (found.status and found.status.allocatable) or {}
    return NodeCapacity(
        name=(found.metadata and found.metadata.name) or "",
        cpu_milli=_milli(str(allocatable.get(_CPU, 0))),
        host_memory_bytes=_amount(allocatable.get(_HOST_MEMORY, 0)),
        gpu_gib=_amount(allocatable.get(GIB_RESOURCE, 0)),
        labels=(found.metadata and found.metadata.labels) or {},
    )


def claim_of(found: resource_v1.ResourceClaim) -> ClaimState:
    """Decode a claim.

    Raises:
        RequestError: An amount in it is no quantity.
    """
    status = found.status
    allocation = status.allocation if status else None
    results = (allocation and allocation.devices and allocation.devices.results) or ()
    taken = (_consumed(one) for one in results if one.driver == names.DRIVER and not one.adminAccess)
    return ClaimState(
        key=key_of(found.metadata),
        demands=demands_of(found.spec),
        is_allocated=allocation is not None,
        taken=tuple(taken),
        user_uids=frozenset(user.uid for user in (status and status.reservedFor) or ()),
    )


def _consumed(result: resource_v1.DeviceRequestAllocationResult) -> ConsumedGpu:
    consumed = result.consumedCapacity or {}
    return ConsumedGpu(
        pool=result.pool,
        gpu=names.gpu_of(result.device),
        memory_bytes=_amount(consumed.get(names.MEMORY, 0)),
        compute_milli=10 * _amount(consumed.get(names.COMPUTE, 0)),
        is_whole=names.is_whole(result.device),
    )


def template_of(found: resource_v1.ResourceClaimTemplate) -> tuple[GpuDemand, ...]:
    """Decode the requests of a template's claims.

    Raises:
        RequestError: An amount in it is no quantity.
    """
    return demands_of(found.spec.spec if found.spec else None)


def demands_of(spec: resource_v1.ResourceClaimSpec | None) -> tuple[GpuDemand, ...]:
    """Decode the requests of a claim or template; of alternatives, the first.

    Raises:
        RequestError: An amount in it is no quantity.
    """
    return tuple(_demands(spec))


def _demands(spec: resource_v1.ResourceClaimSpec | None) -> Iterator[GpuDemand]:
    for request in (spec and spec.devices and spec.devices.requests) or ():
        exact: resource_v1.ExactDeviceRequest | resource_v1.DeviceSubRequest
        if request.exactly is not None and not request.exactly.adminAccess:
            exact = request.exactly
        elif request.firstAvailable:
            exact = request.firstAvailable[0]
        else:
            continue
        amounts = (exact.capacity and exact.capacity.requests) or {}
        memory = amounts.get(names.MEMORY)
        yield GpuDemand(
            class_name=exact.deviceClassName,
            gpu_count=1 if exact.allocationMode == "All" else max(1, exact.count or 1),
            memory_bytes=None if memory is None else _amount(memory),
            compute_percent=_amount(amounts.get(names.COMPUTE, 0)),
            selectors=_expressions(exact.selectors),
        )


def _expressions(selectors: Sequence[resource_v1.DeviceSelector] | None) -> tuple[str, ...]:
    return tuple(one.cel.expression for one in selectors or () if one.cel)


def class_of(found: resource_v1.DeviceClass) -> GpuClass | None:
    """Decode a DeviceClass; None: it is of other devices."""
    name = (found.metadata and found.metadata.name) or ""
    spec = found.spec or resource_v1.DeviceClassSpec()
    selectors = _expressions(spec.selectors)
    expressions = " ".join(selectors)
    names_driver = f'"{names.DRIVER}"' in expressions or f"'{names.DRIVER}'" in expressions
    if not names_driver and name != names.SHARED_CLASS:
        return None
    is_whole = name == names.WHOLE_CLASS or "!device.allowMultipleAllocations" in expressions.replace(" ", "")
    return GpuClass(name, is_whole, selectors, spec.extendedResourceName)


def slice_of(found: resource_v1.ResourceSlice) -> PublishedSlice | None:
    """Decode a slice; None: it is not of a node with pgpu's driver.

    The devices of one GPU count as one GPU, since only one kind of them is in use at a time. Tainted devices are left out: only
    pods with a toleration can use them.

    Raises:
        RequestError: An amount in it is no quantity.
    """
    spec = found.spec
    if spec.driver != names.DRIVER or not spec.nodeName:
        return None
    gpus: dict[str, SharedGpu] = {}
    for device in spec.devices or ():
        is_closed = any(taint.effect in _EXCLUDING_EFFECTS for taint in device.taints or ())
        if device.allowMultipleAllocations and not is_closed:
            gpus.setdefault(names.gpu_of(device.name), _shared_gpu(device))
    name, pool = (found.metadata and found.metadata.name) or "", spec.pool
    return PublishedSlice(name, pool.name, pool.generation, spec.nodeName, tuple(gpus.values()))


def _shared_gpu(device: resource_v1.Device) -> SharedGpu:
    capacity = msgspec.convert((device.capacity or {}).get(names.MEMORY, {"value": "0"}), resource_v1.DeviceCapacity)
    policy = capacity.requestPolicy
    memory_bytes = _amount(capacity.value)
    valid = policy.validRange if policy else None
    attributes = _attributes(device)
    return SharedGpu(
        gpu=names.gpu_of(device.name),
        memory_bytes=memory_bytes,
        default_bytes=_amount(policy.default) if policy and policy.default is not None else memory_bytes,
        step_bytes=max(1, _amount(valid.step) if valid and valid.step is not None else 1),
        model=str(attributes.get(names.MODEL, "")),
        attributes=frozenset(attributes.items()),
    )


def _attributes(device: resource_v1.Device) -> dict[str, str | tuple[int, ...]]:
    """Return the attributes that tell models apart; others differ between GPUs of one model."""
    found: dict[str, str | tuple[int, ...]] = {}
    for name in _OF_MODEL:
        written = (device.attributes or {}).get(name, {})
        if "version" in written:
            with contextlib.suppress(ValueError):  # with a suffix: it stays unknown
                found[name] = parse_version(written["version"])
        elif "string" in written:
            found[name] = written["string"]
    return found
