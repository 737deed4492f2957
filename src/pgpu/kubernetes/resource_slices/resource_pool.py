"""All ResourceSlices of this node's pool, as they should stand in the API server. Pure.

Counters have slices of their own, at most 8 sets in each; devices that use them stand 64 to a slice. Each slice says how
many there are, and all say one generation: the scheduler uses none before it sees all of the newest.

Source: KEP-4815; the limits are `ResourceSliceMaxCounterSets` and `ResourceSliceMaxDevicesWithAdvancedFeatures`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.models.resource_v1 import CounterSet, Device, ResourcePool, ResourceSliceSpec
from lightkube.resources.resource_v1 import ResourceSlice

from pgpu.engine.claims import ClaimableGpu
from pgpu.kubernetes import names
from pgpu.kubernetes.api import Node
from pgpu.kubernetes.names import DeviceKind
from pgpu.kubernetes.node_health import Health
from pgpu.kubernetes.resource_slices import slice_devices
from pgpu.kubernetes.resource_slices.api_features import ALL_FEATURES, Features

USUAL_KINDS = (DeviceKind.TIME_SLICE, DeviceKind.MPS, DeviceKind.WHOLE)
"""Without oversubscription, which needs the host's memory, too, of which the scheduler knows nothing."""

_MOST_COUNTER_SETS = 8
_MOST_DEVICES = 64
_Item = TypeVar("_Item")

Content = dict[str, Any]
"""What a slice says, as JSON."""


def pool_slices(
    node: Node,
    offers: Sequence[ClaimableGpu],
    health: Mapping[str, Health],
    memory_bytes: Mapping[str, int],
    *,
    default_bytes: int = slice_devices.DEFAULT_MEMORY_BYTES,
    features: Features = ALL_FEATURES,
    kinds: Sequence[DeviceKind] = USUAL_KINDS,
) -> list[ResourceSlice]:
    """Return the slices of a node, counters first; their generation is 0, for the writer to fill in.

    Args:
        node: Whose GPUs they are; it owns the slices, so that they go with it.
        offers: In the order in which the scheduler shall try them.
        health: By UUID of the GPU; who is missing is well.
        memory_bytes: By UUID of the GPU what to say of its memory, in whole steps.
        default_bytes: What a claim that names no memory gets.
        features: What the API server can store.
        kinds: Ways to share a GPU that are offered.

    Returns:
        At least one: a node without GPUs says so.
    """
    made = (
        slice_devices.device_of(offer, kind, memory_bytes[uuid], default_bytes, health.get(uuid), features)
        for kind in kinds
        for offer in offers
        for uuid in [offer.gpu.uuid]
    )
    published = [device for device in made if device is not None]
    used = {use.counterSet for device in published for use in device.consumesCounters or []}
    sets = [counters for offer in offers if (counters := slice_devices.counter_set(offer.gpu)).name in used]
    counter_chunks, device_chunks = _chunks(sets, _MOST_COUNTER_SETS), _chunks(published, _MOST_DEVICES) or [[]]
    count = len(counter_chunks) + len(device_chunks)
    return [
        *(_slice(node, f"counters-{number}", count, counters=chunk) for number, chunk in enumerate(counter_chunks)),
        *(_slice(node, f"devices-{number}", count, published=chunk) for number, chunk in enumerate(device_chunks)),
    ]


def content(found: ResourceSlice) -> Content:
    """Return what a slice says, without what changes with each writing: two of the same content need no update."""
    spec: Content = found.spec.to_dict()
    spec["pool"] = {**spec["pool"], "generation": 0}
    for device in spec.get("devices", []):
        for taint in device.get("taints", []):
            taint.pop("timeAdded", None)
    return spec


def name_of(found: ResourceSlice) -> str:
    """Return a slice's name."""
    return (found.metadata and found.metadata.name) or ""


def _slice(
    node: Node,
    what: str,
    count: int,
    counters: list[CounterSet] | None = None,
    published: list[Device] | None = None,
) -> ResourceSlice:
    owner = OwnerReference(apiVersion="v1", kind="Node", name=node.name, uid=node.uid, controller=True)
    pool = ResourcePool(name=node.name, generation=0, resourceSliceCount=count)
    spec = ResourceSliceSpec(
        driver=names.DRIVER, nodeName=node.name, pool=pool, devices=published, sharedCounters=counters
    )
    return ResourceSlice(metadata=ObjectMeta(name=names.slice_of(node.name, what), ownerReferences=[owner]), spec=spec)


def _chunks(items: Sequence[_Item], most: int) -> list[list[_Item]]:
    return [list(items[start : start + most]) for start in range(0, len(items), most)]
