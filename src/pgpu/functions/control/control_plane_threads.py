"""Threads for a blocking control plane: its methods for the event loop, and its stream of changes."""

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pgpu.errors import PgpuError
from pgpu.functions.control.control_plane import ControlPlane

_THREADS = 8
_RETRY_SECONDS = 0.5
"""Before a new attempt to follow changes."""

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class ControlPlaneThreads:
    """Calls blocking methods in threads, and runs background tasks, for one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "control-plane")
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_away = False
        """Whether the last `call` failed."""

    async def call(self, method: Callable[..., _T], *arguments: Any) -> _T | None:
        """Call a method; None if it fails, which is logged once until a call succeeds."""
        try:
            result = await self.call_strictly(method, *arguments)
        except PgpuError as error:
            if not self.is_away:
                _log.info("the server does not answer as it should: %s", error)
            self.is_away = True
            return None
        self.is_away = False
        return result

    async def call_strictly(self, method: Callable[..., _T], *arguments: Any) -> _T:
        """Call a method, and raise what it raises."""
        call = functools.partial(method, *arguments)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def close(self) -> None:
        """Cancel all background tasks and pending calls."""
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a bug of the gateway: %r", error)


class ChangeFeed:
    """Follows a control plane's changes in a thread of its own.

    A change that is missed between two connections is found by polling, since each connection begins with a change of functions.
    """

    def __init__(self, control_plane: ControlPlane, on_change: Callable[[str], None]) -> None:
        """Prepare; `start()` begins.

        Args:
            control_plane: Reports the changes.
            on_change: Called on this event loop with each change: a job's id, or an empty string for functions.
        """
        self._control_plane, self._on_change = control_plane, on_change
        self._loop = asyncio.get_running_loop()
        self._ended = threading.Event()
        self.is_connected = False
        """Whether changes are reported now; else the caller must poll."""

    def start(self) -> None:
        """Start the thread. A daemon, never joined: it may block until the next change."""
        threading.Thread(target=self._follow, name="change-feed", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def _follow(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(PgpuError):  # the controller's polling logs that the server is away
                try:
                    for change in self._control_plane.changes():
                        self._pass_on(change)
                        if self._ended.is_set():
                            return
                finally:
                    # None on the loop: the feed is disconnected, and the controller polls at its usual interval.
                    self._pass_on(None)
            self._ended.wait(_RETRY_SECONDS)

    def _pass_on(self, change: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._on_thread_change, change)

    def _on_thread_change(self, change: str | None) -> None:
        self.is_connected = change is not None
        if change is not None and not self._ended.is_set():
            self._on_change(change)
