"""One worker as its front sees it: a process, a channel, and what it told.

It refuses to start another: the keeper decides that.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from typing import Protocol

from pgpu.functions.ipc.async_channel import AsyncChannel
from pgpu.functions.ipc.call_frames import Frame, decode_message
from pgpu.functions.ipc.memory_files import StartedMark
from pgpu.functions.ipc.messages import FrameKind, Notification

HANGING_GRACE_SECONDS = 1.0
"""Between TERM and KILL of a worker that goes on too long: time for what it prints, not for its work."""

LEAVING_GRACE_SECONDS = 8.0
"""The same where it is in order, for its close(); below the ten seconds that Docker gives a container."""


class WorkerListener(Protocol):
    """Who hears of a worker."""

    def on_told(self, worker: "WorkerProcess", tell: Notification) -> None:
        """It said something beside the calls."""

    def on_frames(self, frames: Sequence[Frame]) -> None:
        """It said something about calls."""

    def on_ended(self, worker: "WorkerProcess") -> None:
        """It is dead, or its socket is; what it had said before was handed on."""


def end_process(pidfd: int) -> None:
    """Kill a process that nobody can talk to any more, dead or not, and close its descriptor."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)


class WorkerProcess:
    """A worker that was asked for; born or not."""

    def __init__(self, end: socket.socket, listener: WorkerListener) -> None:
        """Listen on the front's end of its socket pair."""
        self._listener = listener
        self.channel = AsyncChannel(end, self._on_frames, self._lost)
        self.mark: StartedMark | None = None
        self.is_ready = False
        self.is_ended = False
        self.failure: str | None = None
        """The type of what its constructor raised."""

        self._pidfd: int | None = None
        self._loop = asyncio.get_running_loop()
        self._killing: asyncio.TimerHandle | None = None

    @property
    def is_ending(self) -> bool:
        """Whether it was asked to leave."""
        return self._killing is not None

    def born(self, pidfd: int) -> None:
        """Take the descriptor of its process: it becomes readable when that dies, whoever holds its socket then."""
        if self.is_ended:
            end_process(pidfd)
            return
        self._pidfd = pidfd
        self._loop.add_reader(pidfd, self._died)

    def end(self, grace_seconds: float) -> None:
        """Ask it to leave, and kill it if it does not."""
        if self._killing is None and not self.is_ended:
            self._signal(signal.SIGTERM)
            self._killing = self._loop.call_later(grace_seconds, self.kill)

    def kill(self) -> None:
        """Kill it now."""
        self._signal(signal.SIGKILL)
        if self._pidfd is None:
            self.channel.close()
            self._end()

    def _signal(self, number: int) -> None:
        if self._pidfd is not None:
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                return

    def _lost(self) -> None:
        """Its socket has ended. One that was asked to leave still does what Python does at its end."""
        if self._killing is None or self._pidfd is None:
            self._end()

    def _died(self) -> None:
        self.channel.drain_input()
        self.channel.close()
        self._end()

    def _on_frames(self, frames: Sequence[Frame]) -> None:
        for each in frames:
            if each.kind == FrameKind.NOTIFICATION:
                self._listener.on_frames([each for each in frames if not self._is_told(each)])
                return
        self._listener.on_frames(frames)

    def _is_told(self, each: Frame) -> bool:
        if each.kind != FrameKind.NOTIFICATION:
            return False
        if each.has_file:
            fd = self.channel.next_file()
            self.mark = StartedMark(fd)
            os.close(fd)
        self._listener.on_told(self, decode_message(each))
        return True

    def _end(self) -> None:
        if self.is_ended:
            return
        self.is_ended = True
        if self._killing is not None:
            self._killing.cancel()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            end_process(self._pidfd)
            self._pidfd = None
        self._listener.on_ended(self)
        if self.mark is not None:
            self.mark.close()
