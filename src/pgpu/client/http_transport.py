"""HTTP to one server: a connection for each request, so that a restarted server needs no reconnect logic.

It uses the standard library's HTTP client, which imports in 20 ms where httpx takes 150 and adds no dependency. A server
that has answered once may be away for a while, as during a restart: repeatable requests are sent again until then.
"""

import contextlib
import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, BinaryIO

from pgpu.client.address import Address, UnixAddress
from pgpu.errors import RequestError, ServerUnavailableError
from pgpu.services import wire
from pgpu.structs import Struct

PATIENCE_SECONDS = 30.0
"""How long a server that has answered before may be away."""

_RETRY_SECONDS = 0.1
_ANSWER_SECONDS = 120.0
"""Timeout of an answer; the longest is a wait of one minute."""

_CHUNK_BYTES = 1 << 16
_FIRST_ERROR_STATUS = 400
_FIRST_SERVER_ERROR_STATUS = 500
_NEXT = re.compile(r'<(/[^>]*)>; rel="next"')
"""In the header `Link`. Source: RFC 8288."""


class HttpTransport:
    """Sends requests to one server."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._has_answered = False

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request: the token, over TCP."""
        token = None if isinstance(self.address, UnixAddress) else self.address.token
        return {} if token is None else {"Authorization": f"Bearer {token}"}

    def connect(self) -> socket.socket:
        """Return a new connection, encrypted if the address requires it.

        Raises:
            ServerUnavailableError: There is no answer, or this user has no access.
        """
        try:
            return self._open_socket()
        except OSError as exc:
            raise server_unavailable(self.address, exc) from exc

    def _open_socket(self) -> socket.socket:
        if isinstance(self.address, UnixAddress):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(str(self.address.path))
            except BaseException:  # KeyboardInterrupt, too: no other reference would close it.
                connection.close()
                raise
            return connection
        # The timeout also covers the TLS handshake below.
        connection = socket.create_connection((self.address.host, self.address.port), timeout=_ANSWER_SECONDS)
        if not self.address.is_encrypted:
            return connection
        try:
            trust = ssl.create_default_context(cafile=self.address.certificate)
            return trust.wrap_socket(connection, server_hostname=self.address.host)
        except BaseException:  # As above.
            connection.close()
            raise

    def ask(self, method: str, path: str, body: Any = None, *, is_repeatable: bool = True) -> Any:
        """Send a request and return the answer as parsed JSON; None for an empty answer.

        Args:
            method: HTTP's.
            path: With its query.
            body: A value for `wire.encode`, or None.
            is_repeatable: Whether the request may be sent again when its answer was lost.

        Raises:
            PgpuError: The error that the server answered.
            ServerUnavailableError: It cannot be reached.
        """
        with self._answer(method, path, body, is_repeatable=is_repeatable) as answer:
            data = answer.read()
        return wire.parse(data) if data else None

    def send(self, method: str, path: str, data: BinaryIO) -> None:
        """Send a file from its position to its end, once.

        Raises:
            PgpuError: As of `ask`.
        """
        self._request_once(method, path, data).close()

    def pages(self, path: str) -> Iterator[Any]:
        """Yield the answer page by page, as parsed JSON.

        Raises:
            PgpuError: As of `ask`.
        """
        while path:
            with self._answer("GET", path) as answer:
                data, further = answer.read(), _NEXT.search(answer.header("Link") or "")
            path = further[1] if further else ""
            yield wire.parse(data)

    def open_stream(self, path: str) -> AbstractContextManager["StreamedResponse"]:
        """Hold a streamed answer open.

        Raises:
            PgpuError: As of `ask`.
        """
        return self._answer("GET", path)

    def retry_deadline(self) -> "RetryDeadline":
        """Return the deadline for retries that begin now: none if the server has never answered."""
        return RetryDeadline(PATIENCE_SECONDS if self._has_answered else 0.0)

    def note_answer(self) -> None:
        """Record an answer, which permits later retries."""
        self._has_answered = True

    @contextmanager
    def _answer(
        self, method: str, path: str, body: Any = None, *, is_repeatable: bool = True
    ) -> Iterator["StreamedResponse"]:
        data = None if body is None else wire.encode(body)
        connection = self._request(method, path, data, is_repeatable=is_repeatable)
        with contextlib.closing(connection):
            self.note_answer()
            yield StreamedResponse(connection.answer, self.address)

    def _request(self, method: str, path: str, data: bytes | None, *, is_repeatable: bool) -> "_Connection":
        deadline = self.retry_deadline()
        while True:
            try:
                return self._request_once(method, path, data)
            except _AnswerLostError as exc:
                if not is_repeatable:
                    raise
                if not self._has_answered:  # It accepted the connection, so it is there.
                    self.note_answer()
                    deadline = self.retry_deadline()
                deadline.pause_or_raise(exc)
            except ServerUnavailableError as exc:  # Also a full server's refusal: it has not read the request.
                deadline.pause_or_raise(exc)

    def _request_once(self, method: str, path: str, data: bytes | BinaryIO | None) -> "_Connection":
        connection = _Connection(self.connect())
        headers = self.headers
        if data is not None and not isinstance(data, bytes):  # Without a length the file would be sent in chunks.
            begin, end = data.tell(), data.seek(0, 2)
            data.seek(begin)
            headers |= {"Content-Length": str(end - begin), "Content-Type": "application/octet-stream"}
        try:
            # A server that refuses early closes its side while the body is still being sent: the answer is read anyway.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, path, data, headers)
            connection.answer = connection.getresponse()
            self._check(connection.answer)
        except (OSError, http.client.HTTPException) as exc:
            connection.close()
            raise _answer_lost(self.address) from exc
        except BaseException:  # KeyboardInterrupt, too: no other reference would close it.
            connection.close()
            raise
        return connection

    def _check(self, answer: http.client.HTTPResponse) -> None:
        is_json = answer.getheader("Content-Type", "").startswith("application/json")
        if answer.status >= _FIRST_SERVER_ERROR_STATUS and not is_json:
            # Uvicorn's own answer, not pgpu's: a server that shuts down drops its requests that way.
            raise _answer_lost(self.address)
        if answer.status >= _FIRST_ERROR_STATUS:
            data = StreamedResponse(answer, self.address).read()
            try:
                error = wire.decode_error(wire.parse(data))
            except RequestError as exc:  # No JSON: the decoder makes an error of any other text.
                error = wire.decode_error(str(exc))
            raise error


