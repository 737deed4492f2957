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

from pgpu.gpu import nvml_calls
from pgpu.gpu.nvml_errors import CANNOT_TELL, nvml_errors_translated
from pgpu.model import Resource

LEAST_SECONDS = 0.1

# By nvmlGpmMetricId_t.
_METRICS = {
    5: Resource.TENSOR,  # NVML_GPM_METRIC_ANY_TENSOR_UTIL
    12: Resource.FP32,  # NVML_GPM_METRIC_FP32_UTIL
    11: Resource.FP64,  # NVML_GPM_METRIC_FP64_UTIL
    10: Resource.DRAM,  # NVML_GPM_METRIC_DRAM_BW_UTIL
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
            self._first: Any = nvml_calls.gpm_sample(handle)

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
            last = nvml_calls.gpm_sample(handle)
            try:
                return seconds, self._between(last) if seconds >= LEAST_SECONDS else {}
            finally:
                nvml_calls.free_gpm_sample(self._first)
                nvml_calls.free_gpm_sample(last)

    def _between(self, last: Any) -> Mapping[Resource, float]:
        values = zip(_METRICS.values(), nvml_calls.gpm_metrics(self._first, last, list(_METRICS)), strict=True)
        return {resource: min(1.0, max(0.0, percent / _PERCENT)) for resource, percent in values if percent is not None}


def is_supported(handle: Any) -> bool:
    """Whether a GPU supports GPM."""
    return nvml_calls.supports_gpm(handle)


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
                    uuid, xid = nvml_calls.wait_for_event(self._events, _NO_WAIT_MILLISECONDS)
                except nvml_calls.EventTimeoutError:  # the queue is empty
                    return dict(self._fatal)
                if xid not in _OF_PROGRAMS:
                    self._fatal[uuid] = xid


def _subscribe() -> Any:
    events = nvml_calls.event_set()
    for index in range(nvml_calls.device_count()):
        with contextlib.suppress(*CANNOT_TELL):  # a GPU without Xid events; the others are still watched
            handle = nvml_calls.device_by_index(index)
            nvml_calls.register_events(handle, nvml_calls.XID_EVENTS, events)
    return events


def _read_simulated_xids(directory: Path) -> dict[str, int]:
    """Read Xids of simulated GPUs, which are written for tests: files with the number alone."""
    found = {}
    for path in directory.glob(f"{_FILE_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            found[path.name.removeprefix(_FILE_PREFIX)] = int(path.read_text(encoding="ascii"))
    return {uuid: xid for uuid, xid in found.items() if xid not in _OF_PROGRAMS}
