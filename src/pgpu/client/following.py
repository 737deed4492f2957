"""A job's output for a client on the same machine: from any offset, from the job's monitor or from the stored log.

If the connection ends early, because the monitor was killed, the client connects to the next one and continues at its offset,
without a gap.
"""

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from functools import partial

from pgpu.client.job_stream import JobStream
from pgpu.client.monitor_offer import MonitorOffer
from pgpu.engine.agent.doorstep import Doorstep
from pgpu.engine.context import send_signal, send_window
from pgpu.engine.engine import Engine
from pgpu.engine.leases.recovery import recover
from pgpu.engine.streams.records import Record
from pgpu.engine.unix_sockets import connect
from pgpu.model import Job, JobState

FROM_NOW_ON = (1 << 63) - 1
"""An offset behind every log: the client gets no output, only the end."""

_RECONNECT_SECONDS = 0.02
_RECOVER_SECONDS = 1.0
_CHUNK_BYTES = 1 << 18


class Follower(JobStream):
    """Follows one job until it is final."""

    def __init__(
        self,
        engine: Engine,
        job: Job,
        *,
        offset: int = 0,
        holds_back: bool = False,
        offer: MonitorOffer | None = None,
    ) -> None:
        """Do not connect yet.

        Args:
            engine: Of the job's ledger.
            job: The job, as it was read just now.
            offset: As of `JobStream`.
            holds_back: Likewise.
            offer: Renewed for each start of the job; None if this process does not offer its monitor.
        """
        super().__init__(offset, holds_back=holds_back)
        self._engine = engine
        self._job: Job | None = job
        self._job_id = job.id
        self._offer = offer

    def records(self) -> Iterator[Record]:
        """Yield output until the job is final and all of it was yielded.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        recover_at_seconds = time.monotonic() + _RECOVER_SECONDS
        while True:
            state = self._wait_for_grant()
            if state is JobState.STARTING and self._offer is not None:
                self._offer.renew()
            connection = self._connected()
            if connection is not None:
                with connection:
                    if (yield from self.read_connection(partial(self._receive, connection))):
                        return
            elif state.is_final:
                yield from self.stored_records()
                return
            elif time.monotonic() > recover_at_seconds:
                recover(self._engine)
                recover_at_seconds = time.monotonic() + _RECOVER_SECONDS
            self._await_start(state)

    def _wait_for_grant(self) -> JobState:
        """Return the first state after `waiting`."""
        # The first call uses what the caller has read.
        job, self._job = self._job or self._engine.ledger.job(self._job_id), None
        if job.state is not JobState.WAITING:
            return job.state
        with contextlib.closing(Doorstep(self._engine, job.id, job.gpu_model)) as doorstep:
            if self._offer is not None:
                doorstep.on_connected = self._offer.renew
            while job.state is JobState.WAITING:
                doorstep.wake_descriptor, doorstep.on_wake = self.wake_descriptor, self.on_wake
                doorstep.rest()
                job = self._engine.ledger.job(self._job_id)
        return job.state

    def _await_start(self, state: JobState) -> None:
        """Sleep until the job's monitor may accept connections: the agent listens for it before it takes an offer."""
        taken = None if self._offer is None or state is not JobState.STARTING else self._offer.descriptor
        if taken is None:
            self.rest(_RECONNECT_SECONDS)
        else:
            self.rest(_RECOVER_SECONDS, taken)
        if self._offer is not None:
            self._offer.expect_another_start()

    def _connected(self) -> socket.socket | None:
        try:
            connection = connect(self._engine.places(self._job_id).attach_socket)
        except OSError:
            return None
        with contextlib.suppress(OSError):
            connection.sendall(self.greeting())
        self.on_connected(connection)
        return connection

    def _receive(self, connection: socket.socket) -> Sequence[bytes] | None:
        """Wait for bytes; None once the monitor has closed the connection."""
        self.rest_until_readable(connection)
        try:
            data = connection.recv(_CHUNK_BYTES)
        except ConnectionError:
            return None
        return [data] if data else None

    def stored_records(self) -> Iterator[Record]:
        """Yield the output that is stored now; `records` continues behind it."""
        return self.reading.read_stored(self._engine.places(self._job_id).log)

    def state(self) -> JobState:
        """See `JobStream`."""
        return self._engine.ledger.job(self._job_id).state

    def cancel(self) -> None:
        """See `JobStream`."""
        self._engine.ask_to_stop(self._job_id, 0.0)

    def send_signal(self, number: int) -> None:
        """See `JobStream`."""
        send_signal(self._engine, self._job_id, number)

    def send_window(self, columns: int, rows: int) -> None:
        """See `JobStream`."""
        send_window(self._engine, self._job_id, columns, rows)
