"""Waiting for jobs and carrying their streams, without a thread for each: what a server does for those who stay.

A client that lost its connection comes again and says from where: nothing is remembered here. It refuses to look into
what it carries, except for the greeting, which says where in the log a client is.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

from pgpu.client.following import FROM_NOW_ON
from pgpu.engine.engine import Engine
from pgpu.engine.process.unix_sockets import connect
from pgpu.engine.streams.frames import Hello, Kind, encode_frame, encode_gap, encode_hello
from pgpu.engine.streams.log import stored
from pgpu.model import Job, JobState
from pgpu.server.event_broadcast import EventBroadcast

T = TypeVar("T")

_FIRST_PAUSE_SECONDS = 0.01
_MOST_PAUSE_SECONDS = 0.1
_GLANCE_SECONDS = 1.0
"""A job that waits is looked at so often without any news: what changed before somebody listened is not heard. So is
a client that waits: whether it is there still."""

_CHUNK_BYTES = 1 << 18


class StreamRelay:
    """The jobs of one ledger, as those who stay with them see them."""

    def __init__(self, engine: Engine, bulletin: EventBroadcast) -> None:
        self._engine = engine
        self._bulletin = bulletin
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Let everybody go who stays: the server is told to end, and they come again."""
        self._leaving.set()
        self._bulletin.close()

    async def stay(
        self, work: Coroutine[None, None, T], most_seconds: float, has_hung_up: Callable[[], bool]
    ) -> T | None:
        """Return what some work gives; None if it takes longer, if its client hangs up, or if the server leaves."""
        tasks = (
            asyncio.create_task(work),
            asyncio.create_task(self._leaving.wait()),
            asyncio.create_task(until_hung_up(has_hung_up)),
        )
        try:
            done, _ = await asyncio.wait(tasks, timeout=most_seconds, return_when=asyncio.FIRST_COMPLETED)
            return tasks[0].result() if tasks[0] in done else None
        finally:
            for task in tasks:
                task.cancel()

    async def until_final(self, job_id: str) -> Job:
        """Wait until a job is final, and return it."""
        while (upstream := await self._upstream(job_id)) is not None:
            with upstream:
                await send(upstream, encode_hello(Hello(FROM_NOW_ON, holds_back=False, owns_stdin=False)))
                while await receive(upstream):
                    pass
        return await run_in_threadpool(self._engine.ledger.job, job_id)

    async def until_granted(self, job_id: str) -> Job:
        """Wait until a job waits no longer, and return it."""
        while (job := await run_in_threadpool(self._engine.ledger.job, job_id)).state is JobState.WAITING:
            await self._bulletin.until_changed(job_id, _GLANCE_SECONDS)
        return job

    async def joined(self, job_id: str, hello: Hello) -> socket.socket | None:
        """Wait until a job can be attached to; None where it is final and only its stored log is left."""
        upstream = await self._upstream(job_id)
        if upstream is not None:
            await send(upstream, encode_hello(hello))
        return upstream

    async def _upstream(self, job_id: str) -> socket.socket | None:
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            state = (await run_in_threadpool(self._engine.ledger.job, job_id)).state
            upstream = await run_in_threadpool(self._try_connect, job_id)
            if upstream is not None or state.is_final:
                return upstream
            if state is JobState.WAITING:
                await self._bulletin.until_changed(job_id, _GLANCE_SECONDS)
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
        """Yield what is stored of a final job's output, as its supervisor would have sent it."""
        pieces = stored(self._engine.places(job_id).log, offset)
        while (piece := await run_in_threadpool(_next_of, pieces.__next__)) is not None:
            found, data = piece
            if found != offset:
                yield encode_gap(found)
            offset = found + len(data)
            yield encode_frame(Kind.OUTPUT, data)
        yield encode_frame(Kind.END)


async def until_hung_up(has_hung_up: Callable[[], bool]) -> None:
    """Wait until a client is gone, also one of whom nothing is read meanwhile."""
    while not has_hung_up():  # noqa: ASYNC110 - the kernel tells nobody of it who does not read
        await asyncio.sleep(_GLANCE_SECONDS)


def _next_of(take: Callable[[], T]) -> T | None:
    try:
        return take()
    except StopIteration:
        return None


async def receive(upstream: socket.socket) -> bytes:
    """Wait for bytes of a supervisor; none mean that it is gone."""
    try:
        return await asyncio.get_running_loop().sock_recv(upstream, _CHUNK_BYTES)
    except ConnectionError:
        return b""


async def send(upstream: socket.socket, data: bytes) -> None:
    """Send bytes to a supervisor; does nothing once it is gone."""
    with contextlib.suppress(OSError):  # Whoever reads from it next sees that it is gone.
        await asyncio.get_running_loop().sock_sendall(upstream, data)
