"""The replica's view of its zygote and worker: processes, channels, notifications; and of the kernel's OOM kills."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from pgpu.functions.ipc.async_channel import AsyncChannel
from pgpu.functions.ipc.call_messages import CallFrame, Command, FrameKind, Notification, decode_message, encode_frame
from pgpu.functions.ipc.memory_files import StartedMark
from pgpu.functions.replica.startup import ZygoteProcess
from pgpu.functions.worker.child_processes import end_children

HANGING_GRACE_SECONDS = 1.0
"""Between SIGTERM and SIGKILL for a worker that hangs: time to flush its output, not to finish its work."""

LEAVING_GRACE_SECONDS = 8.0
"""The same for a healthy worker, for its close(); below the ten seconds that Docker gives a container."""

_OOM_FILES = (
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory/memory.oom_control"),
)
"""OOM kill counts of cgroup v2 and v1, as a container sees its own. Source: the kernel's cgroup-v2.rst, memory.rst."""


class WorkerListener(Protocol):
    """Receives a worker's events."""

    def on_notification(self, worker: "WorkerProcess", notification: Notification) -> None:
        """The worker is ready, failed to start, or answered a health probe."""

    def on_frames(self, frames: Sequence[CallFrame]) -> None:
        """Replies and chunks arrived."""

    def on_ended(self, worker: "WorkerProcess") -> None:
        """The worker or its socket has ended; all frames that it had sent were delivered."""


def end_process(pidfd: int) -> None:
    """Kill a process, if it is alive, and close its descriptor."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)


class WorkerProcess:
    """A worker from the spawn command to its end."""

    def __init__(self, end: socket.socket, listener: WorkerListener) -> None:
        """Read from the replica's end of the worker's socket pair."""
        self._listener = listener
        self.channel = AsyncChannel(end, self._on_frames, self._on_end)
        self.mark: StartedMark | None = None
        self.is_ready = False
        self.is_ended = False
        self.failure: str | None = None
        """Type of the exception that its constructor raised."""

        self._pidfd: int | None = None
        self._loop = asyncio.get_running_loop()
        self._kill_timer: asyncio.TimerHandle | None = None

    @property
    def is_ending(self) -> bool:
        return self._kill_timer is not None

    def set_process(self, pidfd: int) -> None:
        """Watch its process through a pidfd, which shows its death even if another process still holds its socket."""
        if self.is_ended:
            end_process(pidfd)
            return
        self._pidfd = pidfd
        self._loop.add_reader(pidfd, self._on_death)

    def end(self, grace_seconds: float) -> None:
        """Send SIGTERM, and SIGKILL after the grace period."""
        if self._kill_timer is None and not self.is_ended:
            self._signal(signal.SIGTERM)
            self._kill_timer = self._loop.call_later(grace_seconds, self.kill)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        # Not forked yet, or its pidfd has not arrived: set_process() kills it then.
        if self._pidfd is None:
            self.channel.close()
            self._finish()

    def _signal(self, number: int) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _on_end(self) -> None:
        # A worker that gets SIGTERM closes its socket first and then runs Python's exit handlers: wait for its death.
        if self._kill_timer is None or self._pidfd is None:
            self._finish()

    def _on_death(self) -> None:
        # The socket may hold replies that the worker wrote before it died.
        self.channel.drain_input()
        self.channel.close()
        self._finish()

    def _on_frames(self, frames: Sequence[CallFrame]) -> None:
        for frame in frames:
            if frame.kind == FrameKind.NOTIFICATION:
                self._listener.on_frames([each for each in frames if not self._is_notification(each)])
                return
        self._listener.on_frames(frames)

    def _is_notification(self, frame: CallFrame) -> bool:
        """Process a notification; False for any other frame."""
        if frame.kind != FrameKind.NOTIFICATION:
            return False
        if frame.has_file:
            fd = self.channel.next_file()
            self.mark = StartedMark(fd)
            os.close(fd)
        self._listener.on_notification(self, decode_message(frame))
        return True

    def _finish(self) -> None:
        if self.is_ended:
            return
        self.is_ended = True
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            end_process(self._pidfd)
            self._pidfd = None
        self._listener.on_ended(self)
        # After on_ended(): the queue reads the mark there.
        if self.mark is not None:
            self.mark.close()


class ZygoteConnection:
    """The connection to one zygote process."""

    def __init__(
        self,
        zygote: ZygoteProcess,
        on_notification: Callable[[int, Notification, int | None], None],
        on_end: Callable[[], None],
    ) -> None:
        """Start to read.

        Args:
            zygote: The process.
            on_notification: Called with the number of the command, 0 for a status change, with the notification, and with
                the descriptor that came with it.
            on_end: Called once when the process has ended, unless `kill()` ended it.
        """
        self._on_notification, self._on_end = on_notification, on_end
        self._process = zygote.process
        self._channel = AsyncChannel(zygote.end, self._on_frames, self._end)
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._on_death)

    def spawn_worker(self, number: int, end: socket.socket) -> None:
        """Have it fork a worker that serves the other end of this socket's pair; this end is closed here."""
        self._channel.send(encode_frame(FrameKind.COMMAND, number, Command("spawn"), has_file=True), end.detach())

    def kill(self) -> None:
        """Kill it with its workers."""
        self._channel.close()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        # Its workers die with it (PR_SET_PDEATHSIG); what they had started becomes a child of this process.
        self._process.kill()
        self._process.wait()
        end_children()

    def _on_death(self) -> None:
        # A process that the function's module started may hold the socket open: the pidfd shows the zygote's death.
        self._channel.drain_input()
        if self._channel.is_open:
            self._end()

    def _on_frames(self, frames: Sequence[CallFrame]) -> None:
        for frame in frames:
            file = self._channel.next_file() if frame.has_file else None
            self._on_notification(frame.number, decode_message(frame), file)

    def _end(self) -> None:
        self.kill()
        self._on_end()


class OomKillCounter:
    """Detects OOM kills in this container from the control group's count; the kernel does not report which process it killed."""

    def __init__(self, places: Sequence[Path] = _OOM_FILES) -> None:
        """Begin with the current count."""
        self._places = places
        self._count = self._read()

    def is_another(self) -> bool:
        """Whether the count has grown since the last call; False where no control group is visible."""
        before, self._count = self._count, self._read()
        return self._count > before

    def _read(self) -> int:
        for place in self._places:
            try:
                lines = place.read_text("ascii").splitlines()
                return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
            except (OSError, ValueError, IndexError, StopIteration):
                continue
        return 0
