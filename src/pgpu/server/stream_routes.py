"""Routes that wait for a job or carry its streams, without a thread for each.

The WebSocket's binary messages are the frames of `pgpu.engine.streams.frames`, cut anywhere, the client's greeting first:
the job's monitor decodes them, so a terminal, its input and held-back output work as with a local client. The server
stores no position: a client that reconnects sends its offset in the greeting.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Annotated, TypeVar, cast

from fastapi import APIRouter, Depends, Query, WebSocket
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.responses import Response, StreamingResponse
from starlette.websockets import WebSocketDisconnect

from pgpu.engine.context import EngineContext
from pgpu.engine.streams.frames import (
    FrameDecoder,
    Hello,
    Kind,
    decode_hello,
    encode_frame,
    encode_gap,
    encode_hello,
)
from pgpu.engine.streams.log import stored
from pgpu.engine.unix_sockets import connect
from pgpu.errors import RequestError
from pgpu.model import Job, JobState
from pgpu.server.fan_out import EventBroadcast
from pgpu.server.responses import JsonResponse, body_schema, described, parse_body
from pgpu.server.routes import HangUpDep, JobServiceDep
from pgpu.services.job_service import JobService
from pgpu.services.messages import END_HEADER, MOST_WAITED, Wait
from pgpu.services.route_table import JOB_ROOT

T = TypeVar("T")

routes = APIRouter(prefix=JOB_ROOT)

# Docker's own: each piece after 8 bytes, of which the first is 1 for stdout and 2 for stderr and the last four its
# length. Source: Docker Engine API, ContainerAttach.
MULTIPLEXED = "application/vnd.docker.multiplexed-stream"

_STREAM_NUMBERS = {"stdout": 1, "stderr": 2}
_MOST_WAIT_SECONDS = 60.0
_GREETING_SECONDS = 10.0

# Time limit for the last input of a disconnected client to reach a job that does not read it.
_LAST_INPUT_SECONDS = 5.0

# Close codes of RFC 6455, and `Service Restart` of the IANA registry: the client reconnects.
_NORMAL, _UNREADABLE, _GONE = 1000, 1007, 1012

_FIRST_PAUSE_SECONDS = 0.01
_MOST_PAUSE_SECONDS = 0.1

# Interval of polls for changes without an event: of a job from before the subscription, and of a silent connection.
_POLL_SECONDS = 1.0

_CHUNK_BYTES = 1 << 18
_FRAME_HEADER_BYTES = 5

# An offset behind every log: only the end is sent.
_END_OF_LOG = (1 << 63) - 1


class StreamRelay:
    """Waits on the jobs of one ledger, in one event loop."""

    def __init__(self, engine: EngineContext, broadcast: EventBroadcast) -> None:
        self._engine = engine
        self._broadcast = broadcast
        self._leaving = asyncio.Event()

    def begin_shutdown(self) -> None:
        """End all waits, because the server shuts down; clients reconnect to the next one."""
        self._leaving.set()
        self._broadcast.close()

    async def run_while_connected(
        self, work: Coroutine[None, None, T], most_seconds: float, has_hung_up: Callable[[], bool]
    ) -> T | None:
        """Return the result of a coroutine; None on timeout, client disconnect or shutdown of the server."""
        # A client that stopped waiting is not read from, so only a poll detects that it is gone.
        tasks = (
            asyncio.create_task(work),
            asyncio.create_task(self._leaving.wait()),
            asyncio.create_task(_wait_for_hang_up(has_hung_up)),
        )
        try:
            done, _ = await asyncio.wait(tasks, timeout=most_seconds, return_when=asyncio.FIRST_COMPLETED)
            return tasks[0].result() if tasks[0] in done else None
        finally:
            for task in tasks:
                task.cancel()

    async def until_final(self, job_id: str) -> Job:
        """Wait until a job is final, and return it."""
        hello = Hello(_END_OF_LOG, holds_back=False, owns_stdin=False)
        # The connection to the monitor carries no output; it closes when the job ends. A monitor that was killed
        # is replaced, so the loop connects again.
        while (upstream := await self.join(job_id, hello)) is not None:
            with upstream:
                while await _receive(upstream):
                    pass
        return await run_in_threadpool(self._engine.ledger.job, job_id)

    async def until_some_ended(self, service: JobService, job_ids: Sequence[str]) -> Sequence[Job]:
        """Wait until the first of these jobs has ended, and return it with those behind it that have ended too."""
        with self._broadcast.subscription() as changes:
            while True:
                changes.changed.clear()
                ended, change_seconds = await run_in_threadpool(service.ended, job_ids)
                if ended:
                    return ended
                await changes.wait(min(change_seconds, _POLL_SECONDS))

    async def until_granted(self, job_id: str) -> Job:
        """Wait until a job is granted or ended, and return it."""
        with self._broadcast.subscription(job_id) as changes:
            while True:
                changes.changed.clear()
                job = await run_in_threadpool(self._engine.ledger.job, job_id)
                if job.state is not JobState.WAITING:
                    return job
                await changes.wait(_POLL_SECONDS)

    async def join(self, job_id: str, hello: Hello) -> socket.socket | None:
        """Wait until a job's monitor accepts a connection; None if the job is final and only its stored log is left."""
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            # The state is read before the connection is tried: a job that was final then has no monitor any more.
            state = (await run_in_threadpool(self._engine.ledger.job, job_id)).state
            upstream = await run_in_threadpool(self._try_connect, job_id)
            if upstream is not None:
                await _send(upstream, encode_hello(hello))
            if upstream is not None or state.is_final:
                return upstream
            if state is JobState.WAITING:
                await self._broadcast.until_changed(job_id, _POLL_SECONDS)
            else:
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _MOST_PAUSE_SECONDS)

    def _try_connect(self, job_id: str) -> socket.socket | None:
        with contextlib.suppress(OSError):
            upstream = connect(self._engine.places(job_id).attach_socket)
            upstream.settimeout(0)
            return upstream
        return None

    async def stored_frames(self, job_id: str, offset: int) -> AsyncIterator[bytes]:
        """Yield the stored output of a final job in the frames of a monitor."""
        pieces = stored(self._engine.places(job_id).log, offset)
        while (piece := await run_in_threadpool(next, pieces, None)) is not None:
            found, data = piece
            if found != offset:
                yield encode_gap(found)
            offset = found + len(data)
            yield encode_frame(Kind.OUTPUT, data)
        yield encode_frame(Kind.END)


