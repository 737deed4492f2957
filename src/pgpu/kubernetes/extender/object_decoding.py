"""From the cluster's objects to the values of scoring. It refuses amounts that are no quantities; the rest it passes over.

Whether a DeviceClass is of pgpu's devices is told by the names in its expressions: they are not evaluated. Who is wrong
about a class scores nodes as if nothing were asked, or another amount; what pods get is the scheduler's.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec
from lightkube.models import core_v1, resource_v1
from lightkube.utils.quantity import parse_quantity

from pgpu.errors import RequestError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import prepare_type
from pgpu.kubernetes.extender.scheduled_objects import (
    GIB_RESOURCE,
    ClaimKey,
    ClaimState,
    ConsumedGpu,
    GpuAsk,
    GpuClass,
    NodeCapacity,
    PodClaim,
    PodState,
    PublishedSlice,
    SharedGpu,
)
from pgpu.units import quoted

_OVER = frozenset({"Succeeded", "Failed"})
_SIDECAR = "Always"
_CPU = "cpu"
_HOST_MEMORY = "memory"
_ALL = "All"
_KEEPING_OUT = frozenset({"NoSchedule", "NoExecute"})

_Quantities = Mapping[str, Any] | None

prepare_type(resource_v1.DeviceCapacity)  # each kind of objects is followed by a thread of its own


@lru_cache(maxsize=4096)
def _milli(quantity: str) -> int:
    """Read a quantity in thousandths: the same few are met again and again.

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
    """Name an object that lies in a namespace."""
    return ClaimKey((metadata and metadata.namespace) or "", (metadata and metadata.name) or "")


