"""The claim of each replica: a ResourceClaimTemplate, of which Kubernetes makes a claim for each pod.

It refuses to say how the slice is shared: that is a DeviceClass's, and its administrator's.
"""

import math

from pgpu.kubernetes.api.resources import quantity_of
from pgpu.kubernetes.deploy.object_names import Manifest, metadata, named_by_content
from pgpu.kubernetes.deploy.workload import Share, Workload
from pgpu.kubernetes.names import COMPUTE, DRIVER, MEMORY, SHARED_CLASS
from pgpu.units import format_memory, format_share

_DISTINCT = f"{DRIVER}/uuid"
"""The attribute in which several GPUs of one claim differ: one GPU is many shares, and two of them could be one GPU's."""


def template(workload: Workload, share: Share) -> Manifest:
    """Return the template of a replica's claim; its name changes with what it asks for, since its spec never may."""
    spec = {"spec": {"devices": _devices(share)}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata(named_by_content(workload.name, "slice", spec), workload.name, workload.namespace),
        "spec": spec,
    }


def described(share: Share | None) -> str:
    """Write a slice for people, as `pgpu functions` shows it: `2 GPUs, 4 GiB, 25%`; `none` without a GPU."""
    if share is None:
        return "none"
    count = "1 GPU" if share.gpus == 1 else f"{share.gpus} GPUs"
    size = "" if share.memory_bytes is None else f", {format_memory(share.memory_bytes)}"
    return count + size + ("" if share.compute_share is None else f", {format_share(share.compute_share)}")


def _devices(share: Share) -> Manifest:
    asked: Manifest = {"deviceClassName": SHARED_CLASS, "allocationMode": "ExactCount", "count": share.gpus}
    if capacities := _capacities(share):
        asked["capacity"] = {"requests": capacities}
    devices: Manifest = {"requests": [{"name": "gpu", "exactly": asked}]}
    if share.gpus > 1:
        devices["constraints"] = [{"requests": ["gpu"], "distinctAttribute": _DISTINCT}]
    return devices


def _capacities(share: Share) -> dict[str, str]:
    said = {} if share.memory_bytes is None else {MEMORY: quantity_of(share.memory_bytes)}
    return said if share.compute_share is None else {**said, COMPUTE: str(_percent(share.compute_share))}


def _percent(compute_share: float) -> int:
    """Return the unit of the capacity `compute`: whole percent, never less than what was asked."""
    return math.ceil(round(compute_share * 100, 6))
