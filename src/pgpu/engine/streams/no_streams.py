"""In place of the streams of a job that has no program, or whose container engine carries them."""

import os
from collections.abc import Callable

from pgpu.model import ProcessHolder
from pgpu.runtimes import Stdio
from pgpu.runtimes.job_monitor import OfferedMonitor


class NoStreams:
    """In place of a `Carrier`: a claim's job consists of its slices and has no program, so it needs no monitor."""

    def __init__(self) -> None:
        self.on_window: Callable[[int, int], None] = lambda _columns, _rows: None
        self._nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    def open(self, offered: OfferedMonitor | None = None) -> Stdio:
        """Return /dev/null as all streams; ends a monitor that was offered."""
        if offered is not None:
            offered.close()
        return Stdio(self._nothing, self._nothing, self._nothing)

    def reopen(self) -> Stdio:
        """Return the same as `open`."""
        return self.open()

    def started(self) -> None:
        """No effect."""

    def shows_no_run_of(self, holder: ProcessHolder) -> bool:  # noqa: ARG002 - none was started, or it is not started again
        """Return False."""
        return False

    def drain(self) -> None:
        """No effect: there is no output."""

    def finish(self) -> None:
        """No effect: no client is connected."""

    def set_window(self, columns: int, rows: int) -> None:
        """No effect: there is no terminal, or it is the engine's."""

    def close(self) -> None:
        """Close /dev/null."""
        os.close(self._nothing)
