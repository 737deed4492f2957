"""Translation of NVML's errors into ours, with a hint for each code.

A code that is not in the table is reported as a bug of pgpu.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pgpu.errors import NodeError, PgpuBug, PgpuError
from pgpu.gpu.nvml_calls import (
    FunctionNotFoundError,
    NoDataError,
    NoPermissionError,
    NotSupportedError,
    NvmlError,
    VersionMismatchError,
)

_REINSTALL = "reinstall the NVIDIA driver, or load the module that fits it (`modprobe nvidia`, or reboot)"
_INSPECT = "look at `nvidia-smi` and at the kernel's log (`dmesg | grep NVRM`)"
_PERMIT = "let this user read and write /dev/nvidia*"
_UPDATE = "update the NVIDIA driver"

# By nvmlReturn_t.
_HINTS: dict[int, str] = {
    3: _UPDATE,  # NOT_SUPPORTED
    4: _PERMIT,  # NO_PERMISSION
    6: _INSPECT,  # NOT_FOUND
    8: "connect the GPU's power cables",  # INSUFFICIENT_POWER
    9: _REINSTALL,  # DRIVER_NOT_LOADED
    10: _INSPECT,  # TIMEOUT
    11: _INSPECT,  # IRQ_ISSUE
    12: _REINSTALL,  # LIBRARY_NOT_FOUND
    13: _UPDATE,  # FUNCTION_NOT_FOUND
    14: _INSPECT,  # CORRUPTED_INFOROM
    15: _INSPECT,  # GPU_IS_LOST
    16: "reset the GPU (`nvidia-smi --gpu-reset`) or reboot",  # RESET_REQUIRED
    17: _PERMIT,  # OPERATING_SYSTEM
    18: "driver and library differ since an update: reboot",  # LIB_RM_VERSION_MISMATCH
    19: "end what uses the GPU and try again",  # IN_USE
    20: "free memory of the machine and try again",  # MEMORY
    21: _INSPECT,  # NO_DATA
    22: _INSPECT,  # VGPU_ECC_NOT_SUPPORTED
    23: _INSPECT,  # INSUFFICIENT_RESOURCES
    24: _UPDATE,  # FREQ_NOT_SUPPORTED
    26: "update pgpu",  # DEPRECATED
    27: "try again in a moment",  # NOT_READY
    28: _INSPECT,  # GPU_NOT_FOUND
    29: _INSPECT,  # INVALID_STATE
    30: _INSPECT,  # RESET_TYPE_NOT_SUPPORTED
    999: _INSPECT,  # UNKNOWN
}

_OUR_FAULT: frozenset[int] = frozenset(
    {
        1,  # UNINITIALIZED
        2,  # INVALID_ARGUMENT
        5,  # ALREADY_INITIALIZED
        7,  # INSUFFICIENT_SIZE
        25,  # ARGUMENT_VERSION_MISMATCH
    }
)

# Errors of a query that this driver, GPU or user does not support, while the GPU works.
CANNOT_TELL = (NotSupportedError, FunctionNotFoundError, NoPermissionError, NoDataError, VersionMismatchError)


def translate_error(error: NvmlError, doing: str) -> PgpuError:
    """Return our error for one of NVML's.

    Args:
        error: As a call raised it.
        doing: What was attempted, such as `read the memory of GPU-…`.

    Returns:
        A NodeError if the machine must be fixed; a PgpuBug if the call was wrong or the code is unknown.
    """
    message = f"cannot {doing}: NVML reports {str(error).lower()}"
    hint = _HINTS.get(error.code)
    if hint is None:
        known = "" if error.code in _OUR_FAULT else f" (code {error.code})"
        return PgpuBug(f"{message}{known}")
    return NodeError(message, hint=hint)


@contextmanager
def nvml_errors_translated(doing: str) -> Iterator[None]:
    """Translate every NVML error raised inside the block."""
    try:
        yield
    except NvmlError as error:
        raise translate_error(error, doing) from error
