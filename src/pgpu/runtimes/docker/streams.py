"""Transfers bytes between a container's attach socket and the descriptors of a job's standard streams.

The socket is attached before the container starts, so that no byte is lost. With a terminal the bytes are raw; without one
the engine's frames name the stream.
"""

import contextlib
import os
import select
import socket
import threading
import tty

from pgpu.runtimes import Stdio

_CHUNK_BYTES = 65536
_FRAME_HEADER_BYTES = 8
_STDERR_FRAME = 2


class AttachedStreams:
    """Two threads around one attach socket: the container's output, and its input if it has one.

    Source: the stream format of `POST /containers/{id}/attach`, Docker Engine API 1.41.
    """

    def __init__(self, connection: socket.socket, stdio: Stdio, *, has_terminal: bool, has_stdin: bool) -> None:
        """Take ownership of `connection` and duplicate the descriptors. No transfer before `start`, which must follow."""
        self._connection = connection
        self._has_terminal = has_terminal
        self._stdin, self._stdout, self._stderr = (os.dup(fd) for fd in (stdio.stdin, stdio.stdout, stdio.stderr))
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        if has_terminal:
            # The line discipline is applied in the container; a second one here would echo and translate twice.
            tty.setraw(self._stdin)
        self._threads = [threading.Thread(target=self._carry_output, name="pgpu-container-output", daemon=True)]
        if has_stdin:
            self._threads.append(threading.Thread(target=self._carry_input, name="pgpu-container-input", daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wait_until_drained(self) -> None:
        """Block until the container's last byte was written, or the engine disconnected."""
        self._threads[0].join()

    def close(self) -> None:
        """Stop the threads and release all descriptors. Idempotent."""
        if self._connection.fileno() < 0:
            return
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        os.write(self._stop_write, b"x")
        for thread in self._threads:
            thread.join()
        self._connection.close()
        for descriptor in (self._stdin, self._stop_read, self._stop_write):
            os.close(descriptor)

    def _carry_output(self) -> None:
        with contextlib.suppress(OSError):
            if self._has_terminal:
                self._carry_plain()
            else:
                self._carry_frames()
        # Closed here and not in `close`, since readers of the output wait for end of file.
        os.close(self._stdout)
        os.close(self._stderr)

    def _carry_plain(self) -> None:
        while data := self._connection.recv(_CHUNK_BYTES):
            self._write(self._stdout, data)

    def _carry_frames(self) -> None:
        while header := self._receive_exactly(_FRAME_HEADER_BYTES):
            target = self._stderr if header[0] == _STDERR_FRAME else self._stdout
            left = int.from_bytes(header[4:], "big")
            while left and (data := self._connection.recv(min(left, _CHUNK_BYTES))):
                self._write(target, data)
                left -= len(data)

    def _receive_exactly(self, wanted_bytes: int) -> bytes:
        received = b""
        while len(received) < wanted_bytes:
            data = self._connection.recv(wanted_bytes - len(received))
            if not data:
                return b""
            received += data
        return received

    def _write(self, descriptor: int, data: bytes) -> None:
        """Write all bytes; blocks on a slow reader until the streams are closed.

        Without a reader the bytes are dropped: an engine whose client stops reading blocks the container.
        """
        view = memoryview(data)
        while view:
            self._wait_for(descriptor, select.POLLOUT)
            try:
                # A writable pipe accepts PIPE_BUF bytes without blocking, so `close` never waits for a reader.
                view = view[os.write(descriptor, view[: select.PIPE_BUF]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                return

    def _carry_input(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._read_input():
                self._connection.sendall(data)
            self._connection.shutdown(socket.SHUT_WR)

    def _read_input(self) -> bytes:
        while True:
            self._wait_for(self._stdin, select.POLLIN)
            try:
                return os.read(self._stdin, _CHUNK_BYTES)
            except BlockingIOError:
                continue

    def _wait_for(self, descriptor: int, event: int) -> None:
        poll = select.poll()
        poll.register(self._stop_read, select.POLLIN)
        poll.register(descriptor, event)
        if any(ready == self._stop_read for ready, _events in poll.poll()):
            raise _ClosedError


class _ClosedError(OSError):
    """The streams were closed while a thread waited."""
