"""A job of a server as one client sees it: its output over a WebSocket, from any offset, without a gap.

A server that goes away while the job runs is waited for, and the output goes on where it ended; so do signals and input.
"""

import os
import select
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from urllib.parse import quote

from pgpu.client import wire
from pgpu.client.asking import Signal, Stop, Window
from pgpu.client.channel import Channel
from pgpu.client.connection import Server, unavailable
from pgpu.client.line import Reading, Sender
from pgpu.client.protocol import JobReport
from pgpu.engine.streams.frames import FrameDecoder, Hello, Kind, encode_hello
from pgpu.engine.streams.records import Record
from pgpu.errors import ServerUnavailableError
from pgpu.model import JobState


def path_of(id_or_name: str, rest: str = "") -> str:
    """Return the path of a job's route."""
    return f"/v1/jobs/{quote(os.fsencode(id_or_name), safe='')}{rest}"


class ServedLine:
    """Follows one job until it is final; see `Line`."""

    def __init__(self, server: Server, job_id: str, *, offset: int = 0, holds_back: bool = False) -> None:
        """Do not connect yet.

        Args:
            server: Whose job it is.
            job_id: The job.
            offset: Where in its log to begin.
            holds_back: Whether the job is to be held back rather than that output is lost.
        """
        self._server = server
        self._job_id = job_id
        self._holds_back = holds_back
        self.reading = Reading(offset)
        self.owns_stdin = False
        self.on_connected: Callable[[Sender], None] = lambda _: None
        self.on_wake: Callable[[], None] = lambda: None
        self.wake_descriptor: int | None = None

    def records(self) -> Iterator[Record]:
        """Yield output until the job is final and all of it was yielded.

        Raises:
            ServerUnavailableError: It has been away too long; the job goes on.
        """
        while True:
            channel = self._connected()
            try:
                if (yield from self._listen(channel)):
                    return
            finally:
                channel.close()

    def _connected(self) -> Channel:
        absence = self._server.away()
        while True:
            try:
                return self._connected_once()
            except ServerUnavailableError as exc:
                absence.endure(exc, self._wait)

    def _connected_once(self) -> Channel:
        connection = self._server.connect()
        try:
            channel = Channel(connection, path_of(self._job_id, "/attach"), self._server.headers)
            channel.sendall(encode_hello(Hello(self.reading.offset, self._holds_back, self.owns_stdin)))
        except OSError as exc:
            connection.close()
            raise unavailable(self._server.address, exc) from exc
        except BaseException:  # Ctrl-C too: nobody else could close it.
            connection.close()
            raise
        self._server.has_answered()
        self.on_connected(channel)
        return channel

    def _listen(self, channel: Channel) -> Generator[Record, None, bool]:
        """Yield what the job's supervisor sends; return whether it said that this was all."""
        frames = FrameDecoder()
        while (messages := self._receive(channel)) is not None:
            for message in messages:
                for frame in frames.feed(message):
                    if frame.kind is Kind.END:
                        return True
                    yield from self.reading.read_frame(frame)
        self._wait(_RECONNECT_SECONDS)
        return False

    def _receive(self, channel: Channel) -> "list[bytes] | None":
        if not channel.is_ready:
            poll = select.poll()
            poll.register(channel, select.POLLIN)
            if self.wake_descriptor is not None:
                poll.register(self.wake_descriptor, select.POLLIN)
            while channel.fileno() not in (ready := dict(poll.poll())):
                if ready:
                    self.on_wake()
        messages = channel.receive()
        return None if messages is None else list(messages)

    def _wait(self, seconds: float) -> None:
        if self.wake_descriptor is None:
            threading.Event().wait(seconds)
        elif select.select([self.wake_descriptor], [], [], seconds)[0]:
            self.on_wake()


_RECONNECT_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class ServedHand:
    """What a caller does to a job of a server; see `Hand`."""

    server: Server
    job_id: str

    def state(self) -> JobState:
        """See `Hand`."""
        return wire.decode(JobReport, self.server.ask("GET", path_of(self.job_id))).job.state

    def cancel(self) -> None:
        """See `Hand`."""
        self.server.ask("POST", path_of(self.job_id, "/stop"), Stop(0.0))

    def send_signal(self, number: int) -> None:
        """See `Hand`."""
        self.server.ask("POST", path_of(self.job_id, "/signal"), Signal(number), is_repeatable=False)

    def send_window(self, columns: int, rows: int) -> None:
        """See `Hand`."""
        self.server.ask("POST", path_of(self.job_id, "/window"), Window(columns, rows))
