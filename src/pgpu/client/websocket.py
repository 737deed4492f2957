"""A WebSocket to a server as the socket that an attached client polls, reads and writes.

The protocol is the `websockets` library's, without its loop: one thread waits for output, signals and the window, another
sends input. This module refuses to know what the bytes mean.
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
from websockets.http11 import Response
from websockets.uri import parse_uri

from pgpu.errors import PgpuBug, PgpuError
from pgpu.services import wire

_CHUNK_BYTES = 1 << 18
_HANDSHAKE_SECONDS = 120.0
_FAILED = 500


class WebSocketChannel:
    """One WebSocket; closed by `close`."""

    def __init__(self, connection: socket.socket, path: str, headers: Mapping[str, str]) -> None:
        """Ask for a WebSocket over a fresh connection, and wait until it is one.

        Raises:
            PgpuError: The server refused, in its own words.
            OSError: The server is gone.
        """
        self._connection = connection
        self._guard = threading.Lock()
        self._writing = threading.Lock()
        self._protocol = ClientProtocol(parse_uri(f"ws://pgpu{path}"), max_size=None)
        request = self._protocol.connect()
        request.headers.update(headers)
        self._protocol.send_request(request)
        connection.settimeout(_HANDSHAKE_SECONDS)
        self._flush_handshake()
        self._early = self._shake_hands()
        connection.settimeout(0)

    def _flush_handshake(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                with contextlib.suppress(
                    BrokenPipeError, ConnectionResetError
                ):  # Refused already: the answer says why.
                    self._connection.sendall(data)

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
            if _is_of_a_leaving_server(refusal.response):
                raise ConnectionResetError(str(refusal))
            raise _error_of(refusal.response.body)
        if refusal is not None:
            raise ConnectionResetError(str(refusal))

    def fileno(self) -> int:
        """Return the descriptor to poll; see `is_ready`."""
        return self._connection.fileno()

    @property
    def is_ready(self) -> bool:
        """Whether something can be received without polling."""
        return bool(self._early) or (isinstance(self._connection, ssl.SSLSocket) and self._connection.pending() > 0)

    def receive(self) -> Sequence[bytes] | None:
        """Return the messages that came, maybe none; None once the server has gone."""
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
            answers = b"".join(self._protocol.data_to_send())
        # Input under way goes first; what the protocol answers is a courtesy to a server that leaves.
        if answers and self._writing.acquire(blocking=False):
            with contextlib.suppress(OSError):  # It is gone already: whoever reads next sees so.
                self._send(answers)
            self._writing.release()
        return messages if messages or self._protocol.close_rcvd is None else None

    def sendall(self, data: bytes, /) -> None:
        """Send one message.

        Raises:
            OSError: The server is gone.
        """
        with self._guard:
            self._protocol.send_binary(data)
            outgoing = b"".join(self._protocol.data_to_send())
        with self._writing:
            self._send(outgoing)

    def _send(self, data: bytes) -> None:
        """Send a whole frame without keeping the reader out: a server that waits for us to read takes nothing more from us."""
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
        """Close the connection; the server takes that for a client that is gone."""
        self._connection.close()


def _payloads(events: Sequence[object]) -> list[bytes]:
    kinds = {Opcode.BINARY, Opcode.CONT}
    return [bytes(event.data) for event in events if isinstance(event, Frame) and event.opcode in kinds]


def _is_of_a_leaving_server(answer: Response) -> bool:
    """Whether the library below pgpu refused: it does so to what is under way when its server was told to go."""
    return answer.status_code >= _FAILED and not answer.headers.get("Content-Type", "").startswith("application/json")


def _error_of(body: bytes | bytearray | None) -> PgpuError:
    try:
        return wire.decode_error(wire.parse(bytes(body or b"")))
    except PgpuError as exc:
        return PgpuBug(f"the server's answer cannot be understood: {exc}")
