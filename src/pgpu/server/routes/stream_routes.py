"""Routes of a job's output and input: the stored log over HTTP, the living job over a WebSocket.

The WebSocket's binary messages are the frames of `pgpu.engine.streams.frames`, cut anywhere, the client's greeting first:
a job's supervisor speaks them, so a terminal, its input and held-back output work as without a server.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Annotated

from fastapi import APIRouter, Query, WebSocket
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.websockets import WebSocketDisconnect

from pgpu.engine.streams.frames import FrameDecoder, Hello, Kind, decode_hello
from pgpu.server.routes.request_context import CallerDep, HangUpDep, JobServiceDep, RelayDep
from pgpu.server.stream_relay import receive, send, until_hung_up
from pgpu.services.messages import END_HEADER

routes = APIRouter(prefix="/v1/jobs", tags=["streams"])

MULTIPLEXED = "application/vnd.docker.multiplexed-stream"
"""Docker's own: each piece after 8 bytes, of which the first is 1 for stdout and 2 for stderr and the last four its
length. Source: Docker Engine API, ContainerAttach."""

_NUMBERS = {"stdout": 1, "stderr": 2}
_GREETING_SECONDS = 10.0
_LAST_INPUT_SECONDS = 5.0
"""How long the input of a client that left may take to reach a job that does not read it."""

_NORMAL, _UNREADABLE, _GONE = 1000, 1007, 1012
"""Close codes of RFC 6455, and `Service Restart` of the IANA registry: come again."""


@routes.get("/{job}/logs", response_class=Response, responses={200: {"content": {MULTIPLEXED: {}}}})
def logs(
    desk: JobServiceDep, caller: CallerDep, job: str, tail_lines: Annotated[int | None, Query(ge=0, le=1 << 31)] = None
) -> Response:
    """Return what is stored of a job's output, or its last lines, as Docker multiplexes streams."""
    if tail_lines is None:
        return StreamingResponse(_multiplexed(desk.log(caller, job)), media_type=MULTIPLEXED)
    lines, end = desk.log_end(caller, job, tail_lines)
    return StreamingResponse(_multiplexed(lines), media_type=MULTIPLEXED, headers={END_HEADER: str(end)})


def _multiplexed(pieces: Iterable[tuple[str, bytes]]) -> Iterator[bytes]:
    for stream, data in pieces:
        yield _NUMBERS[stream].to_bytes(4, "little") + len(data).to_bytes(4, "big") + data


@routes.websocket("/{job}/attach")
async def attach(
    websocket: WebSocket,
    desk: JobServiceDep,
    caller: CallerDep,
    following: RelayDep,
    *,
    has_hung_up: HangUpDep,
    job: str,
) -> None:
    """Carry a job's streams; its end is said by a frame, and a connection that ends without it wants to be made anew."""
    found = await run_in_threadpool(desk.find, caller, job)
    with contextlib.suppress(WebSocketDisconnect):
        await websocket.accept()
        try:
            async with asyncio.timeout(_GREETING_SECONDS):
                hello, rest = await _greeting(websocket)
        except (ValueError, TimeoutError) as exc:
            await websocket.close(_UNREADABLE, reason=str(exc)[:100] or "no greeting came")
            return
        leaving = asyncio.create_task(until_hung_up(has_hung_up))
        joining = asyncio.create_task(following.joined(found.job.id, hello))
        try:
            await _carry(websocket, joining, leaving, rest, following.stored_frames(found.job.id, hello.offset))
        finally:
            leaving.cancel()
            joining.cancel()


async def _greeting(websocket: WebSocket) -> tuple[Hello, bytes]:
    """Read the first frame, and what came with it.

    Raises:
        ValueError: It is no greeting.
    """
    data, decoder = b"", FrameDecoder()
    while True:
        more = await _next_bytes(websocket)
        if not more:
            raise ValueError("gone before it greeted")
        data += more
        for frame in decoder.feed(more):
            if frame.kind is not Kind.HELLO:
                raise ValueError("no greeting")
            return decode_hello(frame.payload), data[_FRAME_HEADER_BYTES + len(frame.payload) :]


_FRAME_HEADER_BYTES = 5


async def _next_bytes(websocket: WebSocket) -> bytes:
    """Return the next message; nothing once the client is gone or does not send bytes."""
    message = await websocket.receive()
    return message.get("bytes") or b"" if message["type"] == "websocket.receive" else b""


async def _carry(
    websocket: WebSocket,
    joining: "asyncio.Task[socket.socket | None]",
    leaving: "asyncio.Task[None]",
    rest: bytes,
    stored: AsyncIterator[bytes],
) -> None:
    """Carry a living job's streams as soon as it can be joined; of one that is final what is stored."""
    coming = asyncio.create_task(_next_bytes(websocket))
    try:
        await asyncio.wait({coming, joining, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if coming.done() and not coming.result():
            return
        # Of input that comes ahead one message is taken, the rest stays with its sender: who leaves is seen all the same.
        await asyncio.wait({joining, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not joining.done():
            return
        upstream = joining.result()
        if upstream is None:
            async for frames in stored:
                await websocket.send_bytes(frames)
            await websocket.close(_NORMAL)
            return
        with upstream:
            await send(upstream, rest)
            await _both_ways(websocket, upstream, coming, leaving)
    finally:
        coming.cancel()


async def _both_ways(
    websocket: WebSocket, upstream: socket.socket, coming: "asyncio.Task[bytes]", leaving: "asyncio.Task[None]"
) -> None:
    """Carry until either side ends; what a client sent before it left reaches a job that takes it."""

    async def down() -> None:
        while data := await receive(upstream):
            await websocket.send_bytes(data)
        await websocket.close(_GONE)

    async def up() -> None:
        data = await coming
        while data:
            await send(upstream, data)
            data = await _next_bytes(websocket)

    tasks = {asyncio.create_task(down()), asyncio.create_task(up())}
    try:
        await asyncio.wait({*tasks, leaving}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(tasks, timeout=_LAST_INPUT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, (OSError, RuntimeError, WebSocketDisconnect)):
                raise outcome
