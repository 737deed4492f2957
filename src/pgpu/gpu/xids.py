"""Fatal errors of GPUs (Xids), as the driver tells of them while somebody listens.

What a program did wrong is no illness of a GPU, and passed over. It refuses to call a GPU well again: only a new look,
after an operator's, does.

Source: NVIDIA, "XID Errors"; which of them are a program's own is as in NVIDIA's k8s-device-plugin.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pynvml

from pgpu.gpu.nvml_errors import CANNOT_TELL, nvml_errors_translated

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
