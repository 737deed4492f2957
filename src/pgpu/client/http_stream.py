"""A job of a server as one client sees it: its output over a WebSocket, from any offset, without a gap.

A server that goes away while the job runs is waited for, and the output goes on where it ended; so do signals and input.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from pgpu.client.connection import HttpTransport, server_unavailable
from pgpu.client.job_stream import JobStream
from pgpu.client.protocol import JobReport
from pgpu.engine.streams.records import Record
from pgpu.errors import ServerUnavailableError
from pgpu.model import JobState
from pgpu.services import wire
from pgpu.services.messages import Signal, Stop, Window

if TYPE_CHECKING:
    from pgpu.client.websocket import WebSocketChannel


def job_path(id_or_name: str, rest: str = "") -> str:
    """Return the path of a job's route."""
    return f"/v1/jobs/{quote(os.fsencode(id_or_name), safe='')}{rest}"


class HttpJobStream(JobStream):
    """Follows one job until it is final; see `JobStream`."""

    def __init__(self, server: HttpTransport, job_id: str, *, offset: int = 0, holds_back: bool = False) -> None:
        """Do not connect yet.

        Args:
            server: Whose job it is.
            job_id: The job.
            offset: As of `JobStream`.
            holds_back: Likewise.
        """
        super().__init__(offset, holds_back=holds_back)
        self._server = server
        self._job_id = job_id

    def records(self) -> Iterator[Record]:
        """Yield output until the job is final and all of it was yielded.

        Raises:
            ServerUnavailableError: It has been away too long; the job goes on.
        """
        while True:
            channel = self._connected()
            try:
                if (yield from self.heard(partial(self._receive, channel))):
                    return
            finally:
                channel.close()
            self.rest(_RECONNECT_SECONDS)

    def _connected(self) -> "WebSocketChannel":
        absence = self._server.away()
        while True:
            try:
                return self._connected_once()
            except ServerUnavailableError as exc:
                absence.endure(exc, self.rest)

    def _connected_once(self) -> "WebSocketChannel":
        from pgpu.client.websocket import WebSocketChannel  # noqa: PLC0415 - most commands attach to nothing

        connection = self._server.connect()
        try:
            channel = WebSocketChannel(connection, job_path(self._job_id, "/attach"), self._server.headers)
            channel.sendall(self.greeting())
        except OSError as exc:
            connection.close()
            raise server_unavailable(self._server.address, exc) from exc
        except BaseException:  # Ctrl-C too: nobody else could close it.
            connection.close()
            raise
        self._server.has_answered()
        self.on_connected(channel)
        return channel

    def _receive(self, channel: "WebSocketChannel") -> Sequence[bytes] | None:
        if not channel.is_ready:
            self.rest_until_readable(channel)
        return channel.receive()


_RECONNECT_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class HttpJobControl:
    """What a caller does to a job of a server; see `JobControl`."""

    server: HttpTransport
    job_id: str

    def state(self) -> JobState:
        """See `JobControl`."""
        return wire.decode(JobReport, self.server.ask("GET", job_path(self.job_id))).job.state

    def cancel(self) -> None:
        """See `JobControl`."""
        self.server.ask("POST", job_path(self.job_id, "/stop"), Stop(0.0))

    def send_signal(self, number: int) -> None:
        """See `JobControl`."""
        self.server.ask("POST", job_path(self.job_id, "/signal"), Signal(number), is_repeatable=False)

    def send_window(self, columns: int, rows: int) -> None:
        """See `JobControl`."""
        self.server.ask("POST", job_path(self.job_id, "/window"), Window(columns, rows))
