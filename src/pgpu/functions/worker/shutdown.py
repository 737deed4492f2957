"""How a worker is asked to leave: by its front, or by SIGTERM. It finishes the call that it is in.

It refuses to interrupt the handler: only a wait for the next call ends at once.
"""

import signal
from collections.abc import Callable
from types import FrameType


class _Interrupted(BaseException):
    """Ends a wait; nobody outside of this module sees it."""


class ShutdownSignal:
    """Whether the worker was asked to leave."""

    def __init__(self) -> None:
        self.is_asked = False
        self.on_asked: Callable[[], object] = lambda: None
        """Called when it is asked, from a signal's handler."""

        self._is_waiting = False

    def listen(self) -> None:
        """Take SIGTERM as the request; from the main thread only. SIGINT is the terminal's and not for us."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait(self, wait: Callable[[], None]) -> None:
        """Wait; a request to leave ends it.

        What was read in this very moment may be lost. It was not begun, and its front sees that.
        """
        try:
            self._is_waiting = True
            if not self.is_asked:
                wait()
            self._is_waiting = False
        except _Interrupted:
            pass

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.is_asked = True
        self.on_asked()
        if self._is_waiting:
            self._is_waiting = False
            raise _Interrupted
