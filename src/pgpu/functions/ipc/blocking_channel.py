"""The worker's end of a connection: plain reads and writes that wait, and looks that do not.

One thread reads; any may write. Frames that are put off are sent together by the next `flush()`. It refuses to run an
event loop: a lane of one call at a time is two system calls for each.
"""

import array
import os
import select
import socket
import threading
from collections import deque

from pgpu.errors import PgpuError
from pgpu.functions.ipc.call_frames import Decoder, Frame, MalformedFrameError

READ_BYTES = 256 * 1024
"""Read into one buffer and copied out: bytes of this size for each read would be mapped and unmapped each time."""

_MOST_FILES = 64
FILES_BYTES = socket.CMSG_SPACE(_MOST_FILES * array.array("i").itemsize)


class GoneError(PgpuError):
    """The other side left while something was being sent to it."""


class BlockingChannel:
    """One end of a socket pair, blocking."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._waiting = select.poll()
        self._waiting.register(end, select.POLLIN)
        self._decoder = Decoder()
        self._view = memoryview(bytearray(READ_BYTES))
        self._buffers = [self._view]
        self._files: deque[int] = deque()
        self._put_off: list[bytes] = []
        self._writing = threading.Lock()
        self.is_ended = False

    def receive(self, *, is_waiting: bool) -> list[Frame]:
        """Read the frames that came; wait until something did, or only look.

        Returns:
            No frame where nothing whole was there; `is_ended` says whether there will ever be one again.

        Raises:
            MalformedFrameError: The other side does not speak frames.
        """
        if is_waiting:
            self._waiting.poll()  # a reader that sleeps in its read wakes once more when its own last frame is taken
        try:
            size_bytes, ancillary, _, _ = self._end.recvmsg_into(self._buffers, FILES_BYTES, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return []
        except ConnectionError:
            size_bytes, ancillary = 0, []
        for level, kind, content in ancillary:
            self._files.extend(files_in(level, kind, content))
        self.is_ended = not size_bytes
        return self._decoder.feed(bytes(self._view[:size_bytes]))

    def next_file(self) -> int:
        """Take the descriptor of the oldest memory file that came; frames that have one take theirs in order.

        Raises:
            MalformedFrameError: None came.
        """
        return take_oldest(self._files)

    def put_off(self, written: bytes) -> None:
        """Send this frame with the next flush."""
        with self._writing:
            self._put_off.append(written)

    def flush(self) -> None:
        """Send what was put off, in one go; wait until the other side took it.

        Raises:
            GoneError: It left.
        """
        if self._put_off:
            with self._writing:
                self._send_put_off()

    def send(self, written: bytes, file: int | None = None) -> None:
        """Send a frame now, after what was put off before it; the file's descriptor is closed.

        Raises:
            GoneError: The other side left.
        """
        with self._writing:
            if file is None:
                self._put_off.append(written)
                self._send_put_off()
            else:
                self._send_with_file(written, file)

    def _send_with_file(self, written: bytes, file: int) -> None:
        try:
            self._send_put_off()
            sent = socket.send_fds(self._end, [written], [file])
            self._end.sendall(memoryview(written)[sent:])
        except OSError as error:
            raise GoneError("the other side has left") from error
        finally:
            os.close(file)

    def _send_put_off(self) -> None:
        if self._put_off:
            written, self._put_off = b"".join(self._put_off), []
            try:
                self._end.sendall(written)
            except OSError as error:
                raise GoneError("the other side has left") from error

    def is_readable(self, timeout_seconds: float) -> bool:
        """Wait until something came or the time is over."""
        return bool(select.select([self._end], [], [], timeout_seconds)[0])

    def fileno(self) -> int:
        """Return the socket's descriptor, to watch it."""
        return self._end.fileno()

    def close(self) -> None:
        """Close the socket and the files that nobody took."""
        self._end.close()
        while self._files:
            os.close(self._files.popleft())


def files_in(level: int, kind: int, content: bytes) -> list[int]:
    """Read the descriptors out of an ancillary message."""
    if (level, kind) != (socket.SOL_SOCKET, socket.SCM_RIGHTS):
        return []
    numbers = array.array("i")
    numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
    return list(numbers)


def take_oldest(files: deque[int]) -> int:
    """Take the oldest descriptor.

    Raises:
        MalformedFrameError: There is none, though a frame said so.
    """
    if not files:
        raise MalformedFrameError("a frame without its file")
    return files.popleft()
