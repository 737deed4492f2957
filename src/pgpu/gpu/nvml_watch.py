"""NVML's GPU performance metrics: how much of each pipe and of the memory's bandwidth a GPU used between two moments.

Hopper and newer have them, and NVML documents no privilege for them. They are the whole GPU's, so they tell of a job only
while it is alone. This module refuses MIG instances: a sample of one needs another call and other rights.

Source: NVML API reference, "GPM Functions"; samples lie at least 100 ms apart.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
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

Asking = Callable[[], AbstractContextManager[Any]]


class GpmWatch:
    """What a GPU used since this was made."""

    def __init__(self, asking: Asking, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the first sample.

        Args:
            asking: Gives the GPU's handle, with NVML held open and its errors made ours.
            clock: Seconds, from any beginning.
        """
        self._asking = asking
        self._clock = clock
        self._began_seconds = clock()
        with asking() as handle:
            self._first: Any = pynvml.nvmlGpmSampleGet(handle, pynvml.nvmlGpmSampleAlloc())

    def finish(self) -> tuple[float, Mapping[Resource, float]]:
        """Take the last sample; nothing can be asked afterwards.

        Returns:
            Seconds between both, and the average of each resource over them, 0 to 1, without what NVML does not tell; none
            where both lie too close together.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        seconds = self._clock() - self._began_seconds
        with self._asking() as handle:
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
        told = zip(_METRICS.values(), answer.metrics, strict=False)
        return {
            resource: min(1.0, max(0.0, float(metric.value) / _PERCENT))
            for resource, metric in told
            if metric.nvmlReturn == pynvml.NVML_SUCCESS
        }


def is_supported(handle: Any) -> bool:
    """Whether a GPU has such metrics."""
    return bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)


_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
_FILE_PREFIX = "xid-"
_NO_WAIT_MILLISECONDS = 0


class XidWatch:
    """Listens from its first look on. Safe for many threads."""

    def __init__(self, opened: Callable[[], AbstractContextManager[None]], simulated_directory: Path | None) -> None:
        """Args: what holds NVML open, and where simulated GPUs lie, of which a file `xid-UUID` tells (None: real GPUs)."""
        self._opened = opened
        self._directory = simulated_directory
        self._guard = threading.Lock()
        self._events: Any = None
        self._seen: dict[str, int] = {}

    def seen(self) -> Mapping[str, int]:
        """Return the last fatal Xid of each GPU that had one, by UUID.

        Raises:
            NodeError: The driver cannot be asked.
        """
        if self._directory is not None:
            return _written(self._directory)
        with self._guard, self._opened(), nvml_errors_translated("listen to GPUs' errors"):
            self._seen.update(self._told())
            return dict(self._seen)

    def _told(self) -> Iterator[tuple[str, int]]:
        if self._events is None:
            self._events = _listening()
        while True:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, _NO_WAIT_MILLISECONDS)
            except pynvml.NVMLError_Timeout:
                return
            if event.eventData not in _OF_PROGRAMS:
                yield pynvml.nvmlDeviceGetUUID(event.device), int(event.eventData)


def _listening() -> Any:
    events = pynvml.nvmlEventSetCreate()
    for index in range(pynvml.nvmlDeviceGetCount()):
        with contextlib.suppress(*CANNOT_TELL):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    return events


def _written(directory: Path) -> dict[str, int]:
    """Read what somebody wrote to try an error out: the number alone."""
    found = {}
    for path in directory.glob(f"{_FILE_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            found[path.name.removeprefix(_FILE_PREFIX)] = int(path.read_text(encoding="ascii"))
    return {uuid: xid for uuid, xid in found.items() if xid not in _OF_PROGRAMS}
