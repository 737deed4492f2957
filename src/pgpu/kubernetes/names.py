"""Names in a cluster's objects, derived from a GPU's UUID or a node's name alone, so that driver and manifests agree."""

import hashlib
from enum import StrEnum

DRIVER = "gpu.pgpu.io"
"""Name of the DRA driver in claims, slices and the kubelet's directories."""

SHARED_CLASS = "gpu.pgpu.io"
"""The DeviceClass of slices."""

WHOLE_CLASS = "whole.gpu.pgpu.io"
"""The DeviceClass of whole GPUs."""

EXTENDED_RESOURCE = "pgpu.io/gpu-slice"
"""Name in a container's limits for a slice of the default size."""

MEMORY = "memory"
COMPUTE = "compute"
"""Capacities of a shared device, in bytes and in percent of the GPU's time."""

CLIENTS = "clients"
"""Capacity of a device under MPS, of which each claim takes one: an MPS server has a limit of clients."""

SHARING = "sharing"
"""Attribute of a device with its `DeviceKind`."""

MODEL = "productName"
"""Attribute of a device with its GPU's model."""

MODEL_LABEL = "nvidia.com/gpu.product"
"""Label of a node with the model of its GPUs, where NVIDIA's GPU feature discovery runs."""

MPS_CLASS = "mps.gpu.pgpu.io"
OVERSUBSCRIBED_CLASS = "oversubscribed.gpu.pgpu.io"
"""DeviceClasses of slices under MPS and with oversubscribed memory."""


class DeviceKind(StrEnum):
    """How the claims on one device share its GPU.

    A GPU is used in one kind at a time. Each kind is a device of its own, and counters let the scheduler allocate only one of them.
    """

    TIME_SLICE = "time-slice"
    MPS = "mps"
    OVERSUBSCRIBED = "oversubscribed"
    """Time slices whose memory may lie on the host: they may sum to more than the GPU has."""

    WHOLE = "exclusive"


# Limit of Kubernetes for names of objects.
_LONGEST_NAME = 253

_SUFFIXES = {
    DeviceKind.TIME_SLICE: "",
    DeviceKind.MPS: "-mps",
    DeviceKind.OVERSUBSCRIBED: "-oversubscribed",
    DeviceKind.WHOLE: "-whole",
}


def device_of(gpu_uuid: str, kind: DeviceKind) -> str:
    """Return the name of one GPU's device of a kind."""
    return gpu_uuid.lower() + _SUFFIXES[kind]


def shared_device(gpu_uuid: str) -> str:
    """Return the name of the device that many claims share in time slices."""
    return device_of(gpu_uuid, DeviceKind.TIME_SLICE)


def whole_device(gpu_uuid: str) -> str:
    """Return the name of the device that is the whole GPU, for one claim."""
    return device_of(gpu_uuid, DeviceKind.WHOLE)


def kind_of(device: str) -> DeviceKind:
    """Return the kind of a device, from its name."""
    return next(
        (kind for kind, suffix in _SUFFIXES.items() if suffix and device.endswith(suffix)), DeviceKind.TIME_SLICE
    )


def is_whole(device: str) -> bool:
    """Whether a device is a whole GPU, from its name."""
    return kind_of(device) is DeviceKind.WHOLE


def gpu_of(device: str) -> str:
    """Return the UUID of a device's GPU in lower case, from its name."""
    return device.removesuffix(_SUFFIXES[kind_of(device)])


def slice_of(node: str, what: str) -> str:
    """Return the name of one of a node's ResourceSlices. The admission policy restricts a driver to names with its own node's prefix."""
    whole = f"{node}-{DRIVER}-{what}"
    if len(whole) <= _LONGEST_NAME:
        return whole
    # Too long: a digest of the node keeps the name unique.
    short = hashlib.sha256(node.encode()).hexdigest()[:16]
    return f"{short}-{DRIVER}-{what}"