def _relay(connection: HTTPConnection) -> StreamRelay:
    return cast("StreamRelay", connection.app.state.relay)


RelayDep = Annotated[StreamRelay, Depends(_relay)]


@routes.get("/{job}/wait", response_model=described(Job), tags=["jobs"])
async def wait(
    service: JobServiceDep,
    relay: RelayDep,
    job: str,
    timeout_seconds: Annotated[float, Query(ge=0, le=_MOST_WAIT_SECONDS)] = _MOST_WAIT_SECONDS,
    *,
    has_hung_up: HangUpDep,
) -> Response:
    """Wait until a job is final, or for so long; return it as it is then."""
    job_id = (await run_in_threadpool(service.find, job)).job.id
    ended = await relay.run_while_connected(relay.until_final(job_id), timeout_seconds, has_hung_up)
    return JsonResponse(ended or await run_in_threadpool(service.ledger.job, job_id))


@routes.post("/wait", response_model=described(tuple[Job, ...]), openapi_extra=body_schema(Wait), tags=["jobs"])
async def wait_for_several(
    service: JobServiceDep,
    relay: RelayDep,
    body: Annotated[Wait, Depends(parse_body(Wait))],
    *,
    has_hung_up: HangUpDep,
) -> Response:
    """Wait until the first of several jobs is final, or for so long; return it with those behind it that are final too."""
    if not 1 <= len(body.jobs) <= MOST_WAITED or not 0 <= body.timeout_seconds <= _MOST_WAIT_SECONDS:
        raise RequestError(f"one request waits for 1 to {MOST_WAITED} jobs, 0 to {_MOST_WAIT_SECONDS:.0f} seconds")
    waiting = relay.until_some_ended(service, body.jobs)
    return JsonResponse(await relay.run_while_connected(waiting, body.timeout_seconds, has_hung_up) or ())


@routes.get("/{job}/granted", response_model=described(Job), tags=["jobs"])
async def granted(
    service: JobServiceDep,
    relay: RelayDep,
    job: str,
    timeout_seconds: Annotated[float, Query(ge=0, le=_MOST_WAIT_SECONDS)] = _MOST_WAIT_SECONDS,
    *,
    has_hung_up: HangUpDep,
    wants_reason: bool = True,
) -> Response:
    """Wait until a job is granted or ended, or for so long; return it as it is then, with the reason if it still waits."""
    job_id = (await run_in_threadpool(service.find, job)).job.id
    if found := await relay.run_while_connected(relay.until_granted(job_id), timeout_seconds, has_hung_up):
        return JsonResponse(found)
    entry = await run_in_threadpool(service.ledger.entry, job_id)
    if wants_reason and not has_hung_up():
        return JsonResponse((await run_in_threadpool(service.report, entry)).job)
    return JsonResponse(entry.job)


@routes.get("/{job}/logs", response_class=Response, responses={200: {"content": {MULTIPLEXED: {}}}}, tags=["streams"])
def logs(
    service: JobServiceDep, job: str, tail_lines: Annotated[int | None, Query(ge=0, le=1 << 31)] = None
) -> Response:
    """Return the stored output of a job, or its last lines, as Docker multiplexes streams."""
    # Starlette iterates a plain iterator in the thread pool.
    if tail_lines is None:
        return StreamingResponse(_multiplex(service.output(job)), media_type=MULTIPLEXED)
    lines, end = service.output_tail(job, tail_lines)
    return StreamingResponse(_multiplex(lines), media_type=MULTIPLEXED, headers={END_HEADER: str(end)})


