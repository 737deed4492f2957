"""In place of the streams of a container that an engine made: the engine carries them, so the job needs no monitor.

The job's log has what its runtime wrote at the start: where the output is. Clients connect as to a monitor, and get this and the
end of the job.
"""

import contextlib
import os
import socket
import time

from pgpu.engine.event_loop import READABLE, EventLoop
from pgpu.engine.settings import JobPaths
from pgpu.engine.streams.frames import FrameDecoder, Kind, decode_hello, encode_frame
from pgpu.engine.streams.log import log_bytes, stored
from pgpu.engine.streams.no_streams import NoStreams
from pgpu.engine.streams.records import STDERR, Record
from pgpu.engine.unix_sockets import bind, send_datagram
from pgpu.runtimes import Stdio
from pgpu.runtimes.job_monitor import OfferedMonitor

_BACKLOG = 128
_MOST_BYTES = 4096


class EnginesStreams(NoStreams):
    """In place of a `Carrier`: the log and its clients, without streams of the job. All methods are called in the job's thread."""

    def __init__(self, loop: EventLoop, places: JobPaths) -> None:
        """Accept clients from now on.

        Args:
            loop: Of the job's thread.
            places: Where the job's files are; they exist.
        """
        super().__init__()
        self._loop = loop
        self._places = places
        self._notice = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._clients: dict[socket.socket, FrameDecoder] = {}
        self._is_finished = False
        # The release before this one gave such a job a monitor, which may still run.
        send_datagram(places.control_socket, b"quit")
        self._listener = bind(socket.SOCK_STREAM, places.attach_socket)
        self._listener.listen(_BACKLOG)

    def open(self, offered: OfferedMonitor | None = None) -> Stdio:
        """Return /dev/null as input and output, and a pipe as standard error; ends a monitor that was offered."""
        nothing = super().open(offered)
        return Stdio(nothing.stdin, nothing.stdout, self._notice[1])

    def started(self) -> None:
        """Make the job's log of what was written to standard error, unless it has one of an earlier start."""
        with contextlib.suppress(OSError):  # nothing was written, or the disk is full: the container runs
            notice = os.read(self._notice[0], _MOST_BYTES)
            if not self._places.log.exists():
                self._places.log.write_bytes(log_bytes(Record(STDERR, notice, time.time_ns())))
        self._loop.watch(self._listener.fileno(), READABLE, lambda _: self._accept())

    def finish(self) -> None:
        """Send clients the end of the job."""
        self._is_finished = True
        for client in list(self._clients):
            self._answer(client, encode_frame(Kind.END))

    def close(self) -> None:
        """Close the connections and descriptors."""
        for client in list(self._clients):
            self._forget(client)
        self._loop.forget(self._listener.fileno())
        self._listener.close()
        for descriptor in self._notice:
            os.close(descriptor)
        super().close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the client has gone, or this process has no descriptor left
            client, _ = self._listener.accept()
            client.setblocking(False)  # noqa: FBT003 - its only form
            self._clients[client] = FrameDecoder()
            self._loop.watch(client.fileno(), READABLE, lambda _: self._read(client))

    def _read(self, client: socket.socket) -> None:
        """Answer a client's first frame with the log; its input is discarded."""
        try:
            data = client.recv(_MOST_BYTES)
            greetings = [frame for frame in self._clients[client].feed(data) if frame.kind is Kind.HELLO]
            offsets = [decode_hello(frame.payload).offset for frame in greetings]
            answers = [self._output_from(offset) for offset in offsets[:1]]
        except BlockingIOError:
            return
        except (OSError, ValueError):  # of the connection or of the log: neither concerns the container
            data, answers = b"", []
        if not data:
            self._forget(client)
        for answer in answers:
            self._answer(client, answer + (encode_frame(Kind.END) if self._is_finished else b""))

    def _output_from(self, offset: int) -> bytes:
        return b"".join(encode_frame(Kind.OUTPUT, part) for _, part in stored(self._places.log, offset))

    def _answer(self, client: socket.socket, data: bytes) -> None:
        try:
            client.sendall(data)  # far less than a socket's buffer
        except OSError:
            self._forget(client)

    def _forget(self, client: socket.socket) -> None:
        self._loop.forget(client.fileno())
        del self._clients[client]
        client.close()
