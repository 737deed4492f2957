"""Which instances a GPU is divided into, where MIG is on: NVML's devices below a device.

It refuses instances that share memory: several compute instances of one GPU instance are kept apart in nothing that
counts here, so none of them is told of. It never switches MIG on or off and makes no instance.

Source: NVML API reference, Multi Instance GPU Management.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pynvml

from pgpu.gpu.nvml_errors import CANNOT_TELL

_NO_INSTANCE = (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument)


def is_divided(handle: Any) -> bool:
    """Whether MIG is on, so that no program can use this GPU as a whole."""
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except (*CANNOT_TELL, pynvml.NVMLError_InvalidArgument):  # the last: it is an instance itself
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def instances(handle: Any) -> Sequence[tuple[int, Any]]:
    """Return index and handle of every instance of a GPU that has its memory for itself, in NVML's order."""
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            found.append((index, pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)))
        except _NO_INSTANCE:
            continue
    gpu_instances = [pynvml.nvmlDeviceGetGpuInstanceId(instance) for _, instance in found]
    sharing = Counter(gpu_instances)
    return [one for one, gpu_instance in zip(found, gpu_instances, strict=True) if sharing[gpu_instance] == 1]