def pod_of(found: core_v1.Pod) -> PodState | None:
    """Read a pod; None of one that has ended, and holds nothing any more.

    Raises:
        RequestError: An amount in it is no quantity.
    """
    metadata, spec, status = found.metadata, found.spec, found.status
    if spec is None or (status is not None and status.phase in _OVER):
        return None
    asked = _asked(spec)
    made = {one.name: one.resourceClaimName for one in (status and status.resourceClaimStatuses) or ()}
    return PodState(
        uid=(metadata and metadata.uid) or "",
        namespace=(metadata and metadata.namespace) or "",
        node=spec.nodeName or None,
        cpu_milli=asked.pop(_CPU, 0),
        host_memory_bytes=-(-asked.pop(_HOST_MEMORY, 0) // 1000),
        resources={name: -(-amount // 1000) for name, amount in asked.items()},
        claims=tuple(
            PodClaim(one.resourceClaimName or made.get(one.name), one.resourceClaimTemplateName)
            for one in spec.resourceClaims or ()
        ),
    )


def _asked(spec: core_v1.PodSpec) -> Counter[str]:
    """Return what the scheduler reserves for a pod, in thousandths.

    Its containers and sidecars together, or the most that an init container needs beside the sidecars started before it.
    """
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for container in spec.initContainers or ():
        own = _requests(container.resources)
        if container.restartPolicy == _SIDECAR:
            running += own
            most |= running
        else:
            most |= running + own
    for container in spec.containers or ():
        running += _requests(container.resources)
    both = running | most
    both.update(_requests(spec.resources) - both)  # a pod's own requests, where they are more
    return both + _milli_of(spec.overhead)


def _requests(resources: core_v1.ResourceRequirements | None) -> Counter[str]:
    return _milli_of({**(resources.limits or {}), **(resources.requests or {})}) if resources else Counter()


def _milli_of(quantities: _Quantities) -> Counter[str]:
    return Counter({name: _milli(str(quantity)) for name, quantity in (quantities or {}).items()})


def host_of(found: core_v1.Node) -> NodeCapacity:
    """Read a node.

    Raises:
        RequestError: An amount in it is no quantity.
    """
    has = (found.status and found.status.allocatable) or {}
    return NodeCapacity(
        name=(found.metadata and found.metadata.name) or "",
        cpu_milli=_milli(str(has.get(_CPU, 0))),
        host_memory_bytes=_amount(has.get(_HOST_MEMORY, 0)),
        gpu_gib=_amount(has.get(GIB_RESOURCE, 0)),
    )


def claim_of(found: resource_v1.ResourceClaim) -> ClaimState:
    """Read a claim.

    Raises:
        RequestError: An amount in it is no quantity.
    """
    status = found.status
    allocation = status.allocation if status else None
    results = (allocation and allocation.devices and allocation.devices.results) or ()
    return ClaimState(
        key=key_of(found.metadata),
        asks=asks_of(found.spec),
        is_allocated=allocation is not None,
        taken=tuple(map(_taken, (one for one in results if one.driver == names.DRIVER and not one.adminAccess))),
        user_uids=frozenset(user.uid for user in (status and status.reservedFor) or ()),
    )


def _taken(result: resource_v1.DeviceRequestAllocationResult) -> ConsumedGpu:
    consumed = result.consumedCapacity or {}
    return ConsumedGpu(
        pool=result.pool,
        gpu=names.gpu_of(result.device),
        memory_bytes=_amount(consumed.get(names.MEMORY, 0)),
        compute_milli=10 * _amount(consumed.get(names.COMPUTE, 0)),
        is_whole=names.is_whole(result.device),
    )


def template_of(found: resource_v1.ResourceClaimTemplate) -> tuple[GpuAsk, ...]:
    """Read what claims of a template ask for.

    Raises:
        RequestError: An amount in it is no quantity.
    """
    return asks_of(found.spec.spec if found.spec else None)


def asks_of(spec: resource_v1.ResourceClaimSpec | None) -> tuple[GpuAsk, ...]:
    """Read what a claim, or a template of claims, asks for; of alternatives, the first.

    Raises:
        RequestError: An amount in it is no quantity.
    """
    requests = (spec and spec.devices and spec.devices.requests) or ()
    return tuple(map(_ask, _exact(requests)))


def _exact(
    requests: Iterable[resource_v1.DeviceRequest],
) -> Iterator[resource_v1.ExactDeviceRequest | resource_v1.DeviceSubRequest]:
    for request in requests:
        if request.exactly is not None and not request.exactly.adminAccess:
            yield request.exactly
        elif request.firstAvailable:
            yield request.firstAvailable[0]


def _ask(request: resource_v1.ExactDeviceRequest | resource_v1.DeviceSubRequest) -> GpuAsk:
    amounts = (request.capacity and request.capacity.requests) or {}
    memory = amounts.get(names.MEMORY)
    return GpuAsk(
        class_name=request.deviceClassName,
        gpu_count=1 if request.allocationMode == _ALL else max(1, request.count or 1),
        memory_bytes=None if memory is None else _amount(memory),
        compute_percent=_amount(amounts.get(names.COMPUTE, 0)),
    )


def class_of(found: resource_v1.DeviceClass) -> GpuClass | None:
    """Read a DeviceClass; None where it is of other devices."""
    name = (found.metadata and found.metadata.name) or ""
    spec = found.spec or resource_v1.DeviceClassSpec()
    said = " ".join(one.cel.expression for one in spec.selectors or () if one.cel)
    if f'"{names.DRIVER}"' not in said and f"'{names.DRIVER}'" not in said and name != names.SHARED_CLASS:
        return None
    is_whole = name == names.WHOLE_CLASS or "!device.allowMultipleAllocations" in said.replace(" ", "")
    return GpuClass(name, is_whole, spec.extendedResourceName)


def shelf_of(found: resource_v1.ResourceSlice) -> PublishedSlice | None:
    """Read a slice; None where it is no node's. A GPU with devices of several kinds is one: only one kind is in use at a time.

    Raises:
        RequestError: An amount in it is no quantity.
    """
    spec = found.spec
    if spec.driver != names.DRIVER or not spec.nodeName:
        return None
    cards: dict[str, SharedGpu] = {}
    for device in filter(_is_open, spec.devices or ()):
        cards.setdefault(names.gpu_of(device.name), _card(device))
    name, pool = (found.metadata and found.metadata.name) or "", spec.pool
    return PublishedSlice(name, pool.name, pool.generation, spec.nodeName, tuple(cards.values()))


def _is_open(device: resource_v1.Device) -> bool:
    """Whether claims may have shares of a device; what is tainted only some tolerate, and they are not waited for."""
    is_tainted = any(taint.effect in _KEEPING_OUT for taint in device.taints or ())
    return bool(device.allowMultipleAllocations) and not is_tainted


def _card(device: resource_v1.Device) -> SharedGpu:
    capacity = msgspec.convert((device.capacity or {}).get(names.MEMORY, {"value": "0"}), resource_v1.DeviceCapacity)
    policy = capacity.requestPolicy
    memory_bytes = _amount(capacity.value)
    valid = policy.validRange if policy else None
    return SharedGpu(
        gpu=names.gpu_of(device.name),
        memory_bytes=memory_bytes,
        default_bytes=_amount(policy.default) if policy and policy.default is not None else memory_bytes,
        step_bytes=max(1, _amount(valid.step) if valid and valid.step is not None else 1),
    )
