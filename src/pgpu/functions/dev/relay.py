"""A TCP port that stays while replicas come and go: each new connection goes to the replica of the moment.

Bytes are carried and not read, so everything that a front can do works through it. Connections that a replica has stay
with it until it closes them, which it does once it was told to end. It refuses to know HTTP, but for one answer of its own
while there is no replica.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pgpu.errors import RequestError

_PIECE_BYTES = 1 << 16
_LOOK_AGAIN_SECONDS = 0.05
_BODY = json.dumps(
    {"error": "no code of this function runs: pgpu dev says why", "code": "not_running", "request_id": None}
).encode()
_NOBODY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


class ConnectionRelay:
    """Listens in a thread of its own."""

    def __init__(self, host: str, port: int) -> None:
        self.target: Path | None = None
        """The Unix socket that new connections are carried to; None while there is none."""

        self.port = port
        """Where it listens; after `start` never 0."""

        self._host = host
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)

    def start(self) -> None:
        """Begin to listen.

        Raises:
            RequestError: The port is taken, or the address is not this machine's.
        """
        self._thread.start()
        try:
            self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        except OSError as exc:
            self.stop()
            raise RequestError(
                f"{self._host}:{self.port} cannot be listened on: {exc.strerror}", hint="name another with --port"
            ) from exc

    def stop(self) -> None:
        """Stop listening; connections end."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, self._host, self.port)
        return int(self._server.sockets[0].getsockname()[1])

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.wait(tasks, timeout=_LOOK_AGAIN_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._open(writer):
            try:
                theirs, ours = await asyncio.open_unix_connection(str(self.target or ""))
            except OSError:
                await self._refuse(reader, writer)
                return
            with self._open(ours):
                up = asyncio.ensure_future(_copy(reader, ours))
                await _copy(theirs, writer)
                up.cancel()  # whoever still speaks is not heard any more
                await asyncio.wait((up,))

    @contextmanager
    def _open(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        """Know of a connection while it is there."""
        self._writers.add(writer)
        try:
            yield
        finally:
            self._writers.remove(writer)
            writer.close()

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # the caller may leave at any moment
            await reader.read(_PIECE_BYTES)
            writer.write(_NOBODY)
            await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