class _AnswerLostError(ServerUnavailableError):
    """The request was sent, and its outcome is unknown."""


def _answer_lost(address: Address) -> _AnswerLostError:
    return _AnswerLostError(f"the server at {address} went away before it answered")


class StreamedResponse:
    """The body of an answer, read in pieces; each read raises `ServerUnavailableError` if the connection is lost."""

    def __init__(self, response: http.client.HTTPResponse, address: Address) -> None:
        self._response = response
        self._address = address

    def header(self, name: str) -> str | None:
        """Return a header of the answer."""
        return self._response.getheader(name)

    def read(self, size_bytes: int | None = None) -> bytes:
        """Read so many bytes, or all; fewer at the end."""
        try:
            return self._response.read(size_bytes)
        except (OSError, http.client.HTTPException) as exc:
            raise _answer_lost(self._address) from exc

    def lines(self) -> Iterator[bytes]:
        """Yield each line as it arrives."""
        while True:
            try:
                line = self._response.readline()
            except (OSError, http.client.HTTPException) as exc:
                raise _answer_lost(self._address) from exc
            if not line:
                return
            yield line


class _Connection(http.client.HTTPConnection):
    """One request and its answer, over an open connection."""

    answer: http.client.HTTPResponse

    def __init__(self, connected: socket.socket) -> None:
        super().__init__("pgpu")
        connected.settimeout(_ANSWER_SECONDS)
        self.sock = connected


class RetryDeadline:
    """Time limit for the retries of one request."""

    def __init__(self, patience_seconds: float) -> None:
        self._deadline_seconds = time.monotonic() + patience_seconds

    def pause_or_raise(self, error: ServerUnavailableError, pause: Callable[[float], object] | None = None) -> None:
        """Pause before a retry.

        Args:
            error: Of the last try.
            pause: Sleeps for so many seconds; None blocks this thread.

        Raises:
            ServerUnavailableError: `error`, if the deadline has passed.
        """
        if time.monotonic() >= self._deadline_seconds:
            raise error
        (pause or threading.Event().wait)(_RETRY_SECONDS)


def server_unavailable(address: Address, exc: OSError) -> ServerUnavailableError:
    """Explain why a connection failed, with a hint for each cause."""
    if isinstance(exc, PermissionError):
        return ServerUnavailableError(
            f"you may not use the server of pgpu at {address}",
            hint="ask its administrator to add you to the group pgpu, and log in again",
        )
    if isinstance(exc, ssl.SSLError):
        return ServerUnavailableError(
            f"the server at {address} is not trusted: {exc.reason or exc}",
            hint="name its certificate with PGPU_TLS_CERTIFICATE",
        )
    if isinstance(exc, ConnectionRefusedError) and isinstance(address, UnixAddress):
        return ServerUnavailableError(
            f"the server of pgpu at {address} does not answer: it was killed, and its socket is left",
            hint=f"start it (`systemctl start pgpu`, or `pgpu serve`), or remove {address.path} if there is to be none",
        )
    return ServerUnavailableError(
        f"the server of pgpu at {address} does not answer: {exc.strerror or exc}",
        hint="start it (`systemctl start pgpu`, or `pgpu serve`); your jobs go on meanwhile",
    )


class GatewayResponse(Struct, frozen=True):
    """A function's answer with a streamed body."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case."""

    _answer: http.client.HTTPResponse

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            ServerUnavailableError: The connection was lost.
        """
        try:
            while piece := self._answer.read1(_CHUNK_BYTES):
                yield piece
        except (OSError, http.client.HTTPException) as exc:
            raise ServerUnavailableError("the gateway went away in the middle of its answer") from exc


@contextmanager
def call_gateway(
    gateway: HttpTransport, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> Iterator[GatewayResponse]:
    """Call a function once, since the effect of a lost call is unknown, and hold its answer open.

    Raises:
        ServerUnavailableError: There is no answer; the call may have been made unless the connection failed.
    """
    connection = http.client.HTTPConnection("pgpu")
    with gateway.connect() as connected, contextlib.closing(connection):
        connection.sock = connected
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # As in `HttpTransport`.
                connection.request(method, path, body, {**gateway.headers, **headers})
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as exc:
            raise server_unavailable(gateway.address, exc if isinstance(exc, OSError) else OSError(str(exc))) from exc
        yield GatewayResponse(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer)
