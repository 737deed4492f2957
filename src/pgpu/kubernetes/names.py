"""Names that a cluster's objects and this node's driver share. Nothing here is computed but from a GPU's UUID."""

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

_WHOLE_SUFFIX = "-whole"


def shared_device(gpu_uuid: str) -> str:
    """Return the name of the device of which many claims get slices."""
    return gpu_uuid.lower()


def whole_device(gpu_uuid: str) -> str:
    """Return the name of the device that is a GPU for one claim alone."""
    return shared_device(gpu_uuid) + _WHOLE_SUFFIX


def is_whole(device: str) -> bool:
    """Whether a device's name stands for a whole GPU."""
    return device.endswith(_WHOLE_SUFFIX)


def gpu_of(device: str) -> str:
    """Return the GPU's UUID, in lower case, that a device's name stands for."""
    return device.removesuffix(_WHOLE_SUFFIX)
