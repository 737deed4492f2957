"""A WebSocket to a server as a socket that can be polled, read and written by different threads.

The protocol is the `websockets` library's sans-I/O implementation: one thread waits for output, signals and the window,
another sends input.
"""

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from pgpu.errors import PgpuBug, PgpuError
from pgpu.services import wire

_CHUNK_BYTES = 1 << 18
_HANDSHAKE_SECONDS = 120.0
_FIRST_SERVER_ERROR_STATUS = 500


class WebSocketChannel:
    """One WebSocket, in binary messages."""

    def __init__(self, connection: socket.socket, path: str, headers: Mapping[str, str]) -> None:
        """Make the handshake over a new connection; blocks.

        Raises:
            PgpuError: The error that the server answered.
            OSError: The server is gone.
        """
        self._connection = connection
        self._guard = threading.Lock()
        """Held for each use of the protocol object or the socket, never while blocking."""

        self._writing = threading.Lock()
        """Held for a whole frame, so that the frames of two threads do not mix."""

        self._protocol = ClientProtocol(parse_uri(f"ws://pgpu{path}"), max_size=None)
        request = self._protocol.connect()
        request.headers.update(headers)
        self._protocol.send_request(request)
        connection.settimeout(_HANDSHAKE_SECONDS)
        for data in self._protocol.data_to_send():
            if data:
                # A server that refuses early closes its side first: the answer is read anyway.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(data)
        self._early = self._shake_hands()
        connection.settimeout(0)

    def _shake_hands(self) -> list[bytes]:
        """Return the messages that came right behind the answer."""
        while True:
            data = self._connection.recv(_CHUNK_BYTES)
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            events = self._protocol.events_received()
            if events or not data:
                self._check_answer()
                return _payloads(events)

    def _check_answer(self) -> None:
        refusal = self._protocol.handshake_exc
        if isinstance(refusal, InvalidStatus):
            answer = refusal.response
            is_json = answer.headers.get("Content-Type", "").startswith("application/json")
            if answer.status_code >= _FIRST_SERVER_ERROR_STATUS and not is_json:
                # Uvicorn's own answer: a server that shuts down drops its requests that way.
                raise ConnectionResetError(str(refusal))
            try:
                error = wire.decode_error(wire.parse(bytes(answer.body or b"")))
            except PgpuError as exc:
                error = PgpuBug(f"the server's answer cannot be understood: {exc}")
            raise error
        if refusal is not None:
            raise ConnectionResetError(str(refusal))

    def fileno(self) -> int:
        """Return the descriptor to poll; see `is_ready`."""
        return self._connection.fileno()

    @property
    def is_ready(self) -> bool:
        """Whether `receive` has data already, which a poll of the descriptor would miss."""
        return bool(self._early) or (isinstance(self._connection, ssl.SSLSocket) and self._connection.pending() > 0)

    def receive(self) -> Sequence[bytes] | None:
        """Return the messages that have arrived; None once the connection is closed."""
        if self._early:
            early, self._early = self._early, []
            return early
        with self._guard:
            try:
                data = self._connection.recv(_CHUNK_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return []
            except OSError:
                return None
            if not data:
                return None
            self._protocol.receive_data(data)
            messages = _payloads(self._protocol.events_received())
            replies = b"".join(self._protocol.data_to_send())
        # Pongs and the close frame are dropped while the other thread is within a frame: waiting for it here would stop
        # the reader, and the server may wait for the reader.
        if replies and self._writing.acquire(blocking=False):
            with contextlib.suppress(OSError):  # The next read reports it.
                self._send(replies)
            self._writing.release()
        return messages if messages or self._protocol.close_rcvd is None else None

    def sendall(self, data: bytes, /) -> None:
        """Send one message; blocks until the socket has taken it.

        Raises:
            OSError: The server is gone.
        """
        with self._guard:
            self._protocol.send_binary(data)
            outgoing = b"".join(self._protocol.data_to_send())
        with self._writing:
            self._send(outgoing)

    def _send(self, data: bytes) -> None:
        # The guard is released between two pieces: a server that waits for this client to read accepts nothing more.
        view = memoryview(data)
        while view:
            try:
                with self._guard:
                    sent = self._connection.send(view)
                view = view[sent:]
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                poll = select.poll()
                poll.register(self._connection, select.POLLOUT)
                poll.poll()

    def close(self) -> None:
        """Close the connection without a closing handshake."""
        self._connection.close()


def _payloads(events: Sequence[object]) -> list[bytes]:
    kinds = {Opcode.BINARY, Opcode.CONT}
    return [bytes(event.data) for event in events if isinstance(event, Frame) and event.opcode in kinds]
