"""The CUDA driver API as the workloads use it: a device, its memory, a module and launches.

A thin layer over NVIDIA's own binding. It refuses to hide a refusal: every error number of the driver becomes a
`CudaError` that carries it. It knows nothing of what it runs on.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any

from cuda.bindings import driver

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


def _call(name: str, *arguments: Any) -> Any:
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
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
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

    def synchronize(self) -> None:
        """Wait until everything launched has run."""
        _call("cuCtxSynchronize")

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
