"""The CUDA driver API as the workloads use it: a device, its memory, a module and launches.

A thin layer over NVIDIA's own binding, which runs unchanged on NVIDIA's driver and on the simulated one. Every error of the driver
becomes a `CudaError` with its number.
"""

from __future__ import annotations

import ctypes
import functools
import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY."""

Argument = tuple[Any, Any]
"""A kernel's argument and its ctypes type; None as type for a device address."""


class CudaError(Exception):
    """A call of the driver failed.

    Attributes:
        number: The CUresult.
        name: Its name, such as CUDA_ERROR_OUT_OF_MEMORY.
    """

    def __init__(self, call: str, number: int, name: str) -> None:
        super().__init__(f"{call}: CUDA error {number} ({name})")
        self.number = number
        self.name = name

    @property
    def is_out_of_memory(self) -> bool:
        return self.number == OUT_OF_MEMORY


class MissingBindingsError(Exception):
    """The package cuda-bindings cannot be imported; the message contains the command that installs it."""


@functools.cache
def _bindings() -> Any:
    """Import the binding at the first call, so that a program can show its help without it."""
    try:
        from cuda.bindings import driver  # noqa: PLC0415 - an extra that may be missing
    except ImportError as exc:
        from pgpu.distribution import extra_hint  # noqa: PLC0415 - images of the tests hold the workloads alone

        raise MissingBindingsError(f"cuda-bindings cannot be imported ({exc}): {extra_hint('workloads')}") from exc
    return driver


def _call(name: str, *arguments: Any) -> Any:
    driver = _bindings()
    try:
        # Every function of cuda.bindings returns a tuple: the CUresult, then its results.
        status, *values = getattr(driver, name)(*arguments)
    except RuntimeError as exc:  # raised by the binding if there is no driver
        raise CudaError(name, int(driver.CUresult.CUDA_ERROR_NO_DEVICE), "no CUDA driver found") from exc
    if int(status) != 0:
        raise CudaError(name, int(status), getattr(status, "name", str(status)))
    return values[0] if len(values) == 1 else tuple(values)


