"""The ResourceSlices of a node's pool: each GPU as one device for each way to share it, and one that is the whole GPU. Pure.

A device never promises more than claims may take, and a GPU that should be tainted is left out if the API server stores no taints.
Counters make the devices of one GPU exclude each other.

Counters have slices of their own, at most 8 sets in each; at most 64 devices with counters fit into a slice. Each slice contains the
number of slices and their common generation: the scheduler uses a pool only if it has all slices of its newest generation.

Source: KEP-4815; the limits are `ResourceSliceMaxCounterSets` and `ResourceSliceMaxDevicesWithAdvancedFeatures`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.models.resource_v1 import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Counter,
    CounterSet,
    Device,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    ResourcePool,
    ResourceSliceSpec,
)
from lightkube.resources.resource_v1 import ResourceSlice

from pgpu.engine.claims import STEP_BYTES, ClaimableGpu
from pgpu.kubernetes import names
from pgpu.kubernetes.api import Node
from pgpu.kubernetes.api.resources import quantity_of
from pgpu.kubernetes.names import DeviceKind
from pgpu.kubernetes.node_health import HealthReport, HealthState
from pgpu.kubernetes.resource_slices.api_features import ALL_FEATURES, Features
from pgpu.model import Gpu
from pgpu.scheduling.capacity import most_clients, most_oversubscribed_bytes
from pgpu.units import GIB

DEFAULT_MEMORY_BYTES = 4 * GIB
"""Size of claims that name no memory: enough for inference of small models, and twenty fit on the largest GPUs."""

USUAL_KINDS = (DeviceKind.TIME_SLICE, DeviceKind.MPS, DeviceKind.WHOLE)
"""Without oversubscription, which also needs memory of the host that the scheduler does not count."""

COUNTER = "whole"
"""Each GPU has one: either all devices of one sharing kind consume it together, or the device of the whole GPU does."""

UNHEALTHY, UNKNOWN, CLOSED = f"{names.DRIVER}/unhealthy", f"{names.DRIVER}/unknown", f"{names.DRIVER}/closed"
"""Keys of taints."""

_MOST_COUNTER_SETS = 8
_MOST_DEVICES = 64
_ALL_PERCENT = 100
_LONGEST_TEXT = 64
# By compute capability, or its major part. Source: NVIDIA's table of CUDA GPUs.
_ARCHITECTURES = {
    (5,): "Maxwell",
    (6,): "Pascal",
    (7,): "Volta",
    (7, 5): "Turing",
    (8,): "Ampere",
    (8, 9): "Ada Lovelace",
    (9,): "Hopper",
    (10,): "Blackwell",
    (12,): "Blackwell",
}

_Item = TypeVar("_Item")

Content = dict[str, Any]
"""A slice's spec as JSON."""


