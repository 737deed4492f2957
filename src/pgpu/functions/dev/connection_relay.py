"""A TCP port that outlives replicas: each new connection is relayed to the current replica's Unix socket.

Bytes are copied without parsing, so every protocol of a replica works. A connection stays with its replica until that closes
it, which it does before it ends. While there is no replica, the relay answers 503 itself.
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
_ABORT_AGAIN_SECONDS = 0.05
_BODY = json.dumps(
    {
        "error": "no code of this function runs: see the output of pgpu function dev",
        "code": "not_running",
        "request_id": None,
    }
).encode()
_NO_REPLICA = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


class ConnectionRelay:
    """Listens in an event loop in a thread of its own."""

    def __init__(self, host: str, port: int) -> None:
        self.target: Path | None = None
        """The Unix socket for new connections; None while there is no replica. Set from another thread."""

        self.port = port
        """The port; after `start` never 0."""

        self._host = host
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)

    def start(self) -> None:
        """Start to listen.

        Raises:
            RequestError: The port is in use, or the address is not this machine's.
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
        """Stop listening and abort all connections."""
        # The loop runs in the relay thread: end the connections there, then stop the loop, then join the thread.
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
        # A connection may be accepted while others are aborted: repeat until no task is left.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.wait(tasks, timeout=_ABORT_AGAIN_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._open(writer):
            try:
                replica_reader, replica_writer = await asyncio.open_unix_connection(str(self.target or ""))
            except OSError:
                await self._refuse(reader, writer)
                return
            with self._open(replica_writer):
                up = asyncio.ensure_future(_copy(reader, replica_writer))
                # A client that closes its sending half first still gets its response: only the replica ends a connection.
                await _copy(replica_reader, writer)
                up.cancel()  # the replica closed the connection: what the caller still sends is dropped
                await asyncio.wait((up,))

    @contextmanager
    def _open(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._writers.add(writer)
        try:
            yield
        finally:
            self._writers.remove(writer)
            writer.close()

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # the caller may leave at any moment
            # Read the request first: closing a socket with unread bytes resets the connection, and the answer would be lost.
            await reader.read(_PIECE_BYTES)
            writer.write(_NO_REPLICA)
            await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
