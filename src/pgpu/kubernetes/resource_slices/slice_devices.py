"""A GPU as the devices that the scheduler knows: one for each way to share it, and one that is the whole. Pure.

It refuses to promise more than claims may take, and to offer what cannot be tainted and should be.
"""

from collections.abc import Mapping, Sequence

from lightkube.models.resource_v1 import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Counter,
    CounterSet,
    Device,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
)

from pgpu.engine.claims import STEP_BYTES, ClaimableGpu
from pgpu.kubernetes import names
from pgpu.kubernetes.api.resources import quantity_of
from pgpu.kubernetes.names import DeviceKind
from pgpu.kubernetes.node_health import Health, HealthState
from pgpu.kubernetes.resource_slices.api_features import Features
from pgpu.model import Gpu
from pgpu.scheduling.capacity import most_clients, most_oversubscribed_bytes
from pgpu.units import GIB

DEFAULT_MEMORY_BYTES = 4 * GIB
"""What a claim that names no memory gets: enough for inference of small models, and twenty fit on the largest GPUs."""

COUNTER = "whole"
"""Each GPU has one of it: those who share it in one way take it together, or its whole device does."""

UNHEALTHY, UNKNOWN, CLOSED = f"{names.DRIVER}/unhealthy", f"{names.DRIVER}/unknown", f"{names.DRIVER}/closed"
"""Keys of taints."""

_ALL_PERCENT = 100
_LONGEST_TEXT = 64
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
"""By compute capability, or its major part. Source: NVIDIA's table of CUDA GPUs."""