def pool_slices(
    node: Node,
    offers: Sequence[ClaimableGpu],
    health: Mapping[str, HealthReport],
    memory_bytes: Mapping[str, int],
    *,
    default_bytes: int = DEFAULT_MEMORY_BYTES,
    features: Features = ALL_FEATURES,
    kinds: Sequence[DeviceKind] = USUAL_KINDS,
) -> list[ResourceSlice]:
    """Return the slices of a node, counters first, with generation 0; the writer sets the generation.

    Args:
        node: Owner of the slices: they are deleted with it.
        offers: In the order in which the scheduler shall try them.
        health: By GPU UUID; a missing GPU is healthy.
        memory_bytes: By GPU UUID the memory to publish, in whole steps.
        default_bytes: Size of claims that name no memory.
        features: What the API server can store.
        kinds: Ways to share a GPU that are offered.

    Returns:
        At least one: a node without GPUs has an empty slice.
    """
    made = (
        _device(offer, kind, memory_bytes[uuid], default_bytes, _taints(offer, health.get(uuid)), features)
        for kind in kinds
        for offer in offers
        for uuid in [offer.gpu.uuid]
    )
    devices = [device for device in made if device is not None]
    # Only counters that a device consumes are published.
    consumed = {each.counterSet for device in devices for each in device.consumesCounters or []}
    counters = [
        CounterSet(name=name, counters={COUNTER: Counter(value="1")})
        for offer in offers
        # One counter set for each GPU, named as its shared device.
        if (name := names.shared_device(offer.gpu.uuid)) in consumed
    ]
    counter_chunks, device_chunks = _chunks(counters, _MOST_COUNTER_SETS), _chunks(devices, _MOST_DEVICES) or [[]]
    owner = OwnerReference(apiVersion="v1", kind="Node", name=node.name, uid=node.uid, controller=True)

    def pool_slice(
        name: str, sets: list[CounterSet] | None = None, devices: list[Device] | None = None
    ) -> ResourceSlice:
        pool = ResourcePool(name=node.name, generation=0, resourceSliceCount=len(counter_chunks) + len(device_chunks))
        spec = ResourceSliceSpec(
            driver=names.DRIVER, nodeName=node.name, pool=pool, devices=devices, sharedCounters=sets
        )
        metadata = ObjectMeta(name=names.slice_of(node.name, name), ownerReferences=[owner])
        return ResourceSlice(metadata=metadata, spec=spec)

    return [
        *(pool_slice(f"counters-{number}", sets=chunk) for number, chunk in enumerate(counter_chunks)),
        *(pool_slice(f"devices-{number}", devices=chunk) for number, chunk in enumerate(device_chunks)),
    ]


def content(found: ResourceSlice) -> Content:
    """Return a slice's spec without what changes at each writing: slices with equal content need no update."""
    spec: Content = found.spec.to_dict()
    spec["pool"] = {**spec["pool"], "generation": 0}
    for device in spec.get("devices", []):
        for taint in device.get("taints", []):
            taint.pop("timeAdded", None)
    return spec


def name_of(found: ResourceSlice) -> str:
    """Return a slice's name."""
    return (found.metadata and found.metadata.name) or ""


def _chunks(items: Sequence[_Item], most: int) -> list[list[_Item]]:
    return [list(items[start : start + most]) for start in range(0, len(items), most)]


