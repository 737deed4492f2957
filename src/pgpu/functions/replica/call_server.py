"""The gateway's entrance to a replica: calls as frames over `calls.sock`, and status notifications.

Each connection has its own numbers. A connection gets the same answers as an HTTP client, refusals included: one with
`started_seconds` 0 and status 429 or 503 means that no worker has seen the call. The mode of the socket limits connections to its owner and root.
"""

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from pgpu.functions.ipc.async_channel import AsyncChannel
from pgpu.functions.ipc.call_messages import (
    Call,
    CallFrame,
    Chunk,
    Command,
    FrameKind,
    MalformedFrameError,
    Notification,
    Reply,
    decode_message,
    encode_frame,
)
from pgpu.functions.ipc.local_sockets import listening_socket
from pgpu.functions.replica.worker_queue import WorkerQueue
from pgpu.functions.replica.worker_supervisor import WorkerSupervisor
from pgpu.functions.requests.request_queue import PendingRequest

_BACKLOG = 64
_START_FIELD = 19
"""Of /proc/PID/stat, counted after the process name, which may contain spaces."""


class CallServer:
    """Accepts connections and answers their commands."""

    def __init__(self, queue: WorkerQueue, supervisor: WorkerSupervisor, path: Path) -> None:
        self.queue, self._supervisor = queue, supervisor
        self._loop = asyncio.get_running_loop()
        self.connections: set[CallConnection] = set()
        self._is_notifying = False
        self._born_seconds = _born_seconds()
        # Every change of the state is sent to all gateways that are connected.
        supervisor.on_state = self._on_state
        self._listening = listening_socket(path, _BACKLOG)
        self._loop.add_reader(self._listening, self._accept)

    def close(self) -> None:
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for connection in [*self.connections]:
            connection.close()

    def run_command(self, name: str) -> Notification:
        if name == "describe":
            return Notification("description", {"pages": self._supervisor.pages})
        if name == "park":
            self._supervisor.park()
        elif name == "wake":
            self._supervisor.wake()
        return self._state()

    def _state(self) -> Notification:
        supervisor, queue = self._supervisor, self.queue
        return Notification(
            "state",
            {
                "state": supervisor.state.value,
                "reason": supervisor.reason,
                "restarts": supervisor.restarts,
                "requests": queue.size,
                "born_seconds": self._born_seconds,
                "import_seconds": supervisor.import_seconds,
                "hot_since_seconds": queue.hot_since_seconds,
                "load_seconds": queue.load_seconds,
            },
        )

    def _accept(self) -> None:
        try:
            end, _ = self._listening.accept()
        except OSError:
            return  # the peer has left already, or there are no descriptors left; it retries
        connection = CallConnection(self, end)
        self.connections.add(connection)
        connection.notify(0, self._state())

    def _on_state(self) -> None:
        # Sent in the next iteration of the loop, when the other attributes have changed as well.
        if not self._is_notifying:
            self._is_notifying = True
            self._loop.call_soon(self._notify_all)

    def _notify_all(self) -> None:
        self._is_notifying = False
        for connection in self.connections:
            connection.notify(0, self._state())


class CallConnection:
    """One connection of a gateway."""

    def __init__(self, server: CallServer, end: socket.socket) -> None:
        self._server = server
        self._requests: dict[int, PendingRequest] = {}
        self._channel = AsyncChannel(end, self._on_frames, self._on_end)

    def notify(self, number: int, notification: Notification) -> None:
        self._channel.send(encode_frame(FrameKind.NOTIFICATION, number, notification))

    def reply(self, number: int, reply: Reply, file: int | None) -> None:
        if reply.is_last:
            self._requests.pop(number, None)
        fields = (reply.status, reply.headers, reply.body, reply.is_last, reply.started_seconds, reply.exec_seconds)
        self._channel.send(encode_frame(FrameKind.REPLY, number, fields, has_file=file is not None), file)

    def chunk(self, number: int, chunk: Chunk, file: int | None) -> None:
        if chunk.is_last:
            self._requests.pop(number, None)
        self._channel.send(encode_frame(FrameKind.CHUNK, number, chunk, has_file=file is not None), file)

    def close(self) -> None:
        """Close the connection and cancel its requests."""
        self._channel.close()
        self._on_end()

    def _on_end(self) -> None:
        self._server.connections.discard(self)
        requests, self._requests = self._requests, {}
        for request in requests.values():
            self._server.queue.abandon(request)

    def _on_frames(self, frames: Sequence[CallFrame]) -> None:
        for frame in frames:
            if frame.kind == FrameKind.CALL:
                self._on_call(frame)
            elif frame.kind == FrameKind.CANCEL:
                if (request := self._requests.pop(frame.number, None)) is not None:
                    self._server.queue.abandon(request)
            elif frame.kind == FrameKind.CREDIT:
                if (request := self._requests.get(frame.number)) is not None:
                    self._server.queue.credit(request)
            elif frame.kind == FrameKind.COMMAND:
                command: Command = decode_message(frame)
                if command.name == "give_back":
                    self._server.queue.give_back([*self._requests.values()])
                self.notify(frame.number, self._server.run_command(command.name))

    def _on_call(self, frame: CallFrame) -> None:
        call: Call = decode_message(frame)
        if frame.number in self._requests:
            raise MalformedFrameError("a number that is in use")
        # Taken only after the checks above: a refused frame's descriptor is closed with the connection.
        file = self._channel.next_file() if frame.has_file else None
        now = time.monotonic()
        request = PendingRequest(
            call.id, call.method, call.path, call.query, call.headers, call.body, file, now, now + call.timeout_seconds,
            call.timeout_seconds, CallConnectionSink(self, frame.number),
        )  # fmt: skip
        self._requests[frame.number] = request
        self._server.queue.submit(request)


class CallConnectionSink:
    """The sink of one call of a connection."""

    __slots__ = ("_connection", "_number")

    def __init__(self, connection: CallConnection, number: int) -> None:
        self._connection, self._number = connection, number

    def reply(self, reply: Reply, file: int | None) -> None:
        self._connection.reply(self._number, reply, file)

    def chunk(self, chunk: Chunk, file: int | None) -> None:
        self._connection.chunk(self._number, chunk, file)


def _born_seconds() -> float:
    """Return the start time of this process on the monotonic clock; accurate to a hundredth of a second."""
    fields = Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    since_boot = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot
