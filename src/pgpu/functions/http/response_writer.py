"""Answers that leave in pieces: streams, and bodies in memory files. One task each, which waits while the client is slow.

It refuses to hold more than the worker may send ahead: each piece is credited once it has left.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pgpu.functions.http.request_handler import ReplicaInfo
from pgpu.functions.http.response_headers import header_pairs, server_timing
from pgpu.functions.ipc.memory_files import map_body
from pgpu.functions.ipc.messages import Body, Chunk, Reply
from pgpu.functions.requests.pending_request import PendingRequest

_PIECE_BYTES = 256 * 1024
_LEAST_PATIENCE_SECONDS = 1.0
"""With a reader that takes nothing of an answer; else as long as its call may take."""

_BROKEN = Chunk(b"", is_last=True, is_broken=True)

Send = Callable[[Any], Awaitable[None]]
"""ASGI's; after the client has left it does nothing."""

_tasks: set[asyncio.Task[None]] = set()
"""asyncio itself holds tasks only weakly."""


class ResponseWriter:
    """Sends one answer through ASGI's `send`."""

    def __init__(
        self, warm: ReplicaInfo, ticket: PendingRequest, send: Send, transport: asyncio.Transport | None = None
    ) -> None:
        """Get ready.

        Args:
            warm: Whoever answers.
            ticket: The request.
            send: Where it goes.
            transport: Closed without a proper end where the answer has none; None: whoever waits for `run` does that.
        """
        self._warm, self._ticket, self._send, self._transport = warm, ticket, send, transport
        self._patience_seconds = max(_LEAST_PATIENCE_SECONDS, ticket.timeout_seconds)
        self._chunks: asyncio.Queue[tuple[Chunk, int | None]] = asyncio.Queue()

    def begin(self, reply: Reply, file: int | None) -> None:
        """Send it in a task of its own."""
        task = asyncio.get_running_loop().create_task(self.run(reply, file))
        _tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A caller whose answer cannot be sent, since its worker wrote nonsense, must not wait for the rest."""
        _tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if self._transport is not None:
                self._transport.abort()
            if not isinstance(error, TimeoutError):
                task.get_loop().call_exception_handler({"message": "an answer was broken off", "exception": error})

    def chunk(self, chunk: Chunk, file: int | None) -> None:
        """Take one more piece."""
        self._chunks.put_nowait((chunk, file))

    def gone(self) -> None:
        """The client has left."""
        self.chunk(_BROKEN, None)

    async def run(self, reply: Reply, file: int | None) -> None:
        """Send it all.

        Raises:
            TimeoutError: The client takes nothing of it.
        """
        body = reply.body if file is None else map_body(file)
        pairs = header_pairs(reply, self._ticket, server_timing(self._warm, self._ticket, reply))
        if reply.is_last:
            pairs.append((b"content-length", str(len(body)).encode()))
        await self._send({"type": "http.response.start", "status": reply.status, "headers": pairs})
        if reply.is_last:
            await self._send_body(body)
            await self._send_piece(b"", more_body=False)
        else:
            await self._send_chunks()

    async def _send_chunks(self) -> None:
        while True:
            chunk, file = await self._chunks.get()
            await self._send_body(chunk.body if file is None else map_body(file))
            if chunk.is_broken:
                if self._transport is not None:
                    self._transport.close()
                return
            if chunk.is_last:
                await self._send_piece(b"", more_body=False)
                return
            self._warm.credit(self._ticket)

    async def _send_body(self, body: Body) -> None:
        view = memoryview(body)
        for start in range(0, len(view), _PIECE_BYTES):
            await self._send_piece(bytes(view[start : start + _PIECE_BYTES]), more_body=True)

    async def _send_piece(self, piece: bytes, *, more_body: bool) -> None:
        async with asyncio.timeout(self._patience_seconds):
            await self._send({"type": "http.response.body", "body": piece, "more_body": more_body})
