"""One server, asked over HTTP: a connection for each question, so that a server that was restarted is just another one.

The standard library's own HTTP client: it costs a start 20 ms where httpx costs 150, a Unix socket is one method of it,
and the core of pgpu gains no dependency. A server that has answered once may go away for a while, as one that is restarted
does: questions that may be asked twice are asked again. This module refuses to know what is asked.
"""

import contextlib
import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from pgpu.client.address import Address, UnixAddress
from pgpu.errors import PgpuError, RequestError, ServerUnavailableError
from pgpu.services import wire

PATIENCE_SECONDS = 30.0
"""How long a server that has answered before may be away."""

_RETRY_SECONDS = 0.1
_ANSWER_SECONDS = 120.0
"""A server that says nothing for so long hangs: the longest answer is a wait of one minute."""

_REFUSED = 400
_FAILED = 500
_NEXT = re.compile(r'<(/[^>]*)>; rel="next"')
"""In the header `Link`. Source: RFC 8288."""


class HttpTransport:
    """Someone to ask."""

    def __init__(self, address: Address, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.address = address
        self._patience_seconds = patience_seconds
        self._has_answered = False

    @property
    def headers(self) -> dict[str, str]:
        """What each request shows."""
        token = None if isinstance(self.address, UnixAddress) else self.address.token
        return {} if token is None else {"Authorization": f"Bearer {token}"}

    def connect(self) -> socket.socket:
        """Return a fresh connection, encrypted where the address says so.

        Raises:
            ServerUnavailableError: Nobody answers, or this user is not let in.
        """
        try:
            return self._connected()
        except OSError as exc:
            raise server_unavailable(self.address, exc) from exc

    def _connected(self) -> socket.socket:
        if isinstance(self.address, UnixAddress):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(str(self.address.path))
            except BaseException:  # Ctrl-C too: nobody else could close it.
                connection.close()
                raise
            return connection
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
        """Return what the server answers, as parsed JSON; None for an empty answer.

        Args:
            method: HTTP's.
            path: With its query.
            body: A value of ours, or None.
            is_repeatable: Whether asking twice does no more than asking once.

        Raises:
            PgpuError: The server refused, in its own words.
            ServerUnavailableError: It cannot be reached.
        """
        with self._answer(method, path, body, is_repeatable=is_repeatable) as response:
            data = StreamedResponse(response, self.address).read()
        return wire.parse(data) if data else None

    def send(self, method: str, path: str, data: BinaryIO) -> None:
        """Send bytes as they are, from where the file is to its end; once.

        Raises:
            PgpuError: As of `ask`.
        """
        self._asked_once(method, path, data).close()

    def pages(self, path: str) -> Iterator[Any]:
        """Yield what the server answers, page after page, as parsed JSON.

        Raises:
            PgpuError: As of `ask`.
        """
        while path:
            with self._answer("GET", path, None, is_repeatable=True) as response:
                answer = StreamedResponse(response, self.address)
                data, further = answer.read(), _NEXT.search(answer.header("Link") or "")
            path = further[1] if further else ""
            yield wire.parse(data)

    @contextmanager
    def streaming(self, path: str) -> Iterator["StreamedResponse"]:
        """Hold an answer open that comes bit by bit.

        Raises:
            PgpuError: As of `ask`.
        """
        with self._answer("GET", path, None, is_repeatable=True) as response:
            yield StreamedResponse(response, self.address)

    def away(self) -> "RetryDeadline":
        """Return how long this server may be away from now on."""
        return RetryDeadline(self._patience_seconds if self._has_answered else 0.0)

    def has_answered(self) -> None:
        """Note that it is there, so that it may go for a while."""
        self._has_answered = True

    @contextmanager
    def _answer(self, method: str, path: str, body: Any, *, is_repeatable: bool) -> Iterator[http.client.HTTPResponse]:
        data = None if body is None else wire.encode(body)
        connection = self._asked(method, path, data, is_repeatable=is_repeatable)
        with contextlib.closing(connection):
            self.has_answered()
            yield connection.answer

    def _asked(self, method: str, path: str, data: bytes | None, *, is_repeatable: bool) -> "_Connection":
        absence = self.away()
        while True:
            try:
                return self._asked_once(method, path, data)
            except _AnswerLostError as exc:
                if not is_repeatable:
                    raise
                if not self._has_answered:  # It was there, although it did not get to say so.
                    self.has_answered()
                    absence = self.away()
                absence.endure(exc)
            except ServerUnavailableError as exc:  # A full server's refusal too: it has not heard the question.
                absence.endure(exc)

    def _asked_once(self, method: str, path: str, data: bytes | BinaryIO | None) -> "_Connection":
        connection = _Connection(self.connect())
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # A refusal may have come before the end.
                connection.request(method, path, data, self.headers | _length(data))
            connection.answer = connection.getresponse()
            self._check(connection.answer)
        except (OSError, http.client.HTTPException) as exc:
            connection.close()
            raise _AnswerLostError(*_lost(self.address)) from exc
        except BaseException:  # Ctrl-C too: nobody else could close it.
            connection.close()
            raise
        return connection

    def _check(self, answer: http.client.HTTPResponse) -> None:
        if answer.status >= _FAILED and not _is_json(answer):
            # Not pgpu's words but those of the library below it: a server that was told to go drops what is under way so.
            raise _AnswerLostError(*_lost(self.address))
        if answer.status >= _REFUSED:
            raise _refusal(StreamedResponse(answer, self.address).read())


def _length(data: bytes | BinaryIO | None) -> dict[str, str]:
    """Say how long a file is: it would be sent in pieces otherwise."""
    if data is None or isinstance(data, bytes):
        return {}
    place = data.tell()
    end = data.seek(0, 2)
    data.seek(place)
    return {"Content-Length": str(end - place), "Content-Type": "application/octet-stream"}


class _AnswerLostError(ServerUnavailableError):
    """The server was asked, and what it said or did is unknown."""


def _is_json(answer: http.client.HTTPResponse) -> bool:
    return answer.getheader("Content-Type", "").startswith("application/json")


def _lost(address: Address) -> tuple[str]:
    return (f"the server at {address} went away before it answered",)


class StreamedResponse:
    """An answer that comes bit by bit."""

    def __init__(self, response: http.client.HTTPResponse, address: Address) -> None:
        self._response = response
        self._address = address

    def header(self, name: str) -> str | None:
        """Return a header of the answer."""
        return self._response.getheader(name)

    def read(self, size_bytes: int | None = None) -> bytes:
        """Read so many bytes, or all; fewer at the end.

        Raises:
            ServerUnavailableError: The server went away in the middle.
        """
        try:
            return self._response.read(size_bytes)
        except (OSError, http.client.HTTPException) as exc:
            raise _AnswerLostError(*_lost(self._address)) from exc

    def lines(self) -> Iterator[bytes]:
        """Yield it line by line, as each comes.

        Raises:
            ServerUnavailableError: The server went away in the middle.
        """
        while line := self._read_line():
            yield line

    def _read_line(self) -> bytes:
        try:
            return self._response.readline()
        except (OSError, http.client.HTTPException) as exc:
            raise _AnswerLostError(*_lost(self._address)) from exc


class _Connection(http.client.HTTPConnection):
    """One question and its answer, over a connection that was made."""

    answer: http.client.HTTPResponse

    def __init__(self, connected: socket.socket) -> None:
        super().__init__("pgpu")
        connected.settimeout(_ANSWER_SECONDS)
        self.sock = connected


class RetryDeadline:
    """A time in which a server is not there."""

    def __init__(self, patience_seconds: float) -> None:
        self._deadline_seconds = time.monotonic() + patience_seconds

    def endure(self, error: ServerUnavailableError, pause: Callable[[float], object] | None = None) -> None:
        """Pause, before it is tried again.

        Args:
            error: What it is like now.
            pause: Sleeps so many seconds; None sleeps.

        Raises:
            ServerUnavailableError: `error`, for it has been away too long.
        """
        if time.monotonic() >= self._deadline_seconds:
            raise error
        (pause or threading.Event().wait)(_RETRY_SECONDS)


def server_unavailable(address: Address, exc: OSError) -> ServerUnavailableError:
    """Say why a server cannot be reached, and what to do about it."""
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


def _refusal(data: bytes) -> PgpuError:
    try:
        return wire.decode_error(wire.parse(data))
    except RequestError as exc:
        return wire.decode_error(str(exc))
