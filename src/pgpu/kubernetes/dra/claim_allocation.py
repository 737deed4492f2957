"""Translates a ResourceClaim's allocation and its opaque parameters into a claim on this node's GPUs. Pure.

Sizes come from what the scheduler recorded as *consumed*, never from what was requested. An allocation is refused if its slice
would be larger than what the scheduler counted: another node's devices, admin access, or no amounts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pgpu.errors import NodeError, RequestError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import AllocatedDevice, Configuration, ResourceClaim
from pgpu.kubernetes.names import DeviceKind
from pgpu.model import Claim, SharingWish, Slice
from pgpu.structs import Struct, replace
from pgpu.units import parse_duration_seconds, quoted

API_VERSION = "pgpu.io/v1alpha1"
KIND = "SliceParameters"

NOTE = "dra"
"""Stored with claims prepared for a kubelet; tells them from claims of the device plugin."""

_WHOLE_PERCENT = 100
_MOST_PRIORITY = 100
_MOST_WAIT_SECONDS = 3600.0
_SHARING = {
    DeviceKind.TIME_SLICE: SharingWish.TIME_SLICE,
    DeviceKind.MPS: SharingWish.MPS,
    DeviceKind.OVERSUBSCRIBED: SharingWish.TIME_SLICE,
    DeviceKind.WHOLE: SharingWish.EXCLUSIVE,
}


class ClaimName(Struct, frozen=True):
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str


class Allocation(Struct, frozen=True):
    """A claim on this node's GPUs, and the devices that it stands for."""

    claim: Claim
    devices: tuple[AllocatedDevice, ...]
    ignored: tuple[str, ...] = ()
    """Names of parameters that a claim sets and only a DeviceClass may set."""


class SliceParameters(Struct, frozen=True):
    """Parameters of a slice besides its sizes, from the claim and its DeviceClass."""

    wait_for_memory_seconds: float = 0.0
    is_strict: bool = False
    kind: DeviceKind | None = None
    """How the GPUs are shared; None: not set."""

    priority: int = 0


class ParsedParameters(Struct, frozen=True):
    """The parameters in effect, and those without effect."""

    parameters: SliceParameters
    ignored: tuple[str, ...] = ()
    """Fields that a claim may not set, as the claim wrote them."""


def read_allocation(found: ResourceClaim, node: str, gpu_bytes: Mapping[str, int]) -> Allocation:
    """Read a ResourceClaim that was allocated to this node.

    Args:
        found: As read from the API server.
        node: Name of this node and of its pool.
        gpu_bytes: Memory that claims may have of each GPU, by UUID.

    Raises:
        RequestError: No device of this driver is allocated, or the allocation cannot be a slice.
        NodeError: An allocated GPU is not on this node now.
    """
    devices = tuple(each for each in found.devices if each.driver == names.DRIVER)
    if not devices:
        raise RequestError(f"nothing of {names.DRIVER} is allocated to it")
    requests = frozenset(base_request(each.request) for each in devices)
    parsed = parse_parameters(found.configurations, requests)
    parameters = parsed.parameters
    kinds = {names.kind_of(each.device) for each in devices}
    if len(kinds) > 1:
        raise RequestError(
            f"one claim cannot have GPUs that are shared in different ways ({', '.join(sorted(kinds))})",
            hint="make a claim of each kind, for two containers",
        )
    kind = kinds.pop()
    # Another mode than the device's would be unknown to the scheduler, which would put other modes on the same GPU.
    if parameters.kind not in {None, kind}:
        raise RequestError(
            f"its DeviceClass says {parameters.kind}, and {kind} is how its device is shared",
            hint=f'let the class select device.attributes["{names.DRIVER}"].sharing == "{parameters.kind}"',
        )
    claim = Claim(
        found.uid,
        found.namespace,
        found.name,
        _slices(devices, node, gpu_bytes),
        _SHARING[kind],
        is_strict=parameters.is_strict,
        priority=parameters.priority,
        oversubscribes=kind is DeviceKind.OVERSUBSCRIBED,
        wait_for_memory_seconds=parameters.wait_for_memory_seconds,
        note=NOTE,
    )
    return Allocation(claim, devices, parsed.ignored)


def base_request(request: str) -> str:
    """Return the name by which pods refer to a request: for `a/b`, one of the alternatives of `a`, it is `a`."""
    return request.partition("/")[0]


def _slices(devices: Sequence[AllocatedDevice], node: str, gpu_bytes: Mapping[str, int]) -> tuple[Slice, ...]:
    """Return one slice for each GPU: several shares of one GPU are added up."""
    # Device names are lower case; the engine needs the UUID as the driver spells it.
    uuids = {names.shared_device(uuid): uuid for uuid in gpu_bytes}
    sums: dict[str, tuple[int, int]] = {}
    for device in devices:
        # The scheduler counts nothing for such a device, so it must not become a slice.
        if device.has_admin_access:
            raise RequestError("adminAccess is refused: no slice sees others' memory", hint="leave adminAccess out")
        if device.pool != node:
            raise RequestError(f"it is allocated in pool {quoted(device.pool)}, and this is node {quoted(node)}")
        uuid = uuids.get(names.gpu_of(device.device))
        if uuid is None:
            raise NodeError(f"{device.device} is not on {node} now", hint="see `pgpu doctor --kubernetes` there")
        memory_bytes, percent = _consumed(device, gpu_bytes[uuid])
        before = sums.get(uuid, (0, 0))
        sums[uuid] = (before[0] + memory_bytes, before[1] + percent)
    slices = []
    for uuid, (memory_bytes, percent) in sums.items():
        if not 0 <= percent <= _WHOLE_PERCENT:
            raise RequestError(f"{percent} percent of one GPU's time cannot be had")
        slices.append(Slice(uuid, memory_bytes, percent / _WHOLE_PERCENT if percent else None))
    return tuple(slices)


