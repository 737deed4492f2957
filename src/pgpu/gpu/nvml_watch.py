"""Measurements of a GPU over time through NVML: performance metrics (GPM), and fatal errors (Xids).

GPM gives the use of each pipe and of memory bandwidth between two samples. Hopper and newer support it, without documented
privileges. The metrics are those of the whole GPU, so they describe a job only while it runs alone. MIG instances are not
supported: their samples need another call and other privileges.

Xids are events of the driver. Those caused by a program's own errors are ignored. A GPU with a fatal Xid stays marked until
the process starts to watch anew, since only an operator can repair it.

Sources: NVML API reference, "GPM Functions"; samples must be at least 100 ms apart. NVIDIA, "XID Errors"; which of them are a
program's own is as in NVIDIA's k8s-device-plugin.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pynvml

from pgpu.gpu.nvml_errors import CANNOT_TELL, nvml_errors_translated
from pgpu.model import Resource

LEAST_SECONDS = 0.1

_METRICS = {
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: Resource.TENSOR,
    pynvml.NVML_GPM_METRIC_FP32_UTIL: Resource.FP32,
    pynvml.NVML_GPM_METRIC_FP64_UTIL: Resource.FP64,
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: Resource.DRAM,
}
_PERCENT = 100.0

OpenGpu = Callable[[], AbstractContextManager[Any]]


class GpmWatch:
    """Use of a GPU since this object was created."""

    def __init__(self, open_gpu: OpenGpu, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the first sample.

        Args:
            open_gpu: Returns a context with the GPU's handle, in which NVML is open and its errors are translated.
            clock: Seconds.
        """
        self._open_gpu = open_gpu
        self._clock = clock
        self._began_seconds = clock()
        with open_gpu() as handle:
            self._first: Any = pynvml.nvmlGpmSampleGet(handle, pynvml.nvmlGpmSampleAlloc())

    def finish(self) -> tuple[float, Mapping[Resource, float]]:
        """Take the last sample; the object cannot be used afterwards.

        Returns:
            Seconds between both samples, and the average use of each resource, 0 to 1, without metrics that NVML does not
            report; empty if the samples are too close together.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        seconds = self._clock() - self._began_seconds
        with self._open_gpu() as handle:
            last = pynvml.nvmlGpmSampleGet(handle, pynvml.nvmlGpmSampleAlloc())
            try:
                return seconds, self._between(last) if seconds >= LEAST_SECONDS else {}
            finally:
                pynvml.nvmlGpmSampleFree(self._first)
                pynvml.nvmlGpmSampleFree(last)

    def _between(self, last: Any) -> Mapping[Resource, float]:
        question = pynvml.c_nvmlGpmMetricsGet_t()
        question.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        question.sample1, question.sample2 = self._first, last
        question.numMetrics = len(_METRICS)
        for place, metric in enumerate(_METRICS):
            question.metrics[place].metricId = metric
        answer = pynvml.nvmlGpmMetricsGet(question)
        # The structure's array has room for every metric of NVML; only the first `numMetrics` entries are filled.
        values = zip(_METRICS.values(), answer.metrics, strict=False)
        return {
            resource: min(1.0, max(0.0, float(metric.value) / _PERCENT))
            for resource, metric in values
            if metric.nvmlReturn == pynvml.NVML_SUCCESS
        }


def is_supported(handle: Any) -> bool:
    """Whether a GPU supports GPM."""
    return bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)


_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
_FILE_PREFIX = "xid-"
_NO_WAIT_MILLISECONDS = 0


class XidWatch:
    """Collects Xids from the first call of `fatal_xids` on. Safe for use by many threads."""

    def __init__(self, opened: Callable[[], AbstractContextManager[None]], simulated_directory: Path | None) -> None:
        """Take a context that holds NVML open, and the directory of simulated GPUs, whose Xids are files `xid-UUID` (None: real)."""
        self._opened = opened
        self._directory = simulated_directory
        self._guard = threading.Lock()
        self._events: Any = None
        self._fatal: dict[str, int] = {}

    def fatal_xids(self) -> Mapping[str, int]:
        """Return the last fatal Xid of each GPU that had one, by UUID.

        Raises:
            NodeError: The driver does not answer.
        """
        if self._directory is not None:
            return _read_simulated_xids(self._directory)
        # The guard is taken before NVML's lock, in every thread. The wait returns at once with events that came before the call.
        with self._guard, self._opened(), nvml_errors_translated("listen to GPUs' errors"):
            if self._events is None:
                self._events = _subscribe()
            while True:
                try:
                    event = pynvml.nvmlEventSetWait_v2(self._events, _NO_WAIT_MILLISECONDS)
                except pynvml.NVMLError_Timeout:  # the queue is empty
                    return dict(self._fatal)
                if event.eventData not in _OF_PROGRAMS:
                    self._fatal[pynvml.nvmlDeviceGetUUID(event.device)] = int(event.eventData)


def _subscribe() -> Any:
    events = pynvml.nvmlEventSetCreate()
    for index in range(pynvml.nvmlDeviceGetCount()):
        with contextlib.suppress(*CANNOT_TELL):  # a GPU without Xid events; the others are still watched
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    return events


def _read_simulated_xids(directory: Path) -> dict[str, int]:
    """Read Xids of simulated GPUs, which are written for tests: files with the number alone."""
    found = {}
    for path in directory.glob(f"{_FILE_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            found[path.name.removeprefix(_FILE_PREFIX)] = int(path.read_text(encoding="ascii"))
    return {uuid: xid for uuid, xid in found.items() if xid not in _OF_PROGRAMS}
