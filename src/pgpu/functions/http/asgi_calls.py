"""Calls through an ASGI application: a task reads the body, submits the request, and waits while the client is slow.

Bodies up to 1 MiB stay in memory, larger ones go to a memory file.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pgpu.functions.http.request_handler import RequestHandler
from pgpu.functions.http.response_writer import ResponseWriter, Send
from pgpu.functions.ipc.call_messages import INLINE_BYTES, Chunk, Reply
from pgpu.functions.ipc.memory_files import GrowingFile
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.functions.requests.request_queue import PendingRequest

Receive = Callable[[], Awaitable[Any]]
"""ASGI's."""

TOO_LARGE = Refusal(413, "body_too_large", "the body is larger than this function takes", {"connection": "close"})
_BODY_TIMEOUT = Refusal(408, "body_timeout", "the body did not come in time", {"connection": "close"})


class ClientGoneError(Exception):
    """The client left before its body was complete."""


class AsgiCall:
    """The sink of a request with a task that waits for the answer."""

    def __init__(self, handler: RequestHandler, request: PendingRequest, send: Send) -> None:
        self._handler, self._request, self._send = handler, request, send
        self._writer: ResponseWriter | None = None
        self._replied: asyncio.Future[tuple[Reply, int | None] | None] = asyncio.get_running_loop().create_future()

    def reply(self, reply: Reply, file: int | None) -> None:
        self._writer = ResponseWriter(self._handler.replica_of(self._request), self._request, self._send)
        self._replied.set_result((reply, file))

    def chunk(self, chunk: Chunk, file: int | None) -> None:
        if self._writer is not None:
            self._writer.chunk(chunk, file)

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abort()
        if not self._replied.done():
            self._replied.set_result(None)

    async def write(self) -> None:
        replied = await self._replied
        if replied is not None and self._writer is not None:
            await self._writer.run(*replied)


async def answer_call(
    handler: RequestHandler, request: PendingRequest, most_bytes: int, receive: Receive, send: Send
) -> None:
    """Read a call's body until the request's deadline, submit the call, and write its answer.

    Args:
        handler: Takes the call.
        request: The request.
        most_bytes: Largest body.
        receive: ASGI's.
        send: ASGI's.
    """
    if (refusal := refuse_too_large(request, most_bytes)) is None:
        try:
            async with asyncio.timeout_at(request.deadline_seconds):
                body = await read_body(receive, most_bytes)
        except ClientGoneError:
            return
        except TimeoutError:
            body = _BODY_TIMEOUT
        if not isinstance(body, Refusal):
            await serve_body(handler, request, body, receive, send)
            return
        refusal = body
    await send_reply(handler, request, refusal.reply(request.request_id), send)


async def send_reply(handler: RequestHandler, request: PendingRequest, reply: Reply, send: Send) -> None:
    await ResponseWriter(handler.replica_of(request), request, send).run(reply, None)


def refuse_too_large(request: PendingRequest, most_bytes: int) -> Refusal | None:
    """Refuse a body with a `Content-Length` that is too large; None: it is not, or there is none."""
    length = request.headers.get("content-length", "0")
    return TOO_LARGE if length.isdecimal() and int(length) > most_bytes else None


async def serve_body(
    handler: RequestHandler, request: PendingRequest, body: tuple[bytes, int | None], receive: Receive, send: Send
) -> None:
    """Submit a call after its body was read, and write its answer."""
    call = AsgiCall(handler, request, send)
    watch = asyncio.get_running_loop().create_task(_watch_disconnect(handler, request, receive, call))
    try:
        handler.submit(request, *body, call)
        await call.write()
    finally:
        # receive() would wait until the connection ends, and keep this request alive.
        watch.cancel()


async def _watch_disconnect(handler: RequestHandler, request: PendingRequest, receive: Receive, call: AsgiCall) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    handler.abandon(request)
    call.abort()


async def read_body(receive: Receive, most_bytes: int) -> tuple[bytes, int | None] | Refusal:
    """Read a body to its end.

    Returns:
        The body, or empty bytes and the descriptor of a sealed memory file, which the caller then owns; or a refusal.

    Raises:
        ClientGoneError: The client left.
    """
    head, size_bytes = bytearray(), 0
    file: GrowingFile | None = None
    try:
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGoneError
            piece = message["body"]
            size_bytes += len(piece)
            if file is not None:
                file.add(piece)
            else:
                head += piece
                # Too large for a frame: the rest goes to the file as it arrives, so memory stays bounded by one piece.
                if len(head) > INLINE_BYTES:
                    file = GrowingFile()
                    file.add(head)
                    head = bytearray()
            # Checked after each piece: a chunked body has no announced length.
            if size_bytes > most_bytes:
                return TOO_LARGE
            if not message.get("more_body", False):
                return (bytes(head), None) if file is None else (b"", file.seal())
    finally:
        if file is not None:
            file.close()
