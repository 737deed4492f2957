"""What the scheduler decided for a ResourceClaim becomes a claim on this node's GPUs. Pure.

It enforces what was *consumed*, never what was asked, and refuses whatever could make a slice larger than what the
scheduler counted: another node's devices, administrators' access, an allocation without amounts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pgpu.errors import NodeError, RequestError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import AllocatedDevice, ResourceClaim
from pgpu.kubernetes.dra.slice_parameters import SliceParameters, parse_parameters
from pgpu.kubernetes.names import DeviceKind
from pgpu.model import Claim, SharingWish, Slice
from pgpu.units import quoted

NOTE = "dra"
"""Kept with claims that are prepared for a kubelet, so that those of others on the same node are told from them."""

_WHOLE_PERCENT = 100
_SHARING = {
    DeviceKind.TIME_SLICE: SharingWish.TIME_SLICE,
    DeviceKind.MPS: SharingWish.MPS,
    DeviceKind.OVERSUBSCRIBED: SharingWish.TIME_SLICE,
    DeviceKind.WHOLE: SharingWish.EXCLUSIVE,
}


@dataclass(frozen=True, slots=True)
class Allocation:
    """A claim on this node's GPUs, and which devices it stands for."""

    claim: Claim
    devices: tuple[AllocatedDevice, ...]
    ignored: tuple[str, ...] = ()
    """Parameters that a claim may not set, and has set in vain."""


def read_allocation(found: ResourceClaim, node: str, gpu_bytes: Mapping[str, int]) -> Allocation:
    """Read a ResourceClaim that was allocated here.

    Args:
        found: As the API server gives it.
        node: Name of this node, which is its pool's.
        gpu_bytes: What claims may have of each GPU, by UUID.

    Raises:
        RequestError: Nothing of this driver is allocated, or what is allocated cannot be a slice; says what.
        NodeError: A GPU of it is not there.
    """
    devices = tuple(each for each in found.devices if each.driver == names.DRIVER)
    if not devices:
        raise RequestError(f"nothing of {names.DRIVER} is allocated to it")
    heard = parse_parameters(found.configurations, frozenset(base_request(each.request) for each in devices))
    kind = _kind_of(devices)
    _refuse_another_kind(heard.parameters, kind)
    claim = _claim(found, _slices(devices, node, gpu_bytes), kind, heard.parameters)
    return Allocation(claim, devices, heard.ignored)


def base_request(request: str) -> str:
    """Return the name by which pods refer to a request: of `a/b`, one of several ways to meet `a`, the first part."""
    return request.partition("/")[0]


def _claim(found: ResourceClaim, slices: tuple[Slice, ...], kind: DeviceKind, said: SliceParameters) -> Claim:
    return Claim(
        found.uid,
        found.namespace,
        found.name,
        slices,
        _SHARING[kind],
        is_strict=said.is_strict,
        priority=said.priority,
        oversubscribes=kind is DeviceKind.OVERSUBSCRIBED,
        wait_for_memory_seconds=said.wait_for_memory_seconds,
        note=NOTE,
    )


def _kind_of(devices: Sequence[AllocatedDevice]) -> DeviceKind:
    kinds = {names.kind_of(each.device) for each in devices}
    if len(kinds) > 1:
        raise RequestError(
            f"one claim cannot have GPUs that are shared in different ways ({', '.join(sorted(kinds))})",
            hint="make a claim of each kind, for two containers",
        )
    return kinds.pop()


def _refuse_another_kind(said: SliceParameters, kind: DeviceKind) -> None:
    """Refuse a mode that the device is not in: the scheduler would not know of it, and let others onto the GPU who are in another."""
    if said.kind not in {None, kind}:
        raise RequestError(
            f"its DeviceClass says {said.kind}, and {kind} is how its device is shared",
            hint=f'let the class select device.attributes["{names.DRIVER}"].sharing == "{said.kind}"',
        )


def _slices(devices: Sequence[AllocatedDevice], node: str, gpu_bytes: Mapping[str, int]) -> tuple[Slice, ...]:
    """Return one slice for each GPU: several shares of one are one slice of their sum."""
    sums: dict[str, tuple[int, int]] = {}
    for uuid, memory_bytes, percent in _shares(devices, node, gpu_bytes):
        before = sums.get(uuid, (0, 0))
        sums[uuid] = (before[0] + memory_bytes, before[1] + percent)
    return tuple(Slice(uuid, memory, _share(percent)) for uuid, (memory, percent) in sums.items())


def _shares(
    devices: Sequence[AllocatedDevice], node: str, gpu_bytes: Mapping[str, int]
) -> Iterator[tuple[str, int, int]]:
    uuids = {names.shared_device(uuid): uuid for uuid in gpu_bytes}
    for device in devices:
        _refuse_strange(device, node)
        uuid = uuids.get(names.gpu_of(device.device))
        if uuid is None:
            raise NodeError(f"{device.device} is not on {node} now", hint="see `pgpu doctor --kubernetes` there")
        if names.is_whole(device.device):
            yield uuid, gpu_bytes[uuid], 0
        else:
            yield uuid, _memory_bytes(device), device.consumed.get(names.COMPUTE, 0)


def _refuse_strange(device: AllocatedDevice, node: str) -> None:
    if device.has_admin_access:
        raise RequestError("adminAccess is refused: no slice sees others' memory", hint="leave adminAccess out")
    if device.pool != node:
        raise RequestError(f"it is allocated in pool {quoted(device.pool)}, and this is node {quoted(node)}")


def _memory_bytes(device: AllocatedDevice) -> int:
    consumed = device.consumed.get(names.MEMORY, 0)
    if consumed <= 0:
        raise RequestError(
            f"its allocation does not say how much {names.MEMORY} of {device.device} it consumes",
            hint="the cluster needs DRAConsumableCapacity; see `pgpu doctor --kubernetes`",
        )
    return consumed


def _share(percent: int) -> float | None:
    if not 0 <= percent <= _WHOLE_PERCENT:
        raise RequestError(f"{percent} percent of one GPU's time cannot be had")
    return percent / _WHOLE_PERCENT if percent else None
