"""A job of a server as a stream: its output over a WebSocket, from any offset, without a gap.

While a server restarts, the stream reconnects and resumes behind the last byte; signals and input continue as well.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pgpu.client.connection import HttpTransport, server_unavailable
from pgpu.client.job_stream import JobStream
from pgpu.client.remote_service import path_segment
from pgpu.engine.streams.records import Record
from pgpu.errors import ServerUnavailableError
from pgpu.model import JobState
from pgpu.services import wire
from pgpu.services.messages import Signal, Stop, Window
from pgpu.services.reports import JobReport
from pgpu.services.route_table import JOB_ROOT

if TYPE_CHECKING:
    from pgpu.client.websocket import WebSocketChannel

_RECONNECT_SECONDS = 0.02


def job_path(id_or_name: str, rest: str = "") -> str:
    """Return the path of a job's route."""
    return f"{JOB_ROOT}/{path_segment(id_or_name)}{rest}"


class HttpJobStream(JobStream):
    """Follows one job until it is final; see `JobStream`."""

    def __init__(self, transport: HttpTransport, job_id: str, *, offset: int = 0, holds_back: bool = False) -> None:
        super().__init__(offset, holds_back=holds_back)
        self._transport = transport
        self._job_id = job_id

    def records(self) -> Iterator[Record]:
        """Yield output until the job is final and all of it was yielded.

        Raises:
            ServerUnavailableError: The server has been away too long; the job continues.
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
        deadline = self._transport.away()
        while True:
            try:
                return self._connected_once()
            except ServerUnavailableError as exc:
                deadline.endure(exc, self.rest)

    def _connected_once(self) -> "WebSocketChannel":
        from pgpu.client.websocket import WebSocketChannel  # noqa: PLC0415 - most commands open no WebSocket

        connection = self._transport.connect()
        try:
            channel = WebSocketChannel(connection, job_path(self._job_id, "/attach"), self._transport.headers)
            channel.sendall(self.greeting())
        except OSError as exc:
            connection.close()
            raise server_unavailable(self._transport.address, exc) from exc
        except BaseException:  # KeyboardInterrupt, too: no other reference would close it.
            connection.close()
            raise
        self._transport.has_answered()
        self.on_connected(channel)
        return channel

    def _receive(self, channel: "WebSocketChannel") -> Sequence[bytes] | None:
        if not channel.is_ready:
            self.rest_until_readable(channel)
        return channel.receive()


@dataclass(frozen=True, slots=True)
class HttpJobControl:
    """The `JobControl` of a server's job."""

    transport: HttpTransport
    job_id: str

    def state(self) -> JobState:
        """See `JobControl`."""
        return wire.decode(JobReport, self.transport.ask("GET", job_path(self.job_id))).job.state

    def cancel(self) -> None:
        """See `JobControl`."""
        self.transport.ask("POST", job_path(self.job_id, "/stop"), Stop(0.0))

    def send_signal(self, number: int) -> None:
        """See `JobControl`."""
        self.transport.ask("POST", job_path(self.job_id, "/signal"), Signal(number), is_repeatable=False)

    def send_window(self, columns: int, rows: int) -> None:
        """See `JobControl`."""
        self.transport.ask("POST", job_path(self.job_id, "/window"), Window(columns, rows))
