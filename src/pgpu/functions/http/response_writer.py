"""Responses: the headers of every reply, and a writer for those that leave in pieces (streams, bodies in memory files)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pgpu.functions.http.request_handler import ReplicaInfo
from pgpu.functions.ipc.call_messages import Body, Chunk, Reply
from pgpu.functions.ipc.memory_files import map_body
from pgpu.functions.requests.request_queue import BROKEN, PendingRequest

_PIECE_BYTES = 256 * 1024
_LEAST_PATIENCE_SECONDS = 1.0
"""Time in which a client must take one piece, or the call's own timeout where that is longer."""

Send = Callable[[Any], Awaitable[None]]
"""ASGI's; does nothing after the client has left."""

_tasks: set[asyncio.Task[None]] = set()
"""Running writers: asyncio itself holds tasks only weakly."""


def server_timing(replica: ReplicaInfo, request: PendingRequest, reply: Reply) -> str:
    """Return `Server-Timing` in milliseconds: waiting for a turn, for a worker, for its constructor, and running."""
    admitted, started = request.admitted_seconds, reply.started_seconds
    if not started:
        return ""
    exec_ms = reply.exec_seconds * 1e3
    if admitted >= replica.hot_since_seconds:
        return f"queue;dur={(started - admitted) * 1e3:.3f}, cold;dur=0, load;dur=0, exec;dur={exec_ms:.3f}"
    start = replica.hot_since_seconds - admitted
    load = min(replica.load_seconds, start)
    queue = max(0.0, started - replica.hot_since_seconds)
    return (
        f"queue;dur={queue * 1e3:.3f}, cold;dur={(start - load) * 1e3:.3f},"
        f" load;dur={load * 1e3:.3f}, exec;dur={exec_ms:.3f}"
    )


def header_lines(reply: Reply, request: PendingRequest, timing: str) -> str:
    """Return the headers of a reply, one per line.

    Raises:
        ValueError: A header contains a line break: the worker's headers are not trusted.
    """
    headers = reply.headers
    # Prevents response splitting. Counting line breaks of the joined text is cheaper than a check of each header.
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError("a header of more than one line")
    timed = f"server-timing: {timing}\r\n" if timing else ""
    trace = request.headers.get("traceparent")
    traced = "" if trace is None else f"traceparent: {trace}\r\n"
    return f"{lines}x-request-id: {request.request_id}\r\n{timed}{traced}"


class ResponseWriter:
    """Writes one response through ASGI's `send`. Each chunk is credited after its delivery, so few chunks are held."""

    def __init__(
        self, replica: ReplicaInfo, request: PendingRequest, send: Send, transport: asyncio.Transport | None = None
    ) -> None:
        """Prepare.

        Args:
            replica: Answers the request.
            request: The request.
            send: ASGI's.
            transport: Closed to break a response off; None: the caller of `run` does that.
        """
        self._replica, self._request, self._send, self._transport = replica, request, send, transport
        self._patience_seconds = max(_LEAST_PATIENCE_SECONDS, request.timeout_seconds)
        self._chunks: asyncio.Queue[tuple[Chunk, int | None]] = asyncio.Queue()

    def start(self, reply: Reply, file: int | None) -> None:
        """Write the response in a task of its own."""
        # The sink's methods must not block, so a response in pieces gets its own task.
        task = asyncio.get_running_loop().create_task(self.run(reply, file))
        _tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Abort the connection if the response could not be written: the client must not wait for the rest."""
        _tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if self._transport is not None:
                self._transport.abort()
            if not isinstance(error, TimeoutError):
                task.get_loop().call_exception_handler({"message": "a response was broken off", "exception": error})

    def chunk(self, chunk: Chunk, file: int | None) -> None:
        self._chunks.put_nowait((chunk, file))

    def abort(self) -> None:
        """End the stream: the client has left."""
        self.chunk(BROKEN, None)

    async def run(self, reply: Reply, file: int | None) -> None:
        """Write the whole response.

        Raises:
            TimeoutError: The client takes nothing of it.
        """
        body = reply.body if file is None else map_body(file)
        headers = {**reply.headers, "x-request-id": self._request.request_id}
        if timing := server_timing(self._replica, self._request, reply):
            headers["server-timing"] = timing
        if (trace := self._request.headers.get("traceparent")) is not None:
            headers["traceparent"] = trace
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        if reply.is_last:
            pairs.append((b"content-length", str(len(body)).encode()))
        await self._send({"type": "http.response.start", "status": reply.status, "headers": pairs})
        if reply.is_last:
            await self._send_body(body)
            await self._send_piece(b"", more_body=False)
            return
        while True:
            chunk, file = await self._chunks.get()
            await self._send_body(chunk.body if file is None else map_body(file))
            if chunk.is_broken:
                # The body ends without its last piece, so the client sees that it is incomplete.
                if self._transport is not None:
                    self._transport.close()
                return
            if chunk.is_last:
                await self._send_piece(b"", more_body=False)
                return
            # Only now: the client has taken the piece, or it is in the transport's bounded buffer.
            self._replica.credit(self._request)

    async def _send_body(self, body: Body) -> None:
        view = memoryview(body)
        for start in range(0, len(view), _PIECE_BYTES):
            await self._send_piece(bytes(view[start : start + _PIECE_BYTES]), more_body=True)

    async def _send_piece(self, piece: bytes, *, more_body: bool) -> None:
        async with asyncio.timeout(self._patience_seconds):
            await self._send({"type": "http.response.body", "body": piece, "more_body": more_body})
