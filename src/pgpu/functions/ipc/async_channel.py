"""The event loop's end of a connection: whoever runs asyncio and must never block.

Frames written in one turn of the loop leave together, in one write before the loop sleeps, where the loop is one of
`coalescing.py`, else in the next turn. It refuses to wait for the other side: what is not taken yet is counted, and
its user looks at `waiting_bytes` before it writes more.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from pgpu.functions.ipc.blocking_channel import FILES_BYTES, READ_BYTES, files_in, take_oldest
from pgpu.functions.ipc.call_frames import Decoder, Frame, MalformedFrameError
from pgpu.functions.ipc.coalescing_loop import before_sleep

FrameListener = Callable[[Sequence[Frame]], None]


class AsyncChannel:
    """One end of a stream socket, non-blocking."""

    def __init__(self, end: socket.socket, on_frames: FrameListener, on_end: Callable[[], None]) -> None:
        """Begin to read.

        Args:
            end: Connected; the channel's from now on.
            on_frames: Called with what came, whole frames only. It may close the channel. `MalformedFrameError` out of
                it ends the connection.
            on_end: Called once, when the other side left or spoke nonsense; not after `close()`.
        """
        end.setblocking(False)  # noqa: FBT003 - the socket's own word
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
        self._is_held_up = False
        self.is_open = True
        self._loop.add_reader(self._fd, self._read)

    def send(self, written: bytes, file: int | None = None) -> None:
        """Send a frame, soon; the file's descriptor is closed once it left. Nothing happens on a closed channel."""
        if not self.is_open:
            if file is not None:
                os.close(file)
            return
        if file is not None:
            self.flush()
            self._waiting.append((memoryview(written), file))
            self.waiting_bytes += len(written)
            self._write_waiting()
            return
        if not self._unsent:
            before_sleep(self._loop, self.flush)
        self._unsent.append(written)

    def flush(self) -> None:
        """Send what was put off now, for somebody who has nothing else to do."""
        if self._unsent and self.is_open:
            together = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
            self._unsent.clear()
            self._waiting.append((memoryview(together), None))
            self.waiting_bytes += len(together)
            if len(self._waiting) == 1:
                self._write_waiting()

    def next_file(self) -> int:
        """Take the descriptor that came with a frame; in the order of the frames that have one.

        Raises:
            MalformedFrameError: None came.
        """
        return take_oldest(self._files)

    def drain_input(self) -> None:
        """Hand on what still lies in the socket, without waiting for more: the other side is known to be dead."""
        while self.is_open and self._read():
            pass

    def close(self) -> None:
        """Close it, with the files that nobody took."""
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
            self._end_it()
            return False
        try:
            self._on_frames(self._decoder.feed(bytes(self._view[:size_bytes])))
        except MalformedFrameError:
            self._end_it()
            return False
        return True

    def _write_waiting(self) -> None:
        try:
            while self._waiting:
                self._write_first()
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._fd, self._write_waiting)
            self._is_held_up = True
        except OSError:
            self._waiting_bytes_lost()
        else:
            self._write_no_more()

    def _write_no_more(self) -> None:
        if self._is_held_up:
            self._is_held_up = False
            self._loop.remove_writer(self._fd)

    def _write_first(self) -> None:
        view, file = self._waiting[0]
        sent = self._end.send(view) if file is None else socket.send_fds(self._end, [view], [file])
        if file is not None:
            os.close(file)
        self.waiting_bytes -= sent
        if sent == len(view):
            self._waiting.popleft()
        else:
            self._waiting[0] = (view[sent:], None)

    def _waiting_bytes_lost(self) -> None:
        """Nobody will take them; the end itself is found by reading, after what the other side said last."""
        self._write_no_more()
        for _, file in self._waiting:
            if file is not None:
                os.close(file)
        self._waiting.clear()
        self.waiting_bytes = 0

    def _end_it(self) -> None:
        if self.is_open:
            self.close()
            self._on_end()
