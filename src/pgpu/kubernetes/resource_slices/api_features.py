"""Which fields of a device an API server stores, determined by a dry run.

A server whose feature gates are off drops fields without an error; one claim would then take a whole GPU that many claims were to
share. So a device with all fields is sent as a dry run, and the answer is compared.
"""

from collections.abc import Sequence

from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.resource_v1 import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Device,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    ResourcePool,
    ResourceSliceSpec,
)
from lightkube.resources.resource_v1 import ResourceSlice

from pgpu.errors import ObjectNotFoundError, ObjectRefusedError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import ClusterClient, DryRun
from pgpu.structs import Struct

CONSUMABLE_CAPACITY = "DRAConsumableCapacity"
PARTITIONABLE_DEVICES = "DRAPartitionableDevices"
DEVICE_TAINTS = "DRADeviceTaints"
"""Feature gates of Kubernetes: alpha and off in 1.34 and 1.35, on from 1.36 on."""

_PROBE = "probe"


class Features(Struct, frozen=True):
    """What a ResourceSlice may contain."""

    is_served: bool = True
    """Whether the server has ResourceSlices of `resource.k8s.io/v1`: from Kubernetes 1.34 on."""

    has_shares: bool = True
    """Whether many claims may share a device. If not, nothing is published."""

    has_counters: bool = True
    """Whether devices can exclude each other. If not, no GPU is offered whole."""

    has_taints: bool = True
    """Whether devices can be tainted. If not, GPUs with taints are left out."""

    def __and__(self, other: "Features") -> "Features":
        """Return the features that both have."""
        return Features(
            self.is_served and other.is_served,
            self.has_shares and other.has_shares,
            self.has_counters and other.has_counters,
            self.has_taints and other.has_taints,
        )

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the feature gates that are off."""
        gates = (
            (self.has_shares, CONSUMABLE_CAPACITY),
            (self.has_counters, PARTITIONABLE_DEVICES),
            (self.has_taints, DEVICE_TAINTS),
        )
        return tuple(gate for is_there, gate in gates if not is_there)


ALL_FEATURES = Features()
NOT_SERVED = Features(is_served=False, has_shares=False, has_counters=False, has_taints=False)


def features_of(cluster: ClusterClient, node: str) -> Features:
    """Send a dry run, and return what the API server would store of a device.

    Raises:
        ClusterError: It does not answer, or does not allow slices of this node to be made.
    """
    try:
        return features_in(cluster.create_slice(_probe(node), DryRun.ALL))
    except ObjectNotFoundError:
        return NOT_SERVED
    except ObjectRefusedError:  # 1.34 with the gate on requires counters in the same slice as their devices
        return features_in(cluster.create_slice(_probe(node, has_counters=False), DryRun.ALL))


def features_in(stored: ResourceSlice) -> Features:
    """Return which features a stored probe has."""
    device = (stored.spec.devices or [Device(name=_PROBE)])[0]
    policy = (device.capacity or {}).get(names.MEMORY, {}).get("requestPolicy")
    return Features(
        has_shares=bool(device.allowMultipleAllocations) and policy is not None,
        has_counters=bool(device.consumesCounters),
        has_taints=bool(device.taints),
    )


def features_kept(wanted: Sequence[ResourceSlice], stored: Sequence[ResourceSlice]) -> Features:
    """Return which features of the wanted slices the server has kept."""
    # A device that is missing in the stored slices proves nothing about gates.
    kept = {device.name: device for each in stored for device in each.spec.devices or []}
    pairs = [(device, kept.get(device.name, device)) for each in wanted for device in each.spec.devices or []]
    return Features(
        has_shares=all(had.allowMultipleAllocations == has.allowMultipleAllocations for had, has in pairs),
        has_counters=all(bool(had.consumesCounters) == bool(has.consumesCounters) for had, has in pairs),
        has_taints=all(bool(had.taints) == bool(has.taints) for had, has in pairs),
    )


def _probe(node: str, *, has_counters: bool = True) -> ResourceSlice:
    policy = CapacityRequestPolicy(default="1", validRange=CapacityRequestPolicyRange(min="1", max="2"))
    counter = DeviceCounterConsumption(counterSet=_PROBE, counters={"whole": {"value": "1"}})
    device = Device(
        name=_PROBE,
        allowMultipleAllocations=True,
        capacity={names.MEMORY: DeviceCapacity(value="2", requestPolicy=policy)},
        consumesCounters=[counter] if has_counters else None,
        taints=[DeviceTaint(effect="NoSchedule", key=f"{names.DRIVER}/probe")],
    )
    pool = ResourcePool(name=node, generation=0, resourceSliceCount=1)
    spec = ResourceSliceSpec(driver=names.DRIVER, nodeName=node, pool=pool, devices=[device])
    return ResourceSlice(metadata=ObjectMeta(name=names.slice_of(node, _PROBE)), spec=spec)
