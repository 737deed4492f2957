"""How much device memory this process's own CUDA context takes.

NVML knows it per process. Where NVML does not show this process (another PID namespace), what the device shows as used
is taken if this process is alone on it or in its slice; else a usual context is assumed, and the caller is told so.
This module refuses to fail: a workload must run where NVML is missing.
"""

import ctypes
import os
from dataclasses import dataclass

MIB = 1 << 20

USUAL_CONTEXT_BYTES = 300 * MIB
"""A primary context on recent GPUs takes between 250 and 500 MiB."""

_PROCESSES_AT_MOST = 512
_VALUE_NOT_AVAILABLE = (1 << 64) - 1


class _ProcessInfo(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class ContextSize:
    """What the context takes, and how it was found."""

    context_bytes: int
    source: str
    """`process` (NVML per process), `device` (alone on it) or `assumed`."""


def measure_context(gpu_uuid: str, device_used_bytes: int) -> ContextSize:
    """Measure right after the context was made and before anything else is allocated.

    Args:
        gpu_uuid: The GPU, as NVML writes it.
        device_used_bytes: Total less free of cuMemGetInfo.
    """
    processes = _processes(gpu_uuid)
    mine = [used_bytes for pid, used_bytes in processes if pid == os.getpid()]
    if mine and mine[0] != _VALUE_NOT_AVAILABLE:
        return ContextSize(mine[0], "process")
    if len(processes) == 1:
        return ContextSize(device_used_bytes, "device")
    return ContextSize(USUAL_CONTEXT_BYTES, "assumed")


def _processes(gpu_uuid: str) -> list[tuple[int, int]]:
    """Return (PID, bytes) of every compute process that NVML shows; empty where it cannot be asked."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        running = nvml.nvmlDeviceGetComputeRunningProcesses_v3
    except (OSError, AttributeError):
        return []
    device = ctypes.c_void_p()
    count = ctypes.c_uint(_PROCESSES_AT_MOST)
    found = (_ProcessInfo * _PROCESSES_AT_MOST)()
    if nvml.nvmlInit_v2() != 0 or nvml.nvmlDeviceGetHandleByUUID(gpu_uuid.encode(), ctypes.byref(device)) != 0:
        return []
    if running(device, ctypes.byref(count), found) != 0:
        return []
    return [(found[i].pid, found[i].used_bytes) for i in range(count.value)]
