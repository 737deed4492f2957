"""Hears of changes as they happen, in a thread of its own, so that nobody has to look again and again.

What was missed while nobody told is found by a look: it is asked for whenever somebody begins to tell. It refuses to say what
has changed how.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable

from pgpu.errors import PgpuError
from pgpu.functions.router.control_plane import ControlPlane

_AGAIN_SECONDS = 0.5
"""Before whoever told and ended is asked anew."""


class ChangeFeed:
    """What one desk tells."""

    def __init__(self, desk: ControlPlane, hear: Callable[[str], None]) -> None:
        """Tell nothing yet.

        Args:
            desk: Tells.
            hear: Called on this event loop with each change: a job's id, or empty for functions.
        """
        self._desk, self._hear = desk, hear
        self._loop = asyncio.get_running_loop()
        self._ended = threading.Event()
        self.is_told = False
        """Whether changes are told now; else somebody has to look."""

    def start(self) -> None:
        """Listen from now on. The thread is nobody's to wait for: it may hang until its next news."""
        threading.Thread(target=self._listen, name="news", daemon=True).start()

    def close(self) -> None:
        """Hear nothing more."""
        self._ended.set()

    def _listen(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(PgpuError):  # whoever looks meanwhile says that it is away
                self._listen_once()
            self._ended.wait(_AGAIN_SECONDS)

    def _listen_once(self) -> None:
        try:
            for change in self._desk.changes():
                self._pass_on(change)
                if self._ended.is_set():
                    return
        finally:
            self._pass_on(None)

    def _pass_on(self, change: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._told, change)

    def _told(self, change: str | None) -> None:
        self.is_told = change is not None
        if change is not None and not self._ended.is_set():
            self._hear(change)