class Device:
    """The first visible GPU with its primary context, like the CUDA runtime's default."""

    def __init__(self) -> None:
        _call("cuInit", 0)
        self._device = _call("cuDeviceGet", 0)
        # The context that the CUDA runtime and frameworks use, too; the driver allocates hundreds of MiB for it.
        context = _call("cuDevicePrimaryCtxRetain", self._device)
        _call("cuCtxSetCurrent", context)

    @property
    def name(self) -> str:
        return str(_call("cuDeviceGetName", 128, self._device).split(b"\0")[0].decode())

    @property
    def uuid(self) -> str:
        """In NVML's form, `GPU-…`."""
        digits = bytes(_call("cuDeviceGetUuid", self._device).bytes)[:16].hex()
        return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    @property
    def compute_major(self) -> int:
        return self._attribute("COMPUTE_CAPABILITY_MAJOR")

    @property
    def sm_count(self) -> int:
        """Multiprocessors that this process may use: fewer under MPS with a thread percentage."""
        return self._attribute("MULTIPROCESSOR_COUNT")

    @property
    def threads_per_sm(self) -> int:
        return self._attribute("MAX_THREADS_PER_MULTIPROCESSOR")

    @property
    def l2_bytes(self) -> int:
        return self._attribute("L2_CACHE_SIZE")

    def _attribute(self, name: str) -> int:
        attribute = getattr(_bindings().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(_call("cuDeviceGetAttribute", attribute, self._device))

    def memory_bytes(self) -> tuple[int, int]:
        """Return (free, total) of cuMemGetInfo."""
        free_bytes, total_bytes = _call("cuMemGetInfo")
        return int(free_bytes), int(total_bytes)

    def allocate(self, amount_bytes: int) -> int:
        """Return the address of new device memory.

        Raises:
            CudaError: Refused; `is_out_of_memory` if the device or the slice has no room.
        """
        return int(_call("cuMemAlloc", amount_bytes))

    def free(self, address: int) -> None:
        _call("cuMemFree", address)

    def write(self, address: int, values: array[Any]) -> None:
        """Copy a host array to the device."""
        host, count = values.buffer_info()
        _call("cuMemcpyHtoD", address, host, count * values.itemsize)

    def read(self, address: int, values: array[Any]) -> None:
        """Copy device memory into a host array, over its whole length."""
        host, count = values.buffer_info()
        _call("cuMemcpyDtoH", host, address, count * values.itemsize)

    def allocate_pinned(self, amount_bytes: int) -> int:
        """Return the address of new page-locked host memory."""
        return int(_call("cuMemHostAlloc", amount_bytes, 0))

    def begin_copy_in(self, address: int, host: int, amount_bytes: int) -> None:
        """Start a copy from pinned host memory, on the default stream."""
        _call("cuMemcpyHtoDAsync", address, host, amount_bytes, 0)

    def begin_copy_out(self, host: int, address: int, amount_bytes: int) -> None:
        """Start a copy into pinned host memory, on the default stream."""
        _call("cuMemcpyDtoHAsync", host, address, amount_bytes, 0)

    def synchronize(self) -> None:
        """Wait until all launched work is done."""
        _call("cuCtxSynchronize")

    def mark(self) -> Any:
        """Record an event after all work that is launched so far."""
        # Only completion matters, and an event without timing costs less.
        event = _call("cuEventCreate", int(_bindings().CUevent_flags.CU_EVENT_DISABLE_TIMING))
        _call("cuEventRecord", event, 0)
        return event

    def wait_for(self, mark: Any) -> None:
        """Wait for a recorded event, and destroy it."""
        _call("cuEventSynchronize", mark)
        _call("cuEventDestroy", mark)

    def seconds_of(self, start: Callable[[], None]) -> float:
        """Return the device time of the work that `start` launches."""
        first, last = (_call("cuEventCreate", 0) for _ in range(2))
        _call("cuEventRecord", first, 0)
        start()
        _call("cuEventRecord", last, 0)
        _call("cuEventSynchronize", last)
        milliseconds = float(_call("cuEventElapsedTime", first, last))
        for event in (first, last):
            _call("cuEventDestroy", event)
        return milliseconds / 1000

    def load(self, ptx: bytes) -> Module:
        """Compile PTX for this device."""
        # The driver reads the text up to a NUL byte.
        return Module(_call("cuModuleLoadData", ptx + b"\0"))


class Module:
    """Kernels of one PTX text."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._functions: dict[str, Any] = {}

    def launch(self, kernel: str, threads: int, arguments: Sequence[Argument], *, block_threads: int = 128) -> None:
        """Launch a kernel on the default stream, with at least `threads` threads in one dimension."""
        function = self._functions.get(kernel)
        if function is None:
            function = self._functions[kernel] = _call("cuModuleGetFunction", self._handle, kernel.encode())
        # cuda.bindings packs the values by these ctypes; None stands for a device pointer.
        values = tuple(value for value, _ in arguments)
        types = tuple(kind or ctypes.c_void_p for _, kind in arguments)
        blocks = -(-threads // block_threads)
        _call("cuLaunchKernel", function, blocks, 1, 1, block_threads, 1, 1, 0, 0, (values, types), 0)


USUAL_CONTEXT_BYTES = 300 * (1 << 20)
"""A primary context on recent GPUs takes between 250 and 500 MiB."""

# With more processes on the GPU NVML returns NVML_ERROR_INSUFFICIENT_SIZE, and the size of the context is not measured.
_PROCESSES_AT_MOST = 512

# NVML_VALUE_NOT_AVAILABLE of nvml.h: -1, read as an unsigned number of 64 bits.
_VALUE_NOT_AVAILABLE = (1 << 64) - 1


# Layout of nvmlProcessInfo_t as version 3 of the call fills it.
class _ProcessInfo(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class ContextSize:
    """Size of this process's CUDA context, and how it was determined."""

    context_bytes: int
    source: str
    """`process` (NVML per process), `device` (the only process on it) or `assumed`."""


def measure_context(gpu_uuid: str, device_used_bytes: int) -> ContextSize:
    """Measure the context, right after it was made and before any allocation.

    NVML reports it for each process. If NVML does not list this process (another PID namespace), the memory in use on the device
    counts if there is one process; else a usual size is assumed. Never fails: a workload must run without NVML, too.

    Args:
        gpu_uuid: In NVML's form.
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
    """Return (PID, bytes) of all compute processes that NVML lists; empty if NVML is missing or fails."""
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
