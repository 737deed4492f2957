"""The worker's end of a connection: blocking reads and writes without an event loop.

One thread reads; any thread may write. A worker that runs one call at a time needs two system calls for each.
"""

import array
import os
import select
import socket
import threading
from collections import deque

from pgpu.errors import PgpuError
from pgpu.functions.ipc.call_messages import CallFrame, Decoder, MalformedFrameError

READ_BYTES = 256 * 1024
"""Size of the one receive buffer. Received bytes are copied out of it: a new buffer of this size for each read would be mapped and unmapped each time."""

_MOST_FILES = 64
FILES_BYTES = socket.CMSG_SPACE(_MOST_FILES * array.array("i").itemsize)


class GoneError(PgpuError):
    """The peer closed the connection during a send."""


class BlockingChannel:
    """One end of a socket pair, blocking."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._readable = select.poll()
        self._readable.register(end, select.POLLIN)
        self._decoder = Decoder()
        self._view = memoryview(bytearray(READ_BYTES))
        self._buffers = [self._view]
        self._files: deque[int] = deque()
        self._queued: list[bytes] = []
        self._write_lock = threading.Lock()
        self.is_ended = False

    def receive(self, *, is_waiting: bool) -> list[CallFrame]:
        """Read the frames that have arrived; optionally wait for the first bytes.

        Returns:
            Empty where no frame is complete; `is_ended` is then True if the peer closed the connection.

        Raises:
            MalformedFrameError: The peer sent bytes that are no valid frames.
        """
        if is_waiting:
            # poll(), not a blocking recvmsg(): a reader asleep in recvmsg() is woken a second time when its own last frame is taken.
            self._readable.poll()
        try:
            size_bytes, ancillary, _, _ = self._end.recvmsg_into(self._buffers, FILES_BYTES, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return []
        except ConnectionError:
            size_bytes, ancillary = 0, []
        # Descriptors arrive with the first byte of their frame, in order; frames with `has_file` take them in the same order.
        for level, kind, content in ancillary:
            self._files.extend(files_in(level, kind, content))
        # A stream socket returns 0 bytes only at its end.
        self.is_ended = not size_bytes
        return self._decoder.feed(bytes(self._view[:size_bytes]))

    def next_file(self) -> int:
        """Take the descriptor of the next memory file; call it once for each frame with `has_file`, in their order.

        Raises:
            MalformedFrameError: No descriptor was received.
        """
        return take_oldest(self._files)

    def queue(self, frame: bytes) -> None:
        """Send this frame with the next flush."""
        with self._write_lock:
            self._queued.append(frame)

    def flush(self) -> None:
        """Send all queued frames with one system call; block until the socket has taken them.

        Raises:
            GoneError: The peer closed the connection.
        """
        # Checked without the lock: only the thread that queued a frame depends on its flush.
        if self._queued:
            with self._write_lock:
                self._send_queued()

    def send(self, frame: bytes, file: int | None = None) -> None:
        """Send a frame now, after all queued ones; the descriptor `file` is closed.

        Raises:
            GoneError: The peer closed the connection.
        """
        with self._write_lock:
            if file is None:
                self._queued.append(frame)
                self._send_queued()
                return
            try:
                self._send_queued()
                # The descriptor goes with the first bytes; sendmsg may take only a part of the frame, the rest follows without it.
                sent = socket.send_fds(self._end, [frame], [file])
                self._end.sendall(memoryview(frame)[sent:])
            except OSError as error:
                raise GoneError("the peer closed the connection") from error
            finally:
                os.close(file)

    def _send_queued(self) -> None:
        if self._queued:
            frames, self._queued = b"".join(self._queued), []
            try:
                self._end.sendall(frames)
            except OSError as error:
                raise GoneError("the peer closed the connection") from error

    def is_readable(self, timeout_seconds: float) -> bool:
        return bool(select.select([self._end], [], [], timeout_seconds)[0])

    def fileno(self) -> int:
        return self._end.fileno()

    def close(self) -> None:
        """Close the socket and all descriptors that were received but not taken."""
        self._end.close()
        while self._files:
            os.close(self._files.popleft())


def files_in(level: int, kind: int, content: bytes) -> list[int]:
    """Extract the descriptors from one ancillary message."""
    if (level, kind) != (socket.SOL_SOCKET, socket.SCM_RIGHTS):
        return []
    numbers = array.array("i")
    numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
    return list(numbers)


def take_oldest(files: deque[int]) -> int:
    """Take the oldest descriptor.

    Raises:
        MalformedFrameError: There is none, although a frame had the flag `HAS_FILE`.
    """
    if not files:
        raise MalformedFrameError("a frame without its file")
    return files.popleft()
