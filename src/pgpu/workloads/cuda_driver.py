"""The CUDA driver API as the workloads use it: a device, its memory, a module and launches.

A thin layer over NVIDIA's own binding. It refuses to hide a refusal: every error number of the driver becomes a
`CudaError` that carries it. It knows nothing of what it runs on.
"""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Callable, Sequence
from typing import Any

OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY."""

Argument = tuple[Any, Any]
"""A kernel's argument and its ctypes type; None as type for a device address."""


class CudaError(Exception):
    """The driver answered a call with an error.

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
        """Whether the device or the slice had no room."""
        return self.number == OUT_OF_MEMORY


class MissingBindingsError(Exception):
    """The package cuda-bindings cannot be imported; the message tells how it is installed."""


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
        status, *values = getattr(driver, name)(*arguments)
    except RuntimeError as exc:  # the binding's own word for a driver that is not there
        raise CudaError(name, int(driver.CUresult.CUDA_ERROR_NO_DEVICE), "no CUDA driver found") from exc
    if int(status) != 0:
        raise CudaError(name, int(status), getattr(status, "name", str(status)))
    return values[0] if len(values) == 1 else tuple(values)


class Device:
    """The first visible GPU with its primary context, as the CUDA runtime would use it."""

    def __init__(self) -> None:
        _call("cuInit", 0)
        self._device = _call("cuDeviceGet", 0)
        context = _call("cuDevicePrimaryCtxRetain", self._device)
        _call("cuCtxSetCurrent", context)

    @property
    def name(self) -> str:
        """Product name."""
        return str(_call("cuDeviceGetName", 128, self._device).split(b"\0")[0].decode())

    @property
    def uuid(self) -> str:
        """As NVML writes it, `GPU-…`."""
        digits = bytes(_call("cuDeviceGetUuid", self._device).bytes)[:16].hex()
        return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    @property
    def compute_major(self) -> int:
        """Major number of the compute capability."""
        return self._attribute("COMPUTE_CAPABILITY_MAJOR")

    @property
    def sm_count(self) -> int:
        """Multiprocessors, as this process sees them: fewer under MPS with a thread percentage."""
        return self._attribute("MULTIPROCESSOR_COUNT")

    @property
    def threads_per_sm(self) -> int:
        """How many threads a multiprocessor holds at once."""
        return self._attribute("MAX_THREADS_PER_MULTIPROCESSOR")

    @property
    def l2_bytes(self) -> int:
        """Size of the L2 cache."""
        return self._attribute("L2_CACHE_SIZE")

    def _attribute(self, name: str) -> int:
        attribute = getattr(_bindings().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(_call("cuDeviceGetAttribute", attribute, self._device))

    def memory_bytes(self) -> tuple[int, int]:
        """Return (free, total) as cuMemGetInfo tells."""
        free_bytes, total_bytes = _call("cuMemGetInfo")
        return int(free_bytes), int(total_bytes)

    def allocate(self, amount_bytes: int) -> int:
        """Return the address of new device memory.

        Raises:
            CudaError: Refused; `is_out_of_memory` where there was no room.
        """
        return int(_call("cuMemAlloc", amount_bytes))

    def free(self, address: int) -> None:
        """Give device memory back."""
        _call("cuMemFree", address)

    def write(self, address: int, values: array[Any]) -> None:
        """Copy a host array to the device."""
        host, count = values.buffer_info()
        _call("cuMemcpyHtoD", address, host, count * values.itemsize)

    def read(self, address: int, values: array[Any]) -> None:
        """Copy device memory over a host array of the wanted length."""
        host, count = values.buffer_info()
        _call("cuMemcpyDtoH", host, address, count * values.itemsize)

    def pinned(self, amount_bytes: int) -> int:
        """Return the address of new host memory that copies go to and from without a detour."""
        return int(_call("cuMemHostAlloc", amount_bytes, 0))

    def begin_copy_in(self, address: int, host: int, amount_bytes: int) -> None:
        """Begin to copy from pinned host memory, on the default stream."""
        _call("cuMemcpyHtoDAsync", address, host, amount_bytes, 0)

    def begin_copy_out(self, host: int, address: int, amount_bytes: int) -> None:
        """Begin to copy into pinned host memory, on the default stream."""
        _call("cuMemcpyDtoHAsync", host, address, amount_bytes, 0)

    def synchronize(self) -> None:
        """Wait until everything launched has run."""
        _call("cuCtxSynchronize")

    def mark(self) -> Any:
        """Return a mark behind everything launched so far."""
        event = _call("cuEventCreate", int(_bindings().CUevent_flags.CU_EVENT_DISABLE_TIMING))
        _call("cuEventRecord", event, 0)
        return event

    def wait_for(self, mark: Any) -> None:
        """Wait until everything before a mark has run, and forget it."""
        _call("cuEventSynchronize", mark)
        _call("cuEventDestroy", mark)

    def seconds_of(self, start: Callable[[], None]) -> float:
        """Return how long the device takes for what is started, by its own clock."""
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
        return Module(_call("cuModuleLoadData", ptx + b"\0"))


class Module:
    """Kernels of one PTX text."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._functions: dict[str, Any] = {}

    def launch(self, kernel: str, threads: int, arguments: Sequence[Argument], *, block_threads: int = 128) -> None:
        """Start a kernel on the default stream, with at least `threads` threads in one dimension."""
        function = self._functions.get(kernel)
        if function is None:
            function = self._functions[kernel] = _call("cuModuleGetFunction", self._handle, kernel.encode())
        values = tuple(value for value, _ in arguments)
        types = tuple(kind or ctypes.c_void_p for _, kind in arguments)
        blocks = -(-threads // block_threads)
        _call("cuLaunchKernel", function, blocks, 1, 1, block_threads, 1, 1, 0, 0, (values, types), 0)
