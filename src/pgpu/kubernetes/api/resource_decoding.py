"""From the objects of the API server to pgpu's values. It refuses nothing that Kubernetes' own types allow."""

from lightkube.models.resource_v1 import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceRequestAllocationResult,
)
from lightkube.resources.core_v1 import Node as NodeObject
from lightkube.resources.resource_v1 import ResourceClaim as ClaimObject

from pgpu.kubernetes.api.quantities import whole_number
from pgpu.kubernetes.api.resources import AllocatedDevice, ClaimUser, Configuration, Node, ResourceClaim

_FROM_CLASS = "FromClass"


def node_of(found: NodeObject) -> Node:
    """Read a Node."""
    metadata = found.metadata
    told = None if found.status is None else found.status.nodeInfo
    runtime, kubelet = ("", "") if told is None else (told.containerRuntimeVersion, told.kubeletVersion)
    return Node("", "") if metadata is None else Node(metadata.name or "", metadata.uid or "", runtime, kubelet)


def claim_of(found: ClaimObject) -> ResourceClaim:
    """Read a ResourceClaim, allocated or not.

    Raises:
        ClusterError: An amount in it is no quantity.
    """
    metadata, status = found.metadata, found.status
    allocation = None if status is None else status.allocation
    users = (None if status is None else status.reservedFor) or []
    return ResourceClaim(
        namespace=(metadata and metadata.namespace) or "",
        name=(metadata and metadata.name) or "",
        uid=(metadata and metadata.uid) or "",
        devices=_devices(allocation),
        configurations=_configurations(allocation),
        users=tuple(ClaimUser(user.resource, user.name, user.uid) for user in users),
    )


def _devices(allocation: AllocationResult | None) -> tuple[AllocatedDevice, ...]:
    if allocation is None or allocation.devices is None:
        return ()
    return tuple(_device(result) for result in allocation.devices.results or [])


def _device(result: DeviceRequestAllocationResult) -> AllocatedDevice:
    consumed = {name: whole_number(amount) for name, amount in (result.consumedCapacity or {}).items()}
    return AllocatedDevice(
        result.request, result.driver, result.pool, result.device, result.shareID, consumed, bool(result.adminAccess)
    )


def _configurations(allocation: AllocationResult | None) -> tuple[Configuration, ...]:
    if allocation is None or allocation.devices is None:
        return ()
    return tuple(read for one in allocation.devices.config or [] if (read := _configuration(one)))


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
