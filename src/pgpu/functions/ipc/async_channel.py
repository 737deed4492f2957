"""The event loop's end of a connection, and an event loop that writes just before it sleeps.

Frames that are sent in one iteration of the loop leave in one write. Sending never blocks: bytes that the socket does not
take are counted in `waiting_bytes` and sent when it becomes writable.
"""

import asyncio
import os
import selectors
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pgpu.functions.ipc.blocking_channel import FILES_BYTES, READ_BYTES, files_in, take_oldest
from pgpu.functions.ipc.call_messages import CallFrame, Decoder, MalformedFrameError

FrameListener = Callable[[Sequence[CallFrame]], None]


class _Selector(selectors.DefaultSelector):
    """Runs deferred callbacks before each poll of the sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.deferred: list[Callable[[], None]] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # A callback may defer another one; all run before the poll, or their writes would wait for the next event.
        while self.deferred:
            due, self.deferred = self.deferred, []
            for call in due:
                call()
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        return ready


class CoalescingLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop with deferred callbacks that run at the end of an iteration, just before the poll.

    `call_soon` would cost one more iteration with a poll of all sockets: a fifth of a small call's cost.
    """

    def __init__(self) -> None:
        selector = _Selector()
        super().__init__(selector)
        self.pgpu_selector = selector


def before_sleep(loop: Any, call: Callable[[], None]) -> None:
    """Call a function once at the end of this iteration of the loop; it must not raise.

    It may write, but must not schedule: what it passes to `call_soon` runs only after the next poll.
    """
    if isinstance(loop, CoalescingLoop):
        loop.pgpu_selector.deferred.append(call)
    else:
        loop.call_soon(call)


class AsyncChannel:
    """One end of a stream socket, non-blocking."""

    def __init__(self, end: socket.socket, on_frames: FrameListener, on_end: Callable[[], None]) -> None:
        """Start to read.

        Args:
            end: A connected socket, which the channel then owns.
            on_frames: Called with complete frames only. It may close the channel; a `MalformedFrameError` that it raises
                ends the connection.
            on_end: Called once when the peer closed the connection or sent invalid frames; not after `close()`.
        """
        end.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self._end, self._on_frames, self._on_end = end, on_frames, on_end
        self._fd = end.fileno()
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder()
        self._view = memoryview(bytearray(READ_BYTES))
        self._buffers = [self._view]
        self._files: deque[int] = deque()
        self._unsent: list[bytes] = []
        self._waiting: deque[tuple[memoryview, int | None]] = deque()
        self.waiting_bytes = 0
        self._has_writer = False
        self.is_open = True
        # From here on `on_frames` may be called in any later iteration of the loop.
        self._loop.add_reader(self._fd, self._read)

    def send(self, frame: bytes, file: int | None = None) -> None:
        """Send a frame at the end of this iteration; the descriptor `file` is closed after the send. Ignored on a closed channel."""
        if not self.is_open:
            if file is not None:
                os.close(file)
            return
        if file is not None:
            # Earlier frames first: the peer matches descriptors to frames by their order.
            self.flush()
            self._waiting.append((memoryview(frame), file))
            self.waiting_bytes += len(frame)
            self._write_waiting()
            return
        if not self._unsent:
            before_sleep(self._loop, self.flush)
        self._unsent.append(frame)

    def flush(self) -> None:
        """Send all frames of this iteration now; for a caller that has no more to add."""
        if self._unsent and self.is_open:
            joined = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
            self._unsent.clear()
            self._waiting.append((memoryview(joined), None))
            self.waiting_bytes += len(joined)
            # With more than one entry a write is blocked already, and the loop continues it when the socket is writable.
            if len(self._waiting) == 1:
                self._write_waiting()

    def next_file(self) -> int:
        """Take the descriptor of the next memory file; call it once for each frame with `has_file`, in their order.

        Raises:
            MalformedFrameError: No descriptor was received.
        """
        return take_oldest(self._files)

    def drain_input(self) -> None:
        """Deliver all bytes that are in the socket, without waiting for more; used after the peer's process died."""
        while self.is_open and self._read():
            pass

    def close(self) -> None:
        """Close the socket and all descriptors that were not sent or not taken."""
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._end.close()
            for fd in [*self._files, *(file for _, file in self._waiting if file is not None)]:
                os.close(fd)

    def _read(self) -> bool:
        try:
            size_bytes, ancillary, _, _ = self._end.recvmsg_into(self._buffers, FILES_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            size_bytes, ancillary = 0, []
        for level, kind, content in ancillary:
            self._files.extend(files_in(level, kind, content))
        if not size_bytes:
            self._end_connection()
            return False
        try:
            self._on_frames(self._decoder.feed(bytes(self._view[:size_bytes])))
        except MalformedFrameError:
            self._end_connection()
            return False
        return True

    def _write_waiting(self) -> None:
        try:
            while self._waiting:
                view, file = self._waiting[0]
                sent = self._end.send(view) if file is None else socket.send_fds(self._end, [view], [file])
                if file is not None:
                    os.close(file)
                self.waiting_bytes -= sent
                # After a partial write the descriptor is gone; the rest is sent without one.
                if sent == len(view):
                    self._waiting.popleft()
                else:
                    self._waiting[0] = (view[sent:], None)
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._fd, self._write_waiting)
            self._has_writer = True
        except OSError:
            # The peer takes no more. The end of the connection is detected by a read, after the peer's last frames.
            self._remove_writer()
            for _, file in self._waiting:
                if file is not None:
                    os.close(file)
            self._waiting.clear()
            self.waiting_bytes = 0
        else:
            self._remove_writer()

    def _remove_writer(self) -> None:
        if self._has_writer:
            self._has_writer = False
            self._loop.remove_writer(self._fd)

    def _end_connection(self) -> None:
        if self.is_open:
            # Closed before the callback: it may create a new channel or inspect `is_open`.
            self.close()
            self._on_end()
