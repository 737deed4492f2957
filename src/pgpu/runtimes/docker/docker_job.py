"""A started container as a running job: its end, its signals, its streams.

One thread transfers the container's output and then receives its exit code, a second one transfers its input if it has one. The
engine may disconnect and come back while the container runs or ends. The job counts as ended only when the engine reports it, or when the engine stays away and the container's first
process is gone. The socket is attached before the container starts, so that no byte is lost. With a terminal the bytes are
raw; without one the engine's frames name the stream.
"""

import contextlib
import os
import select
import socket
import threading
import tty
from pathlib import Path

from pgpu.host.process_identity import identify_unreaped
from pgpu.model import ContainerHolder
from pgpu.runtimes import Stdio
from pgpu.runtimes.docker.docker_engine import DockerEngine, EngineGoneError

_CHUNK_BYTES = 65536
_FRAME_HEADER_BYTES = 8
_STDERR_FRAME = 2


class AttachedStreams:
    """One attach socket: the container's output, carried by the caller's thread, and its input, by a thread of its own.

    Source: the stream format of `POST /containers/{id}/attach`, Docker Engine API 1.41.
    """

    def __init__(self, connection: socket.socket, stdio: Stdio, *, has_terminal: bool, has_stdin: bool) -> None:
        """Take ownership of `connection` and duplicate the descriptors."""
        self._connection = connection
        self._has_terminal = has_terminal
        self._stdin, self._stdout, self._stderr = (os.dup(fd) for fd in (stdio.stdin, stdio.stdout, stdio.stderr))
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        if has_terminal:
            # The line discipline is applied in the container; a second one here would echo and translate twice.
            tty.setraw(self._stdin)
        self._outputs = [self._stdout, self._stderr]
        self._input = None
        if has_stdin:
            self._input = threading.Thread(target=self._carry_input, name="pgpu-container-input", daemon=True)
        self._carrying = threading.Lock()

    def carry(self) -> None:
        """Carry the streams until the container's last byte was written, the engine disconnected, or `close` is called."""
        with self._carrying:
            if self._connection.fileno() < 0:
                return
            if self._input is not None:
                self._input.start()
            with contextlib.suppress(OSError):
                if self._has_terminal:
                    self._carry_plain()
                else:
                    self._carry_frames()
            self._close_outputs()

    def close(self) -> None:
        """Stop the transfer and release all descriptors. Idempotent."""
        if self._connection.fileno() < 0:
            return
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        # Both threads poll this pipe as well, so that a slow reader or a silent input does not delay their ends.
        os.write(self._stop_write, b"x")
        with self._carrying:
            if self._input is not None and self._input.ident is not None:
                self._input.join()
            self._connection.close()
            self._close_outputs()
            for descriptor in (self._stdin, self._stop_read, self._stop_write):
                os.close(descriptor)

    def _close_outputs(self) -> None:
        # Readers of the output wait for end of file.
        while self._outputs:
            os.close(self._outputs.pop())

    def _carry_plain(self) -> None:
        while data := self._connection.recv(_CHUNK_BYTES):
            self._write(self._stdout, data)

    def _carry_frames(self) -> None:
        while header := self._receive_exactly(_FRAME_HEADER_BYTES):
            # Frame header: byte 0 is the stream, bytes 4 to 7 are the length in big-endian order.
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
            # End of the input: the container reads end of file, while its output continues on the same connection.
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


_RETRY_SECONDS = 1.0
_ENGINE_AWAY_SECONDS = 60.0
"""Time to wait for a returning engine and its exit code, after the container's first process is gone."""


