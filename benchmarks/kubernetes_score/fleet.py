"""Fifty nodes of eight GPUs as the driver publishes them, and five hundred claims of pods that ask for nothing else."""

import random
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from pgpu.engine.claims import ClaimableGpu
from pgpu.kubernetes.api import Node
from pgpu.kubernetes.names import SHARED_CLASS
from pgpu.kubernetes.resource_slices import pool_plan, resource_pool
from pgpu.model import Gpu
from pgpu.units import GIB

Object = dict[str, Any]

NODES, GPUS, CLAIMS = 50, 8, 500
GPU_GIB = 80
UNIFORM = (20,) * CLAIMS
NAMESPACE = "pgpu-score"

_SIZES = (1, 2, 4, 8, 10, 16, 20, 24, 30, 40, 60)
_WEIGHTS = (8, 8, 10, 16, 8, 14, 10, 10, 6, 6, 4)


def mixed(seed: int) -> tuple[int, ...]:
    """Draw sizes in GiB: most are small, and many do not divide a GPU."""
    return tuple(random.Random(seed).choices(_SIZES, _WEIGHTS, k=CLAIMS))


def nodes() -> list[Object]:
    """Return the nodes."""
    return [
        {
            "metadata": {"name": f"fake-{number:02}", "uid": str(uuid.uuid5(uuid.NAMESPACE_DNS, f"fake-{number}"))},
            "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"}},
        }
        for number in range(NODES)
    ]


def slices(node: Object) -> list[Object]:
    """Return a node's slices, as the driver's publisher writes them."""
    name, uid = node["metadata"]["name"], node["metadata"]["uid"]
    offers = [offer(f"{name}-{number}") for number in range(GPUS)]
    sizes = {each.gpu.uuid: each.memory_bytes for each in offers}
    written = resource_pool.pool_slices(Node(name, uid), offers, {}, sizes)
    found: list[Object] = msgspec.to_builtins([each.to_dict() for each in written])
    for each in found:
        each["spec"]["pool"]["generation"] = 1
    return found


def offer(gpu: str, held_bytes: int = 0) -> ClaimableGpu:
    """Return what a GPU of this fleet has, of which claims hold so much."""
    uuid_ = f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, gpu)}"
    made = Gpu(uuid_, "NVIDIA H100 80GB HBM3", 0, GPU_GIB * GIB, "580.95.05", True, compute_capability=(9, 0))  # noqa: FBT003 - is_simulated
    return ClaimableGpu(made, GPU_GIB * GIB, held_bytes, is_closed=False)


def densest_first(held: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Return the order in which the driver would publish GPUs again, by device names, given what claims hold of each."""
    offers = [
        ClaimableGpu(Gpu(name, "", 0, GPU_GIB * GIB, "", True), GPU_GIB * GIB, held_bytes, is_closed=False)  # noqa: FBT003
        for name, held_bytes in held
    ]
    return pool_plan.next_order(offers, [name for name, _ in held])


def claim(number: int, gib: int) -> Object:
    """Return a claim."""
    exact = {"deviceClassName": SHARED_CLASS, "count": 1, "capacity": {"requests": {"memory": f"{gib}Gi"}}}
    return {
        "metadata": {"name": f"claim-{number:03}", "namespace": NAMESPACE, "uid": f"claim-{number}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exact}]}},
    }


def pod(number: int) -> Object:
    """Return the pod of a claim."""
    return {
        "metadata": {"name": f"pod-{number:03}", "namespace": NAMESPACE, "uid": f"pod-{number}"},
        "spec": {
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": f"claim-{number:03}"}],
        },
        "status": {"phase": "Pending"},
    }
