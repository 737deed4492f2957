"""Translation of NVML's errors into ours, with a hint for each code.

A code that is not in the table is reported as a bug of pgpu.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pynvml

from pgpu.errors import NodeError, PgpuBug, PgpuError

_REINSTALL = "reinstall the NVIDIA driver, or load the module that fits it (`modprobe nvidia`, or reboot)"
_INSPECT = "look at `nvidia-smi` and at the kernel's log (`dmesg | grep NVRM`)"
_PERMIT = "let this user read and write /dev/nvidia*"
_UPDATE = "update the NVIDIA driver"
_UNSUPPORTED = "this kind of GPU may not have it at all; if others of its kind do, update the NVIDIA driver"

_HINTS: dict[int, str] = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: _UNSUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: _PERMIT,
    pynvml.NVML_ERROR_NOT_FOUND: _INSPECT,
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: "connect the GPU's power cables",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: _REINSTALL,
    pynvml.NVML_ERROR_TIMEOUT: _INSPECT,
    pynvml.NVML_ERROR_IRQ_ISSUE: _INSPECT,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: _REINSTALL,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: _UPDATE,
    pynvml.NVML_ERROR_CORRUPTED_INFOROM: _INSPECT,
    pynvml.NVML_ERROR_GPU_IS_LOST: _INSPECT,
    pynvml.NVML_ERROR_RESET_REQUIRED: "reset the GPU (`nvidia-smi --gpu-reset`) or reboot",
    pynvml.NVML_ERROR_OPERATING_SYSTEM: _PERMIT,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver and library differ since an update: reboot",
    pynvml.NVML_ERROR_IN_USE: "end what uses the GPU and try again",
    pynvml.NVML_ERROR_MEMORY: "free memory of the machine and try again",
    pynvml.NVML_ERROR_NO_DATA: _INSPECT,
    pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: _INSPECT,
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: _INSPECT,
    pynvml.NVML_ERROR_FREQ_NOT_SUPPORTED: _UPDATE,
    pynvml.NVML_ERROR_DEPRECATED: "update pgpu",
    pynvml.NVML_ERROR_NOT_READY: "try again in a moment",
    pynvml.NVML_ERROR_GPU_NOT_FOUND: _INSPECT,
    pynvml.NVML_ERROR_INVALID_STATE: _INSPECT,
    pynvml.NVML_ERROR_RESET_TYPE_NOT_SUPPORTED: _INSPECT,
    pynvml.NVML_ERROR_UNKNOWN: _INSPECT,
}

_OUR_FAULT: frozenset[int] = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_ALREADY_INITIALIZED,
        pynvml.NVML_ERROR_INSUFFICIENT_SIZE,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)

# Errors of a query that this driver, GPU or user does not support, while the GPU works.
CANNOT_TELL = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLError_NoData,
    pynvml.NVMLError_ArgumentVersionMismatch,
)


def translate_error(error: pynvml.NVMLError, doing: str) -> PgpuError:
    """Return our error for one of NVML's.

    Args:
        error: As pynvml raised it.
        doing: What was attempted, such as `read the memory of GPU-…`.

    Returns:
        A NodeError if the machine must be fixed; a PgpuBug if the call was wrong or the code is unknown.
    """
    message = f"cannot {doing}: NVML reports {str(error).lower()}"
    hint = _HINTS.get(error.value)
    if hint is None:
        known = "" if error.value in _OUR_FAULT else f" (code {error.value})"
        return PgpuBug(f"{message}{known}")
    return NodeError(message, hint=hint)


@contextmanager
def nvml_errors_translated(doing: str) -> Iterator[None]:
    """Translate every NVML error raised inside the block."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise translate_error(error, doing) from error
