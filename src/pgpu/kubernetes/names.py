"""Names that a cluster's objects and this node's driver share. Nothing here is computed but from a GPU's UUID or a node's name."""

import hashlib
from enum import StrEnum

DRIVER = "gpu.pgpu.io"
"""Of the DRA driver: in claims, in slices and in the kubelet's directories."""

SHARED_CLASS = "gpu.pgpu.io"
"""The DeviceClass of slices."""

WHOLE_CLASS = "whole.gpu.pgpu.io"
"""The DeviceClass of whole GPUs."""

EXTENDED_RESOURCE = "pgpu.io/gpu-slice"
"""What a container's limits name to get a slice of the usual size."""

MEMORY = "memory"
COMPUTE = "compute"
"""Capacities of a shared device: bytes, and percent of the GPU's time."""

CLIENTS = "clients"
"""Capacity of a device under MPS, of which each claim takes one: a server takes so many, and no more."""

SHARING = "sharing"
"""Attribute of a device: its kind."""

MPS_CLASS = "mps.gpu.pgpu.io"
OVERSUBSCRIBED_CLASS = "oversubscribed.gpu.pgpu.io"
"""DeviceClasses of slices of GPUs that are shared in these ways."""


class DeviceKind(StrEnum):
    """How those share a GPU who get a device of it.

    Two kinds never meet on one GPU, so each is a device of its own, and the scheduler sees to it that only one of them is in use.
    """

    TIME_SLICE = "time-slice"
    MPS = "mps"
    OVERSUBSCRIBED = "oversubscribed"
    """In time slices, with memory that may lie on the host: slices may sum to more than the GPU has."""

    WHOLE = "exclusive"


_LONGEST_NAME = 253
"""Of any object."""

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
    """Return the name of the device of which many claims get slices."""
    return device_of(gpu_uuid, DeviceKind.TIME_SLICE)


def whole_device(gpu_uuid: str) -> str:
    """Return the name of the device that is a GPU for one claim alone."""
    return device_of(gpu_uuid, DeviceKind.WHOLE)


def kind_of(device: str) -> DeviceKind:
    """Return the kind that a device's name stands for."""
    return next(
        (kind for kind, suffix in _SUFFIXES.items() if suffix and device.endswith(suffix)), DeviceKind.TIME_SLICE
    )


def is_whole(device: str) -> bool:
    """Whether a device's name stands for a whole GPU."""
    return kind_of(device) is DeviceKind.WHOLE


def gpu_of(device: str) -> str:
    """Return the GPU's UUID, in lower case, that a device's name stands for."""
    return device.removesuffix(_SUFFIXES[kind_of(device)])


def slice_of(node: str, what: str) -> str:
    """Return the name of one of a node's ResourceSlices: the admission policy lets a driver take no other node's."""
    whole = f"{node}-{DRIVER}-{what}"
    if len(whole) <= _LONGEST_NAME:
        return whole
    short = hashlib.sha256(node.encode()).hexdigest()[:16]
    return f"{short}-{DRIVER}-{what}"