def published_bytes(offer: ClaimableGpu) -> int:
    """Return the memory to publish for a GPU: whole steps, and not less than claims hold of it."""
    held_steps = -(-offer.held_bytes // STEP_BYTES)
    return max(offer.memory_bytes // STEP_BYTES, held_steps) * STEP_BYTES


def _device(  # noqa: PLR0917 - a device depends on all of them
    offer: ClaimableGpu,
    kind: DeviceKind,
    memory_bytes: int,
    default_bytes: int,
    taints: list[DeviceTaint],
    features: Features,
) -> Device | None:
    """Return one GPU's device of a kind; None: it is not offered. A MIG instance is offered whole or not at all."""
    gpu = offer.gpu
    is_offered = {DeviceKind.MPS: offer.has_mps, DeviceKind.OVERSUBSCRIBED: offer.oversubscription > 1}.get(kind, True)
    if gpu.is_instance:
        is_offered = kind is DeviceKind.WHOLE
    if not features.has_counters:  # then several devices of one GPU would not exclude each other
        is_offered = is_offered and kind is (DeviceKind.WHOLE if gpu.is_instance else DeviceKind.TIME_SLICE)
    if not is_offered or memory_bytes < STEP_BYTES or (taints and not features.has_taints):
        return None
    counters = DeviceCounterConsumption(
        counterSet=names.shared_device(gpu.uuid), counters={COUNTER: Counter(value="1")}
    )
    return Device(
        name=names.device_of(gpu.uuid, kind),
        attributes=_attributes(gpu, kind),
        taints=taints or None,
        consumesCounters=[counters] if features.has_counters and not gpu.is_instance else None,
        capacity=_capacities(offer, kind, memory_bytes, default_bytes),
        allowMultipleAllocations=None if kind is DeviceKind.WHOLE else True,
    )


def _capacities(
    offer: ClaimableGpu, kind: DeviceKind, memory_bytes: int, default_bytes: int
) -> dict[str, DeviceCapacity]:
    if kind is DeviceKind.WHOLE:
        return {
            names.MEMORY: DeviceCapacity(value=quantity_of(memory_bytes)),
            names.COMPUTE: DeviceCapacity(value=str(_ALL_PERCENT)),
        }
    if kind is DeviceKind.OVERSUBSCRIBED:
        memory_bytes = most_oversubscribed_bytes(memory_bytes, offer.oversubscription, STEP_BYTES)
    default_steps = max(1, min(default_bytes, memory_bytes) // STEP_BYTES)
    step = STEP_BYTES if memory_bytes > STEP_BYTES else None  # the API server rejects a step that no value can reach
    capacities = {
        names.MEMORY: _capacity(memory_bytes, default=default_steps * STEP_BYTES, least=STEP_BYTES, step=step),
        names.COMPUTE: _capacity(_ALL_PERCENT, default=0, least=0, step=1),
    }
    if kind is DeviceKind.MPS:
        one_each = CapacityRequestPolicy(default="1", validValues=["1"])
        capacities[names.CLIENTS] = DeviceCapacity(value=str(most_clients(offer.gpu)), requestPolicy=one_each)
    return capacities


def _capacity(most: int, *, default: int, least: int, step: int | None) -> DeviceCapacity:
    valid = CapacityRequestPolicyRange(
        min=quantity_of(least), max=quantity_of(most), step=None if step is None else quantity_of(step)
    )
    policy = CapacityRequestPolicy(default=quantity_of(default), validRange=valid)
    return DeviceCapacity(value=quantity_of(most), requestPolicy=policy)


def _attributes(gpu: Gpu, kind: DeviceKind) -> dict[str, Mapping[str, str | bool]]:
    """Names are those of NVIDIA's DRA driver where it has the same attribute, so that its selectors work."""
    capability = gpu.compute_capability or ()
    architecture = _ARCHITECTURES.get(capability) or _ARCHITECTURES.get(capability[:1])
    attributes: dict[str, Mapping[str, str | bool] | None] = {
        "uuid": {"string": gpu.uuid},
        "type": {"string": "mig" if gpu.is_instance else "gpu"},
        names.MODEL: {"string": gpu.name[:_LONGEST_TEXT]},
        "driverVersion": _version(gpu.driver_version),
        "architecture": None if architecture is None else {"string": architecture},
        "cudaComputeCapability": _version(".".join(map(str, capability))),
        "parentUUID": None if gpu.parent_uuid is None else {"string": gpu.parent_uuid},
        names.SHARING: {"string": kind.value},
        "simulated": {"bool": gpu.is_simulated},
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _version(text: str) -> Mapping[str, str] | None:
    """Convert `580.65.06` to a semantic version: three numbers without leading zeros. None: it is no version."""
    numbers = text.split(".")
    if not all(number.isascii() and number.isdigit() for number in numbers):
        return None
    return {"version": ".".join(str(int(number)) for number in [*numbers, "0", "0"][:3])}


def _taints(offer: ClaimableGpu, health: HealthReport | None) -> list[DeviceTaint]:
    taints = []
    if health is not None and health.state is HealthState.UNHEALTHY:
        value = "unhealthy" if health.xid is None else f"xid-{health.xid}"
        taints.append(DeviceTaint(effect="NoExecute", key=UNHEALTHY, value=value))
    if health is not None and health.state is HealthState.UNKNOWN:
        taints.append(DeviceTaint(effect="NoSchedule", key=UNKNOWN))
    if offer.is_closed:
        taints.append(DeviceTaint(effect="NoSchedule", key=CLOSED))
    return taints


def with_old_times(device: Device, published: Sequence[DeviceTaint]) -> Device:
    """Keep the time of taints that are published already: tolerations count from it, and the server would reset it."""
    since = {(taint.key, taint.value, taint.effect): taint.timeAdded for taint in published}
    for taint in device.taints or []:
        taint.timeAdded = since.get((taint.key, taint.value, taint.effect))
    return device
