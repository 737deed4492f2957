"""The calls of NVML that pgpu makes, through ctypes.

NVIDIA's own binding, nvidia-ml-py, declares all of NVML when it is imported: a fifth of the CPU of a short command. The
declarations here are a part of it, and a test compares both. The library is opened by `initialise`, by one thread at a time.

Source: NVML API reference. Functions of the library and their structures have NVML's names.
"""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import byref, c_char_p, c_double, c_int, c_uint, c_ulonglong, c_void_p, create_string_buffer
from typing import Any

XID_EVENTS = 0x8
"""nvmlEventTypeXidCriticalError."""

_SONAME = "libnvidia-ml.so.1"
_TEXT_BYTES = 96
_MEMORY_VERSION = 0x02000028
"""Of `nvmlMemory_v2_t`: its number and its size."""

_GPM_VERSION = 1
_MOST_METRICS = 477
"""NVML_GPM_METRIC_MAX of nvidia-ml-py 13; the driver uses the first `numMetrics` entries only."""

_UNKNOWN = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE."""

_INSUFFICIENT_SIZE = 7
_LIBRARY_NOT_FOUND = 12
_FUNCTION_NOT_FOUND = 13


class NvmlError(Exception):
    """A call failed with this nvmlReturn_t."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        text = _TEXTS.get(self.code)
        if text is None and (describe := getattr(_loaded.get(_SONAME), "nvmlErrorString", None)) is not None:
            describe.restype = c_char_p
            text = describe(self.code).decode()
        return text or f"NVML Error with code {self.code}"


class InvalidArgumentError(NvmlError):
    """NVML_ERROR_INVALID_ARGUMENT."""


class NotSupportedError(NvmlError):
    """NVML_ERROR_NOT_SUPPORTED."""


class NoPermissionError(NvmlError):
    """NVML_ERROR_NO_PERMISSION."""


class NotFoundError(NvmlError):
    """NVML_ERROR_NOT_FOUND."""


class EventTimeoutError(NvmlError):
    """NVML_ERROR_TIMEOUT."""


class LibraryNotFoundError(NvmlError):
    """NVML_ERROR_LIBRARY_NOT_FOUND."""


class FunctionNotFoundError(NvmlError):
    """NVML_ERROR_FUNCTION_NOT_FOUND, also of a driver's library that lacks the function."""


class NoDataError(NvmlError):
    """NVML_ERROR_NO_DATA."""


class VersionMismatchError(NvmlError):
    """NVML_ERROR_ARGUMENT_VERSION_MISMATCH."""


_CLASSES: dict[int, type[NvmlError]] = {
    2: InvalidArgumentError,
    3: NotSupportedError,
    4: NoPermissionError,
    6: NotFoundError,
    10: EventTimeoutError,
    _LIBRARY_NOT_FOUND: LibraryNotFoundError,
    _FUNCTION_NOT_FOUND: FunctionNotFoundError,
    21: NoDataError,
    25: VersionMismatchError,
}

_TEXTS = {
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    5: "Already Initialized",
    6: "Not Found",
    7: "Insufficient Size",
    8: "Insufficient External Power",
    9: "Driver Not Loaded",
    10: "Timeout",
    11: "Interrupt Request Issue",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    14: "Corrupted infoROM",
    15: "GPU is lost",
    16: "GPU requires restart",
    17: "The operating system has blocked the request.",
    18: "RM has detected an NVML/RM version mismatch.",
    20: "Insufficient Memory",
    999: "Unknown Error",
}
"""As nvidia-ml-py writes them; others are the library's."""


class Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class MemoryWithReserve(ctypes.Structure):
    """nvmlMemory_v2_t."""

    _fields_ = (
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    )


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_v2_t, of the second and third version of the calls."""

    _fields_ = (
        ("pid", c_uint),
        ("usedGpuMemory", c_ulonglong),
        ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    )


class Utilization(ctypes.Structure):
    """nvmlUtilization_t."""

    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class ProcessUtilizationSample(ctypes.Structure):
    """nvmlProcessUtilizationSample_t."""

    _fields_ = (
        ("pid", c_uint),
        ("timeStamp", c_ulonglong),
        ("smUtil", c_uint),
        ("memUtil", c_uint),
        ("encUtil", c_uint),
        ("decUtil", c_uint),
    )


class EventData(ctypes.Structure):
    """nvmlEventData_t."""

    _fields_ = (
        ("device", c_void_p),
        ("eventType", c_ulonglong),
        ("eventData", c_ulonglong),
        ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    )


class GpmMetric(ctypes.Structure):
    """nvmlGpmMetric_t."""

    _fields_ = (
        ("metricId", c_uint),
        ("nvmlReturn", c_uint),
        ("value", c_double),
        ("shortName", c_char_p),
        ("longName", c_char_p),
        ("unit", c_char_p),
    )


class GpmMetricsGet(ctypes.Structure):
    """nvmlGpmMetricsGet_t."""

    _fields_ = (
        ("version", c_uint),
        ("numMetrics", c_uint),
        ("sample1", c_void_p),
        ("sample2", c_void_p),
        ("metrics", GpmMetric * _MOST_METRICS),
    )


class GpmSupport(ctypes.Structure):
    """nvmlGpmSupport_t."""

    _fields_ = (("version", c_uint), ("isSupportedDevice", c_uint))


class SetMemoryLimits(ctypes.Structure):
    """nvmlSetMemoryLimits_v1_t."""

    _fields_ = (("nameSpace", c_char_p), ("softLimit", c_ulonglong), ("hardLimit", c_ulonglong))


class GetMemoryLimits(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t."""

    _fields_ = (
        ("nameSpace", c_char_p),
        ("softLimit", c_ulonglong),
        ("hardLimit", c_ulonglong),
        ("currentUsed", c_ulonglong),
    )


_loaded: dict[str, ctypes.CDLL] = {}


def error_of(code: int) -> NvmlError:
    """Return the exception for a code."""
    return _CLASSES.get(code, NvmlError)(code)


def _function(name: str) -> Callable[..., int]:
    function = getattr(_loaded.get(_SONAME), name, None)
    if function is None:
        raise error_of(_FUNCTION_NOT_FOUND)
    return function  # type: ignore[no-any-return] # of ctypes


def _call(name: str, *arguments: Any) -> None:
    code = _function(name)(*arguments)
    if code:
        raise error_of(code)


def _number(name: str, *arguments: Any) -> int:
    """Return the number that a call writes to its last argument."""
    number = c_uint()
    _call(name, *arguments, byref(number))
    return number.value


def _text(name: str, *arguments: Any) -> str:
    """Return the text that a call writes to its last argument but one."""
    text = create_string_buffer(_TEXT_BYTES)
    _call(name, *arguments, text, c_uint(_TEXT_BYTES))
    return text.value.decode()


def _handle(name: str, *arguments: Any) -> c_void_p:
    """Return the handle that a call writes to its last argument."""
    handle = c_void_p()
    _call(name, *arguments, byref(handle))
    return handle


def initialise() -> None:
    """Load the library, at the first call, and initialise NVML."""
    if _SONAME not in _loaded:
        try:
            _loaded[_SONAME] = ctypes.CDLL(_SONAME)
        except OSError:
            raise error_of(_LIBRARY_NOT_FOUND) from None
    _call("nvmlInitWithFlags", c_uint(0))


def shut_down() -> None:
    _call("nvmlShutdown")


def driver_version() -> str:
    return _text("nvmlSystemGetDriverVersion")


def cuda_version() -> int:
    return _number("nvmlSystemGetCudaDriverVersion_v2")


def device_count() -> int:
    return _number("nvmlDeviceGetCount_v2")


def device_by_index(index: int) -> c_void_p:
    return _handle("nvmlDeviceGetHandleByIndex_v2", c_uint(index))


def device_by_uuid(uuid: str) -> c_void_p:
    return _handle("nvmlDeviceGetHandleByUUID", c_char_p(uuid.encode()))


def uuid_of(device: c_void_p) -> str:
    return _text("nvmlDeviceGetUUID", device)


def name_of(device: c_void_p) -> str:
    return _text("nvmlDeviceGetName", device)


def memory(device: c_void_p) -> Memory:
    found = Memory()
    _call("nvmlDeviceGetMemoryInfo", device, byref(found))
    return found


def memory_with_reserve(device: c_void_p) -> MemoryWithReserve:
    """Return memory with the driver's reserve apart; from r510 on."""
    found = MemoryWithReserve(version=_MEMORY_VERSION)
    _call("nvmlDeviceGetMemoryInfo_v2", device, byref(found))
    return found


def mig_mode(device: c_void_p) -> int:
    """Return the current mode: 0 for off, 1 for on."""
    current, pending = c_uint(), c_uint()
    _call("nvmlDeviceGetMigMode", device, byref(current), byref(pending))
    return current.value


def most_mig_devices(device: c_void_p) -> int:
    return _number("nvmlDeviceGetMaxMigDeviceCount", device)


def mig_device_by_index(device: c_void_p, index: int) -> c_void_p:
    return _handle("nvmlDeviceGetMigDeviceHandleByIndex", device, c_uint(index))


