"""The Kubernetes objects that pgpu reads, as frozen values, and quantities such as `30Gi` as whole numbers."""

import math
from collections.abc import Mapping
from typing import Any

from lightkube.models.resource_v1 import DeviceAllocationConfiguration, DeviceRequestAllocationResult
from lightkube.resources.core_v1 import Node as NodeObject
from lightkube.resources.core_v1 import Pod as PodObject
from lightkube.resources.resource_v1 import ResourceClaim as ClaimObject
from lightkube.utils.quantity import parse_quantity

from pgpu.errors import ClusterError
from pgpu.structs import Struct, field
from pgpu.units import GIB, MIB, quoted

_UNITS = ((GIB, "Gi"), (MIB, "Mi"))
_FROM_CLASS = "FromClass"
_ENDED_PHASES = frozenset({"Succeeded", "Failed"})


class ObjectName(Struct, frozen=True):
    """Reference to the object of an event."""

    api_version: str
    """Such as `v1` or `resource.k8s.io/v1`."""

    kind: str
    name: str
    namespace: str = ""
    """Empty for cluster-scoped objects."""

    uid: str = ""


class Node(Struct, frozen=True):
    """One machine of the cluster."""

    name: str
    uid: str
    runtime: str = ""
    """Container runtime and version, such as `containerd://2.1.9`; empty: not reported."""

    kubelet: str = ""
    """Version, such as `v1.36.2`; empty: not reported."""

    @property
    def object_name(self) -> ObjectName:
        """Reference for events."""
        return ObjectName("v1", "Node", self.name, uid=self.uid)


class AllocatedDevice(Struct, frozen=True):
    """One device that the scheduler allocated for one request of a claim."""

    request: str
    """Name of the request; `request/subrequest` if one of several alternatives was chosen."""

    driver: str
    pool: str
    device: str
    share_id: str | None = None
    """Share of a device that several claims have; None: one claim has the whole device."""

    consumed: Mapping[str, int] = field(default_factory=dict)
    """Consumed amount by capacity, in its unit, rounded up; empty for a whole device."""

    has_admin_access: bool = False
    """Whether the request is for administrative access to a device that other claims have."""


class Configuration(Struct, frozen=True):
    """Opaque parameters for one driver, as the scheduler copied them into the allocation."""

    is_from_class: bool
    """From a DeviceClass, which administrators write; else from the claim, which any user may write."""

    driver: str
    parameters: Mapping[str, Any]
    """JSON, in the driver's own schema."""

    requests: tuple[str, ...] = ()
    """Requests of the claim that they apply to; empty: all."""


class ClaimUser(Struct, frozen=True):
    """An object that a claim is reserved for."""

    resource: str
    """Usually `pods`."""

    name: str
    uid: str


class PodLifecycle(Struct, frozen=True):
    """The part of a pod that decides how long it needs its claims."""

    uid: str
    is_leaving: bool
    """Whether it is being deleted, or has ended. A container that crashes and restarts changes neither."""


class ResourceClaim(Struct, frozen=True):
    """A claim on devices, with its allocation."""

    namespace: str
    name: str
    uid: str
    devices: tuple[AllocatedDevice, ...] = ()
    """Of all drivers, in the scheduler's order; empty: not allocated."""

    configurations: tuple[Configuration, ...] = ()
    """Of all drivers, in order; a later one of the same source is more specific."""

    users: tuple[ClaimUser, ...] = ()

    @property
    def object_name(self) -> ObjectName:
        """Reference for events."""
        return ObjectName("resource.k8s.io/v1", "ResourceClaim", self.name, self.namespace, self.uid)


def node_of(found: NodeObject) -> Node:
    """Convert a Node."""
    metadata = found.metadata
    info = None if found.status is None else found.status.nodeInfo
    runtime, kubelet = ("", "") if info is None else (info.containerRuntimeVersion, info.kubeletVersion)
    return Node("", "") if metadata is None else Node(metadata.name or "", metadata.uid or "", runtime, kubelet)


def pod_of(found: PodObject) -> PodLifecycle:
    """Convert a Pod."""
    metadata, phase = found.metadata, None if found.status is None else found.status.phase
    is_deleted = metadata is not None and metadata.deletionTimestamp is not None
    return PodLifecycle((metadata and metadata.uid) or "", is_deleted or phase in _ENDED_PHASES)


def claim_of(found: ClaimObject) -> ResourceClaim:
    """Convert a ResourceClaim, allocated or not.

    Raises:
        ClusterError: An amount in it is no quantity.
    """
    metadata, status = found.metadata, found.status
    # All absent until the scheduler has allocated the claim.
    allocated = status.allocation.devices if status is not None and status.allocation is not None else None
    results = (allocated.results if allocated else None) or []
    configurations = (allocated.config if allocated else None) or []
    users = (None if status is None else status.reservedFor) or []
    return ResourceClaim(
        namespace=(metadata and metadata.namespace) or "",
        name=(metadata and metadata.name) or "",
        uid=(metadata and metadata.uid) or "",
        devices=tuple(_device(each) for each in results),
        configurations=tuple(read for each in configurations if (read := _configuration(each))),
        users=tuple(ClaimUser(user.resource, user.name, user.uid) for user in users),
    )


def _device(result: DeviceRequestAllocationResult) -> AllocatedDevice:
    consumed = {name: whole_number(amount) for name, amount in (result.consumedCapacity or {}).items()}
    return AllocatedDevice(
        result.request, result.driver, result.pool, result.device, result.shareID, consumed, bool(result.adminAccess)
    )


def _configuration(found: DeviceAllocationConfiguration) -> Configuration | None:
    if found.opaque is None:
        return None
    parameters = found.opaque.parameters
    return Configuration(
        is_from_class=found.source == _FROM_CLASS,
        driver=found.opaque.driver,
        parameters=parameters if isinstance(parameters, dict) else {},
        requests=tuple(found.requests or ()),
    )


def whole_number(quantity: str) -> int:
    """Parse a quantity, rounded up: `30Gi` is 32212254720, `500m` is 1.

    Raises:
        ClusterError: It is no quantity.
    """
    try:
        amount = parse_quantity(quantity)
    except ValueError as exc:
        raise ClusterError(f"the API server sends {quoted(quantity)}, which is no quantity") from exc
    return 0 if amount is None else math.ceil(amount)


def quantity_of(amount: int) -> str:
    """Format a number in the API server's canonical form: `30Gi`, `1536Mi`, `100`."""
    for unit_bytes, unit in _UNITS:
        if amount and amount % unit_bytes == 0:
            return f"{amount // unit_bytes}{unit}"
    return str(amount)