def published_bytes(offer: ClaimableGpu) -> int:
    """Return what the devices of a GPU say of its memory: whole steps, and no less than claims hold of it already."""
    held_steps = -(-offer.held_bytes // STEP_BYTES)
    return max(offer.memory_bytes // STEP_BYTES, held_steps) * STEP_BYTES


def device_of(  # noqa: PLR0917 - what a device says comes from so many places
    offer: ClaimableGpu,
    kind: DeviceKind,
    memory_bytes: int,
    default_bytes: int,
    health: Health | None,
    features: Features,
) -> Device | None:
    """Return one GPU's device of a kind; None where there may be none.

    Args:
        offer: The GPU. An instance is kept apart by hardware, and is given whole or not at all.
        kind: How those share it who get the device.
        memory_bytes: What to say of its memory, in whole steps.
        default_bytes: For claims that name none.
        health: How the GPU is; None where nobody knows of anything.
        features: Of the API server.
    """
    taints = _taints(offer, health)
    is_told_apart = features.has_counters or kind is (
        DeviceKind.WHOLE if offer.gpu.is_instance else DeviceKind.TIME_SLICE
    )
    if not is_told_apart or not _can_be(offer, kind) or memory_bytes < STEP_BYTES:
        return None
    if taints and not features.has_taints:
        return None
    device = _device(offer.gpu, kind, taints, features)
    device.capacity = _capacities(offer, kind, memory_bytes, default_bytes)
    device.allowMultipleAllocations = None if kind is DeviceKind.WHOLE else True
    return device


def _can_be(offer: ClaimableGpu, kind: DeviceKind) -> bool:
    if offer.gpu.is_instance:
        return kind is DeviceKind.WHOLE
    return {DeviceKind.MPS: offer.has_mps, DeviceKind.OVERSUBSCRIBED: offer.oversubscription > 1}.get(kind, True)


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
    capacities = {
        names.MEMORY: _memory(memory_bytes, default_bytes),
        names.COMPUTE: _capacity(_ALL_PERCENT, default=0, least=0, step=1),
    }
    if kind is DeviceKind.MPS:
        each = CapacityRequestPolicy(default="1", validValues=["1"])
        capacities[names.CLIENTS] = DeviceCapacity(value=str(most_clients(offer.gpu)), requestPolicy=each)
    return capacities


def counter_set(gpu: Gpu) -> CounterSet:
    """Return what the devices of one GPU exclude each other by."""
    return CounterSet(name=names.shared_device(gpu.uuid), counters={COUNTER: Counter(value="1")})


def with_old_times(device: Device, published: Sequence[DeviceTaint]) -> Device:
    """Keep since when a taint is there: tolerations count from it, and the server would begin anew with each update."""
    since = {(taint.key, taint.value, taint.effect): taint.timeAdded for taint in published}
    for taint in device.taints or []:
        taint.timeAdded = since.get((taint.key, taint.value, taint.effect))
    return device


def _device(gpu: Gpu, kind: DeviceKind, taints: list[DeviceTaint], features: Features) -> Device:
    counters = DeviceCounterConsumption(
        counterSet=names.shared_device(gpu.uuid), counters={COUNTER: Counter(value="1")}
    )
    consumes = [counters] if features.has_counters and not gpu.is_instance else None
    name = names.device_of(gpu.uuid, kind)
    return Device(name=name, attributes=_attributes(gpu, kind), taints=taints or None, consumesCounters=consumes)


def _attributes(gpu: Gpu, kind: DeviceKind) -> dict[str, Mapping[str, str | bool]]:
    """Names are those of NVIDIA's driver where it has the same: selectors go on working."""
    said: dict[str, Mapping[str, str | bool] | None] = {
        "uuid": {"string": gpu.uuid},
        "type": {"string": "mig" if gpu.is_instance else "gpu"},
        "productName": {"string": gpu.name[:_LONGEST_TEXT]},
        "driverVersion": _version(gpu.driver_version),
        "architecture": _architecture(gpu.compute_capability),
        "cudaComputeCapability": _version(".".join(map(str, gpu.compute_capability or ()))),
        "parentUUID": None if gpu.parent_uuid is None else {"string": gpu.parent_uuid},
        names.SHARING: {"string": kind.value},
        "simulated": {"bool": gpu.is_simulated},
    }
    return {name: value for name, value in said.items() if value is not None}


def _version(text: str) -> Mapping[str, str] | None:
    """Write `580.65.06` as Kubernetes takes versions: three numbers without leading zeros. None where it is no version."""
    numbers = text.split(".")
    if not all(number.isascii() and number.isdigit() for number in numbers):
        return None
    return {"version": ".".join(str(int(number)) for number in [*numbers, "0", "0"][:3])}


def _architecture(capability: tuple[int, int] | None) -> Mapping[str, str] | None:
    if capability is None:
        return None
    name = _ARCHITECTURES.get(capability) or _ARCHITECTURES.get(capability[:1])
    return None if name is None else {"string": name}


def _memory(memory_bytes: int, default_bytes: int) -> DeviceCapacity:
    default_steps = max(1, min(default_bytes, memory_bytes) // STEP_BYTES)
    step = STEP_BYTES if memory_bytes > STEP_BYTES else None  # Kubernetes refuses a step that is never taken
    return _capacity(memory_bytes, default=default_steps * STEP_BYTES, least=STEP_BYTES, step=step)


def _capacity(most: int, *, default: int, least: int, step: int | None) -> DeviceCapacity:
    valid = CapacityRequestPolicyRange(
        min=quantity_of(least), max=quantity_of(most), step=None if step is None else quantity_of(step)
    )
    policy = CapacityRequestPolicy(default=quantity_of(default), validRange=valid)
    return DeviceCapacity(value=quantity_of(most), requestPolicy=policy)


def _taints(offer: ClaimableGpu, health: Health | None) -> list[DeviceTaint]:
    taints = []
    if health is not None and health.state is HealthState.UNHEALTHY:
        value = "unhealthy" if health.xid is None else f"xid-{health.xid}"
        taints.append(DeviceTaint(effect="NoExecute", key=UNHEALTHY, value=value))
    if health is not None and health.state is HealthState.UNKNOWN:
        taints.append(DeviceTaint(effect="NoSchedule", key=UNKNOWN))
    if offer.is_closed:
        taints.append(DeviceTaint(effect="NoSchedule", key=CLOSED))
    return taints
