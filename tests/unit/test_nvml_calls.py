"""Our declarations of NVML against those of NVIDIA's own binding."""

import ctypes

import pynvml
import pytest

from pgpu.gpu import nvml_calls
from pgpu.gpu.nvml_calls import error_of

STRUCTURES = [
    (nvml_calls.Memory, pynvml.c_nvmlMemory_t),
    (nvml_calls.MemoryWithReserve, pynvml.c_nvmlMemory_v2_t),
    (nvml_calls.ProcessInfo, pynvml.c_nvmlProcessInfo_v2_t),
    (nvml_calls.ProcessInfo, pynvml.c_nvmlProcessInfo_v3_t),
    (nvml_calls.Utilization, pynvml.c_nvmlUtilization_t),
    (nvml_calls.ProcessUtilizationSample, pynvml.c_nvmlProcessUtilizationSample_t),
    (nvml_calls.EventData, pynvml.c_nvmlEventData_t),
    (nvml_calls.GpmMetricsGet, pynvml.c_nvmlGpmMetricsGet_t),
    (nvml_calls.GpmSupport, pynvml.c_nvmlGpmSupport_t),
    (nvml_calls.SetMemoryLimits, pynvml.c_nvmlSetMemoryLimits_v1_t),
    (nvml_calls.GetMemoryLimits, pynvml.c_nvmlGetMemoryLimits_v1_t),
]


def _layout(structure: type[ctypes.Structure]) -> list[tuple[str, int, int]]:
    fields = [(name, getattr(structure, name)) for name, *_ in structure._fields_]
    return [("", 0, ctypes.sizeof(structure)), *((name, field.offset, field.size) for name, field in fields)]


@pytest.mark.parametrize(("ours", "theirs"), STRUCTURES)
def test_a_structure_has_the_layout_of_nvidias_binding(
    ours: type[ctypes.Structure], theirs: type[ctypes.Structure]
) -> None:
    assert _layout(ours) == _layout(theirs)


def test_a_metric_has_the_layout_of_nvidias_binding() -> None:
    # Theirs has the three texts in a structure of their own.
    assert ctypes.sizeof(nvml_calls.GpmMetric) == ctypes.sizeof(pynvml.c_nvmlGpmMetric_t)
    assert _layout(nvml_calls.GpmMetric)[1:4] == _layout(pynvml.c_nvmlGpmMetric_t)[1:4]
    assert nvml_calls.GpmMetric.shortName.offset == pynvml.c_nvmlGpmMetric_t.metricInfo.offset


def test_versions_and_constants_are_those_of_nvidias_binding() -> None:
    assert pynvml.nvmlMemory_v2 == nvml_calls._MEMORY_VERSION
    assert {pynvml.NVML_GPM_METRICS_GET_VERSION, pynvml.NVML_GPM_SUPPORT_VERSION} == {nvml_calls._GPM_VERSION}
    assert pynvml.nvmlEventTypeXidCriticalError == nvml_calls.XID_EVENTS
    assert pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value == nvml_calls._UNKNOWN
    assert pynvml.NVML_ERROR_INSUFFICIENT_SIZE == nvml_calls._INSUFFICIENT_SIZE


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (nvml_calls.InvalidArgumentError, pynvml.NVMLError_InvalidArgument),
        (nvml_calls.NotSupportedError, pynvml.NVMLError_NotSupported),
        (nvml_calls.NoPermissionError, pynvml.NVMLError_NoPermission),
        (nvml_calls.NotFoundError, pynvml.NVMLError_NotFound),
        (nvml_calls.EventTimeoutError, pynvml.NVMLError_Timeout),
        (nvml_calls.LibraryNotFoundError, pynvml.NVMLError_LibraryNotFound),
        (nvml_calls.FunctionNotFoundError, pynvml.NVMLError_FunctionNotFound),
        (nvml_calls.NoDataError, pynvml.NVMLError_NoData),
        (nvml_calls.VersionMismatchError, pynvml.NVMLError_ArgumentVersionMismatch),
    ],
)
def test_an_error_has_the_code_of_nvidias_binding(
    ours: type[nvml_calls.NvmlError], theirs: type[pynvml.NVMLError]
) -> None:
    assert type(error_of(theirs(0).value)) is ours


def test_errors_have_the_texts_of_nvidias_binding() -> None:
    assert pynvml.NVMLError._errcode_to_string.items() >= nvml_calls._TEXTS.items()
    assert str(error_of(12345)) == str(pynvml.NVMLError(12345))
