"""A job's output as one client sees it: from any offset, through its supervisor or from the stored log, without a gap.

Where the supervisor dies, another one is waited for and the output goes on where it ended.
"""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from pgpu.client.line import Reading, Sender
from pgpu.engine.engine import Engine
from pgpu.engine.keeper.doorstep import Doorstep
from pgpu.engine.recovery import recover
from pgpu.engine.sockets import connect
from pgpu.engine.streams.frames import FrameDecoder, Hello, Kind, encode_hello
from pgpu.engine.streams.log import stored
from pgpu.engine.streams.records import Record
from pgpu.engine.talking import send_signal, send_window
from pgpu.model import JobState

FROM_NOW_ON = (1 << 63) - 1
"""An offset behind every log: only the end is heard of."""

_RECONNECT_SECONDS = 0.02
_RECOVER_SECONDS = 1.0
_CHUNK_BYTES = 1 << 18


class Follower:
    """Follows one job until it is final."""

    def __init__(self, engine: Engine, job_id: str, *, offset: int = 0, holds_back: bool = False) -> None:
        """Do not connect yet.

        Args:
            engine: Whose job it is.
            job_id: The job.
            offset: Where in its log to begin.
            holds_back: Whether the job is to be held back rather than that output is lost.
        """
        self._engine = engine
        self._job_id = job_id
        self.reading = Reading(offset)
        self._holds_back = holds_back
        self.owns_stdin = False
        self.on_connected: Callable[[Sender], None] = lambda _: None
        self.on_wake: Callable[[], None] = lambda: None
        self.wake_descriptor: int | None = None
        """Polled beside the socket; `on_wake` is called when it is readable."""

    def records(self) -> Iterator[Record]:
        """Yield output until the job is final and all of it was yielded.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        recover_at_seconds = 0.0
        while True:
            was_final = self._wait_for_grant().is_final
            connection = self._connected()
            if connection is not None:
                with connection:
                    if (yield from self._listen(connection)):
                        return
            elif was_final:
                yield from self.stored_records()
                return
            elif time.monotonic() > recover_at_seconds:
                recover(self._engine)
                recover_at_seconds = time.monotonic() + _RECOVER_SECONDS
            self._wait(_RECONNECT_SECONDS)

    def _wait_for_grant(self) -> JobState:
        """Return the first state after `waiting`."""
        job = self._engine.ledger.job(self._job_id)
        with Doorstep(self._engine, job.id, job.gpu_model) as doorstep:
            while job.state is JobState.WAITING:
                doorstep.wake_descriptor, doorstep.on_wake = self.wake_descriptor, self.on_wake
                doorstep.rest()
                job = self._engine.ledger.job(self._job_id)
        return job.state

    def _connected(self) -> socket.socket | None:
        try:
            connection = connect(self._engine.places(self._job_id).attach_socket)
        except OSError:
            return None
        with contextlib.suppress(OSError):
            connection.sendall(encode_hello(Hello(self.reading.offset, self._holds_back, self.owns_stdin)))
        self.on_connected(connection)
        return connection

    def _listen(self, connection: socket.socket) -> Generator[Record, None, bool]:
        """Yield what the supervisor sends; return whether it said that this was all."""
        frames = FrameDecoder()
        while data := self._receive(connection):
            for frame in frames.feed(data):
                if frame.kind is Kind.END:
                    return True
                yield from self.reading.read_frame(frame)
        return False

    def _receive(self, connection: socket.socket) -> bytes:
        """Wait for bytes; none mean that the supervisor is gone."""
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        if self.wake_descriptor is not None:
            poll.register(self.wake_descriptor, select.POLLIN)
        while connection.fileno() not in (ready := dict(poll.poll())):
            if ready:
                self.on_wake()
        try:
            return connection.recv(_CHUNK_BYTES)
        except ConnectionError:
            return b""

    def _wait(self, seconds: float) -> None:
        if self.wake_descriptor is None:
            threading.Event().wait(seconds)
        elif select.select([self.wake_descriptor], [], [], seconds)[0]:
            self.on_wake()

    def stored_records(self) -> Iterator[Record]:
        """Yield what is stored now; `records` goes on behind it."""
        for offset, data in stored(self._engine.places(self._job_id).log, self.reading.offset):
            if offset != self.reading.offset:
                self.reading.jump(offset)
            yield from self.reading.read(data)


@dataclass(frozen=True, slots=True)
class EngineHand:
    """What a caller does to a job of an engine in this process; see `Hand`."""

    engine: Engine
    job_id: str

    def state(self) -> JobState:
        """See `Hand`."""
        return self.engine.ledger.job(self.job_id).state

    def cancel(self) -> None:
        """See `Hand`."""
        self.engine.ask_to_stop(self.job_id, 0.0)

    def send_signal(self, number: int) -> None:
        """See `Hand`."""
        send_signal(self.engine, self.job_id, number)

    def send_window(self, columns: int, rows: int) -> None:
        """See `Hand`."""
        send_window(self.engine, self.job_id, columns, rows)