class DockerJob:
    """One container with the thread that waits for its end."""

    def __init__(
        self,
        engine: DockerEngine,
        holder: ContainerHolder,
        main_pid: int | None,
        streams: AttachedStreams | None,
        *,
        removes_container: bool,
    ) -> None:
        """Start the waiting thread.

        Args:
            engine: Where the container is.
            holder: The container.
            main_pid: Host PID of its first process; None if it ended or is on another machine.
            streams: Its streams, carried from now on; None if there are none.
            removes_container: True if `close` removes the container once it ended.
        """
        self._engine = engine
        self._holder = holder
        # Identified as early as possible: after the container's end the PID may be reused.
        self._main = identify_unreaped(main_pid) if main_pid else None
        self._namespace = _pid_namespace(main_pid) if main_pid else None
        self._streams = streams
        self._removes_container = removes_container
        self._exit_code: int | None = None
        self._was_killed = False
        self._ended = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = threading.Event()
        self._settling = threading.Lock()
        threading.Thread(target=self._wait_for_end, name="pgpu-container-wait", daemon=True).start()

    @property
    def holder(self) -> ContainerHolder:
        return self._holder

    def fileno(self) -> int:
        """Return a descriptor that polls readable once the container has ended and its last byte was transferred."""
        return self._ended

    def exit_code(self) -> int | None:
        """Return the container's exit code after its end; None while it runs, or if the engine has no record of it."""
        return self._exit_code

    def is_alive(self) -> bool:
        """True until the waiting thread has seen the end."""
        poll = select.poll()
        poll.register(self._ended, select.POLLIN)
        return not poll.poll(0)

    def owns(self, pid: int) -> bool:
        """True if a process of the host runs in this container, started by it or by `docker exec`."""
        namespace = _pid_namespace(pid)
        if namespace is not None and namespace == self._namespace:
            return True
        with contextlib.suppress(OSError):
            return self._holder.container_id in Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii")
        return False

    def signal(self, number: int) -> None:
        """Send a signal to the container's first process; no effect if it has ended."""
        self._engine.signal(self._holder.container_id, number)

    def kill(self) -> None:
        """End all processes of the container, also of a paused one; no effect if it has ended."""
        self._engine.kill(self._holder.container_id)
        self._was_killed = True

    def resize_terminal(self, size: os.terminal_size) -> None:
        """Set the terminal size in characters; no effect if the container has ended."""
        self._engine.resize(self._holder.container_id, size)

    def close(self) -> None:
        """Release all resources; remove the container if it ended and its job requested that. Idempotent."""
        if self._closing.is_set():
            return
        is_over = self._was_killed or not self.is_alive()
        # Under the lock: the waiting thread must not write to the eventfd after it is closed below.
        with self._settling:
            self._closing.set()
        if self._streams is not None:
            self._streams.close()
        if is_over and self._removes_container:
            self._engine.remove(self._holder.container_id)
        os.close(self._ended)

    def _wait_for_end(self) -> None:
        pending = exit_code = None
        try:
            with contextlib.suppress(EngineGoneError):
                # Before the output is carried: a container that is removed by force is gone after its end.
                pending = self._engine.begin_wait(self._holder.container_id)
            if self._streams is not None:
                self._streams.carry()
            exit_code = self._await_exit_code(pending)
        finally:  # also if no thread could be started for the input: a job that does not end keeps its memory
            with self._settling:
                # After `close` the eventfd's number may belong to another file.
                if not self._closing.is_set():
                    self._exit_code = exit_code
                    os.eventfd_write(self._ended, 1)

    def _await_exit_code(self, pending: socket.socket | None) -> int | None:
        away_seconds = 0.0
        # A wait fails while the engine restarts. It is repeated as long as the first process lives, and for a minute afterwards.
        while not self._closing.is_set() and away_seconds < _ENGINE_AWAY_SECONDS:
            try:
                if pending is None:
                    pending = self._engine.begin_wait(self._holder.container_id)
                return self._engine.end_wait(pending)
            except EngineGoneError:
                pending = None
                # A pause that `close` ends early.
                self._closing.wait(_RETRY_SECONDS)
                away_seconds = 0.0 if self._has_main_process() else away_seconds + _RETRY_SECONDS
        if pending is not None:
            pending.close()
        return None

    def _has_main_process(self) -> bool:
        return self._main is not None and identify_unreaped(self._main.pid) == self._main


def _pid_namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None
