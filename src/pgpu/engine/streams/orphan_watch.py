"""Watches the main process of a job whose monitor was killed, until another process has reaped it.

The exit code is known from then on: a guard records it before it reaps, and the kernel keeps it for open pidfds from Linux 6.15
on. After another parent on an older kernel it is lost.
"""

import os
from collections.abc import Callable

from pgpu.engine.event_loop import READABLE, EventLoop
from pgpu.host.process_identity import boot_id, open_pidfd, read_status
from pgpu.model import ProcessHolder
from pgpu.runtimes.job_monitor import is_guard

_PAUSE_SECONDS = 0.005
_REAPING_SECONDS = 5.0
"""Longest wait for a parent other than a guard, such as the first process of a container: it may never reap."""


class OrphanWatch:
    """The watch of one process, in callbacks of a job's event loop."""

    def __init__(
        self, loop: EventLoop, main: ProcessHolder, on_ended: Callable[[], None], on_reaped: Callable[[], None]
    ) -> None:
        """Begin; a process that has ended already calls back during this call or soon after it.

        Args:
            loop: Of the job's thread.
            main: The process.
            on_ended: Called once it has ended, unless it had before.
            on_reaped: Called once after its parent has reaped it, or does not.
        """
        self.main = main
        self._loop = loop
        self._on_ended = on_ended
        self._on_reaped = on_reaped
        self._pidfd = open_pidfd(main)
        self._give_up_at_seconds = 0.0
        if self._pidfd is None:
            self._await_reaping()
        else:
            loop.watch(self._pidfd, READABLE, lambda _: self._ended())

    def close(self) -> None:
        """Stop watching."""
        if self._pidfd is not None:
            self._loop.forget(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _ended(self) -> None:
        self.close()
        self._on_ended()
        self._await_reaping()

    def _await_reaping(self) -> None:
        now_seconds = self._loop.now_seconds()
        self._give_up_at_seconds = self._give_up_at_seconds or now_seconds + _REAPING_SECONDS
        status = read_status(self.main.pid)
        is_reaped = status is None or ProcessHolder(self.main.pid, status.start_time_ticks, boot_id()) != self.main
        if is_reaped or (
            now_seconds > self._give_up_at_seconds and status is not None and not is_guard(status.parent_pid)
        ):
            self._on_reaped()
        else:
            self._loop.call_later(_PAUSE_SECONDS, self._await_reaping)