def gpu_instance_id(device: c_void_p) -> int:
    return _number("nvmlDeviceGetGpuInstanceId", device)


def compute_capability(device: c_void_p) -> tuple[int, int]:
    major, minor = c_int(), c_int()
    _call("nvmlDeviceGetCudaComputeCapability", device, byref(major), byref(minor))
    return major.value, minor.value


def most_pcie_generation(device: c_void_p) -> int:
    return _number("nvmlDeviceGetMaxPcieLinkGeneration", device)


def most_pcie_width(device: c_void_p) -> int:
    return _number("nvmlDeviceGetMaxPcieLinkWidth", device)


def processes(device: c_void_p, name: str) -> list[tuple[int, int | None]]:
    """Return (PID, bytes) of the processes that a call lists; None bytes where NVML does not know them.

    Args:
        device: The GPU.
        name: Of the call, such as `nvmlDeviceGetComputeRunningProcesses_v3`; of version 2 or 3.
    """
    function, count = _function(name), c_uint(0)
    code = function(device, byref(count), None)
    if not code:
        return []
    if code != _INSUFFICIENT_SIZE:
        raise error_of(code)
    count.value = 2 * count.value + 5  # room for those that start meanwhile
    found = (ProcessInfo * count.value)()
    _call(name, device, byref(count), found)
    return [(each.pid, None if each.usedGpuMemory == _UNKNOWN else each.usedGpuMemory) for each in found[: count.value]]


def utilization(device: c_void_p) -> Utilization:
    found = Utilization()
    _call("nvmlDeviceGetUtilizationRates", device, byref(found))
    return found


def process_utilization(device: c_void_p, since_microseconds: int) -> Sequence[ProcessUtilizationSample]:
    """Return the samples since a time of the epoch."""
    name = "nvmlDeviceGetProcessUtilization"
    count, since = c_uint(0), c_ulonglong(since_microseconds)
    code = _function(name)(device, None, byref(count), since)
    if code != _INSUFFICIENT_SIZE:
        raise error_of(code)
    found = (ProcessUtilizationSample * count.value)()
    _call(name, device, found, byref(count), since)
    return found[: count.value]


def event_set() -> c_void_p:
    return _handle("nvmlEventSetCreate")


def register_events(device: c_void_p, kinds: int, events: c_void_p) -> None:
    _call("nvmlDeviceRegisterEvents", device, c_ulonglong(kinds), events)


def wait_for_event(events: c_void_p, timeout_milliseconds: int) -> tuple[str, int]:
    """Return the UUID of the GPU and the data of the next event.

    Raises:
        EventTimeoutError: None came in time.
    """
    found = EventData()
    _call("nvmlEventSetWait_v2", events, byref(found), c_uint(timeout_milliseconds))
    return uuid_of(c_void_p(found.device)), found.eventData


def supports_gpm(device: c_void_p) -> bool:
    found = GpmSupport(version=_GPM_VERSION)
    _call("nvmlGpmQueryDeviceSupport", device, byref(found))
    return bool(found.isSupportedDevice)


def gpm_sample(device: c_void_p) -> c_void_p:
    """Return a new sample, taken now; freed by `free_gpm_sample`."""
    sample = _handle("nvmlGpmSampleAlloc")
    _call("nvmlGpmSampleGet", device, sample)
    return sample


def free_gpm_sample(sample: c_void_p) -> None:
    _call("nvmlGpmSampleFree", sample)


def gpm_metrics(first: c_void_p, last: c_void_p, metrics: Sequence[int]) -> list[float | None]:
    """Return the value of each metric between two samples; None where NVML does not report it."""
    asked = GpmMetricsGet(version=_GPM_VERSION, numMetrics=len(metrics), sample1=first, sample2=last)
    for place, metric in enumerate(metrics):
        asked.metrics[place].metricId = metric
    _call("nvmlGpmMetricsGet", byref(asked))
    return [None if each.nvmlReturn else each.value for each in asked.metrics[: len(metrics)]]


def memory_limits(device: c_void_p, name_space: bytes) -> GetMemoryLimits:
    """Return the limits of a control group; from r615 on."""
    found = GetMemoryLimits(nameSpace=name_space)
    _call("nvmlDeviceGetMemoryLimits_v1", device, byref(found))
    return found


def set_memory_limits(device: c_void_p, name_space: bytes, soft_bytes: int, hard_bytes: int) -> None:
    limits = SetMemoryLimits(nameSpace=name_space, softLimit=soft_bytes, hardLimit=hard_bytes)
    _call("nvmlDeviceSetMemoryLimits_v1", device, byref(limits))