def _consumed(device: AllocatedDevice, gpu_bytes: int) -> tuple[int, int]:
    """Return memory in bytes and percent of the time that a device consumes of its GPU."""
    if names.is_whole(device.device):
        return gpu_bytes, 0
    memory_bytes = device.consumed.get(names.MEMORY, 0)
    if memory_bytes <= 0:
        raise RequestError(
            f"its allocation does not say how much {names.MEMORY} of {device.device} it consumes",
            hint="the cluster needs DRAConsumableCapacity; see `pgpu doctor --kubernetes`",
        )
    return memory_bytes, device.consumed.get(names.COMPUTE, 0)


def parse_parameters(configurations: Sequence[Configuration], requests: frozenset[str]) -> ParsedParameters:
    """Read the opaque parameters of an allocation.

    Any user may write a claim, but only administrators a DeviceClass: fields that take from other users count in a class
    alone. Unknown fields are refused, since a misspelt one would have no effect without notice.

    Args:
        configurations: Of all drivers; those of others are skipped.
        requests: Requests that this driver has devices for, without subrequests.

    Raises:
        RequestError: A field cannot be read, or two configurations of one source disagree; names the field.
    """
    ours = [each for each in configurations if _applies(each, requests)]
    # Class and claim separately: their disagreement is allowed, since the claim may refine what its class sets.
    of_class = _joined([each for each in ours if each.is_from_class])
    of_claim = _joined([each for each in ours if not each.is_from_class])
    allowed = {name: value for name, value in of_claim.items() if name in _FOR_CLAIMS}
    parameters = _with_fields(_with_fields(SliceParameters(), of_class), allowed)
    is_strict = parameters.is_strict or bool(of_class.get("strict"))  # a claim cannot turn off what its class turns on
    ignored = tuple(name for name in of_claim if name not in _FOR_CLAIMS)
    return ParsedParameters(replace(parameters, is_strict=is_strict), ignored)


def _applies(configuration: Configuration, requests: frozenset[str]) -> bool:
    named = {base_request(name) for name in configuration.requests}
    return configuration.driver == names.DRIVER and (not named or bool(named & requests))


def _joined(configurations: Sequence[Configuration]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for configuration in configurations:
        for name, value in _fields(configuration.parameters):
            if joined.setdefault(name, value) != value:
                raise RequestError(
                    f"parameters disagree about {name}: {quoted(str(joined[name]))} and {quoted(str(value))}"
                )
    return joined


def _fields(parameters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if parameters.get(name) != expected:
            raise RequestError(
                f"parameters: {name} is {quoted(str(parameters.get(name)))}, not {expected}", hint=_EXAMPLE
            )
    for name, value in parameters.items():
        if name in {"apiVersion", "kind"}:
            continue
        if name not in _READERS:
            raise RequestError(f"parameters: {quoted(name)} is no field", hint=f"there are {', '.join(_READERS)}")
        yield name, value


def _with_fields(parameters: SliceParameters, fields: Mapping[str, Any]) -> SliceParameters:
    changes: dict[str, Any] = {}
    for name, value in fields.items():
        attribute, read = _READERS[name]
        try:
            changes[attribute] = read(value)
        except RequestError as exc:
            raise RequestError(f"parameters: {name}: {exc}", hint=exc.hint) from exc
    return replace(parameters, **changes)


def _wait_seconds(value: object) -> float:
    if not isinstance(value, str):
        raise RequestError(f"{quoted(str(value))} is not a duration", hint='write it like "30s"')
    seconds = parse_duration_seconds(value)
    if seconds > _MOST_WAIT_SECONDS:
        raise RequestError(f"{quoted(value)} is more than an hour")
    return seconds


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{quoted(str(value))} is neither true nor false")
    return value


def _kind(value: object) -> DeviceKind:
    if not isinstance(value, str) or value not in {*DeviceKind}:
        raise RequestError(f"{quoted(str(value))} is no sharing mode", hint=f"write {', '.join(DeviceKind)}")
    return DeviceKind(value)


def _priority(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MOST_PRIORITY:
        raise RequestError(f"{quoted(str(value))} is no whole number from -{_MOST_PRIORITY} to {_MOST_PRIORITY}")
    return value


# By field of the JSON: the attribute that it sets, and its parser.
_READERS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "waitForMemory": ("wait_for_memory_seconds", _wait_seconds),
    "strict": ("is_strict", _flag),
    "sharing": ("kind", _kind),
    "priority": ("priority", _priority),
}

_FOR_CLAIMS = frozenset({"waitForMemory", "strict"})
_EXAMPLE = f'write {{"apiVersion": "{API_VERSION}", "kind": "{KIND}", "waitForMemory": "30s"}}'
