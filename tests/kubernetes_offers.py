"""GPUs as an engine offers them to claims, for tests of what is published."""

from collections.abc import Mapping, Sequence

from lightkube.resources.resource_v1 import ResourceSlice
from tests.fakes.api_objects import Object
from tests.fakes.claims import gpu

from pgpu.engine.claims import ClaimableGpu
from pgpu.kubernetes.api import Node
from pgpu.kubernetes.node_health import HealthReport, HealthState
from pgpu.kubernetes.resource_slices.api_features import ALL_FEATURES, Features
from pgpu.kubernetes.resource_slices.resource_pool import pool_slices, published_bytes
from pgpu.structs import replace
from pgpu.units import GIB

NODE = Node("node1", "24b5b18e-5433-4636-817b-bb6219afa594")


def offer(index: int = 0, free_gib: float = 80, held_gib: float = 0, *, is_closed: bool = False) -> ClaimableGpu:
    """Return a GPU of which claims hold some, and may have as much more as is free."""
    return ClaimableGpu(gpu(index), int((free_gib + held_gib) * GIB), int(held_gib * GIB), is_closed)


def instance(index: int, number: int) -> ClaimableGpu:
    """Return a MIG instance of a GPU."""
    uuid = f"MIG-00000000-0000-0000-{index:04d}-{number:012d}"
    of = replace(gpu(index, 10 * GIB), uuid=uuid, parent_uuid=gpu(index).uuid, mig_index=number)
    return ClaimableGpu(of, 10 * GIB, 0, is_closed=False)


def published(
    offers: Sequence[ClaimableGpu], health: Mapping[str, HealthReport] | None = None, features: Features = ALL_FEATURES
) -> list[ResourceSlice]:
    """Return the slices of a node with these GPUs."""
    memory_bytes = {each.gpu.uuid: published_bytes(each) for each in offers}
    return pool_slices(NODE, offers, health or {}, memory_bytes, features=features)


def sick(
    offered: ClaimableGpu, state: HealthState = HealthState.UNHEALTHY, xid: int | None = 79
) -> dict[str, HealthReport]:
    """Return the health of a node where this GPU is ill."""
    return {offered.gpu.uuid: HealthReport(offered.gpu.uuid, state, "GPU has fallen off the bus", xid)}


def as_json(slices: Sequence[ResourceSlice]) -> list[Object]:
    """Return slices as they travel."""
    return [each.to_dict() for each in slices]


def devices(slices: Sequence[ResourceSlice]) -> dict[str, Object]:
    """Return what is said of each device, by its name, in published order."""
    return {device["name"]: device for each in as_json(slices) for device in each["spec"].get("devices", [])}
