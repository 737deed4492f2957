"""One call of a function, through a gateway: bytes there and bytes back, as they come.

Never asked twice: whoever calls may not know what the first time did. This module refuses to know what the bytes mean.
"""

import contextlib
import http.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pgpu.client.connection import HttpTransport, server_unavailable
from pgpu.errors import ServerUnavailableError

_PIECE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class GatewayResponse:
    """An answer whose body comes bit by bit."""

    status: int
    headers: Mapping[str, str]
    """By name in small letters."""

    _answer: http.client.HTTPResponse

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it comes.

        Raises:
            ServerUnavailableError: The gateway went away in the middle.
        """
        try:
            while piece := self._answer.read1(_PIECE_BYTES):
                yield piece
        except (OSError, http.client.HTTPException) as exc:
            raise ServerUnavailableError("the gateway went away in the middle of its answer") from exc


@contextmanager
def call_gateway(
    gateway: HttpTransport, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> Iterator[GatewayResponse]:
    """Hold the answer to one call.

    Raises:
        ServerUnavailableError: Nobody answers; the call may have been made all the same, unless nobody could be reached.
    """
    connection = http.client.HTTPConnection("pgpu")
    with gateway.connect() as connected, contextlib.closing(connection):
        connection.sock = connected
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # A refusal may have come before the end.
                connection.request(method, path, body, {**gateway.headers, **headers})
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as exc:
            raise server_unavailable(gateway.address, exc if isinstance(exc, OSError) else OSError(str(exc))) from exc
        yield GatewayResponse(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer)
