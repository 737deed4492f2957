"""Forwards a signed-in browser's requests for data to a server's Unix socket, as the user of this process.

So `pgpu dashboard` shows a user of a machine with a server what that user may see: the kernel tells the server who forwards. Requests
are HTTP/1.0, so the body of the answer ends with its connection and is passed on as it comes.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import closing
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pgpu.errors import NodeError
from pgpu.server.browser_boundary import DASHBOARD_PATH
from pgpu.server.dashboard.routes import data_routes
from pgpu.server.dashboard.sign_in import SignIn, until_signed_out

_CHUNK_BYTES = 1 << 16
_OF_THE_CONNECTION = {"connection", "content-length", "date", "transfer-encoding"}


def forwarding_routes(socket: Path, sign_in: SignIn) -> APIRouter:
    """Return the routes of `data_routes`, each of which asks a server.

    Args:
        socket: The server's.
        sign_in: Checks each request first.
    """
    router = APIRouter(include_in_schema=False)
    for route in data_routes.routes:
        router.add_route(getattr(route, "path", DASHBOARD_PATH), _forward(socket, sign_in), methods=["GET"])
    return router


def _forward(socket: Path, sign_in: SignIn) -> Callable[[Request], Awaitable[Response]]:
    async def forward(request: Request) -> Response:
        sign_in.caller(request)
        query = request.scope["query_string"]  # as it was sent: a request line has no line break
        target = request.url.path.encode() + (b"?" + query if query else b"")
        try:
            reader, writer = await asyncio.open_unix_connection(socket)
            writer.write(b"GET %s HTTP/1.0\r\nHost: pgpu\r\n\r\n" % target)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
        except (OSError, EOFError) as exc:
            raise NodeError(f"no server answers at {socket}: {exc}", hint="is `pgpu serve` running?") from exc
        fields = (line.partition(":") for line in head[1:] if line)
        found = {name.strip().lower(): value.strip() for name, _, value in fields}

        async def body() -> AsyncGenerator[bytes]:
            with closing(writer):
                while data := await reader.read(_CHUNK_BYTES):
                    yield data

        headers = {name: value for name, value in found.items() if name not in _OF_THE_CONNECTION}
        return StreamingResponse(until_signed_out(sign_in, request, body()), int(head[0].split()[1]), headers)

    return forward