def _multiplex(pieces: Iterable[tuple[str, bytes]]) -> Iterator[bytes]:
    for stream, data in pieces:
        yield _STREAM_NUMBERS[stream].to_bytes(4, "little") + len(data).to_bytes(4, "big") + data


@routes.websocket("/{job}/attach")
async def attach(
    websocket: WebSocket, service: JobServiceDep, relay: RelayDep, *, has_hung_up: HangUpDep, job: str
) -> None:
    """Carry a job's streams. A frame marks the end; after a connection that closed without it the client reconnects."""
    job_id = (await run_in_threadpool(service.find, job)).job.id
    with contextlib.suppress(WebSocketDisconnect):
        await websocket.accept()
        try:
            async with asyncio.timeout(_GREETING_SECONDS):
                hello, rest = await _read_greeting(websocket)
        except (ValueError, TimeoutError) as exc:
            await websocket.close(_UNREADABLE, reason=str(exc)[:100] or "no greeting came")
            return
        disconnect = asyncio.create_task(_wait_for_hang_up(has_hung_up))
        connecting = asyncio.create_task(relay.join(job_id, hello))
        try:
            await _relay_streams(websocket, connecting, disconnect, rest, relay.stored_frames(job_id, hello.offset))
        finally:
            disconnect.cancel()
            connecting.cancel()


async def _read_greeting(websocket: WebSocket) -> tuple[Hello, bytes]:
    """Read the first frame, and the input that came with it.

    Raises:
        ValueError: The first frame is no greeting.
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


async def _next_bytes(websocket: WebSocket) -> bytes:
    """Return the next message; empty once the client is gone or sends text."""
    message = await websocket.receive()
    return message.get("bytes") or b"" if message["type"] == "websocket.receive" else b""


async def _relay_streams(
    websocket: WebSocket,
    connecting: "asyncio.Task[socket.socket | None]",
    disconnect: "asyncio.Task[None]",
    rest: bytes,
    stored_frames: AsyncIterator[bytes],
) -> None:
    """Carry a running job's streams once its monitor accepts; send the stored output of a final job."""
    first_input = asyncio.create_task(_next_bytes(websocket))
    try:
        await asyncio.wait({first_input, connecting, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if first_input.done() and not first_input.result():
            return
        # Before the job runs, one message of input is read and the rest stays in the client's socket buffer; a
        # disconnect is still detected, by `disconnect`.
        await asyncio.wait({connecting, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            return
        upstream = connecting.result()
        if upstream is None:
            async for frames in stored_frames:
                await websocket.send_bytes(frames)
            await websocket.close(_NORMAL)
            return
        with upstream:
            await _send(upstream, rest)
            await _copy_both_ways(websocket, upstream, first_input, disconnect)
    finally:
        first_input.cancel()


async def _copy_both_ways(
    websocket: WebSocket, upstream: socket.socket, first_input: "asyncio.Task[bytes]", disconnect: "asyncio.Task[None]"
) -> None:
    """Copy both directions until either side closes, and then the client's last input for a few seconds."""

    async def down() -> None:
        while data := await _receive(upstream):
            await websocket.send_bytes(data)
        # Also after the end of the job, which is a frame of its own: a client that did not get it connects again.
        await websocket.close(_GONE)

    async def up() -> None:
        data = await first_input
        while data:
            await _send(upstream, data)
            data = await _next_bytes(websocket)

    tasks = {asyncio.create_task(down()), asyncio.create_task(up())}
    try:
        await asyncio.wait({*tasks, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(tasks, timeout=_LAST_INPUT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, (OSError, RuntimeError, WebSocketDisconnect)):
                raise outcome


async def _wait_for_hang_up(has_hung_up: Callable[[], bool]) -> None:
    """Wait until a client is gone, by polling: the kernel signals a disconnect only to a reader, and nothing reads here."""
    while not has_hung_up():  # noqa: ASYNC110 - see above
        await asyncio.sleep(_POLL_SECONDS)


async def _receive(upstream: socket.socket) -> bytes:
    """Receive from a monitor; empty once it has exited."""
    try:
        return await asyncio.get_running_loop().sock_recv(upstream, _CHUNK_BYTES)
    except ConnectionError:
        return b""


async def _send(upstream: socket.socket, data: bytes) -> None:
    """Send to a monitor; does nothing once it has exited, which the next `_receive` detects."""
    with contextlib.suppress(OSError):
        await asyncio.get_running_loop().sock_sendall(upstream, data)
