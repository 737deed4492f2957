"""The client's side of a wait for one job: it sleeps until the agent reports a reason or closes the connection.

Where there is no agent one is started. Whether the job still waits is read from the ledger.
"""

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from pgpu.engine.engine import Engine
from pgpu.engine.unix_sockets import wait_readable

_AGAIN_SECONDS = 0.02
"""Between two attempts to reach an agent that is starting."""

_CHUNK_BYTES = 4096


class Doorstep:
    """One job's wait."""

    def __init__(self, engine: Engine, job_id: str, gpu_model: str | None) -> None:
        """Do not connect yet.

        Args:
            engine: Of the ledger.
            job_id: The job that waits.
            gpu_model: Of its queue.
        """
        self.reason = ""
        """Why the job waits, by the last report."""

        self.wake_descriptor: int | None = None
        """Polled beside the connection; `on_wake` is called when it is readable."""

        self.on_wake: Callable[[], None] = lambda: None
        self.on_connected: Callable[[], None] = lambda: None
        """Called with each new connection: an agent accepts calls then."""

        self._engine = engine
        self._id = job_id
        self._gpu_model = gpu_model
        self._connection: socket.socket | None = None
        self._unread = b""

    def rest(self, timeout_seconds: float | None = None) -> None:
        """Sleep until the job's state may have changed, at most this long.

        Raises:
            PgpuError: There is no agent and none can be started.
        """
        if self._connection is None:
            self._connection = self._connected()
            if self._connection is not None:
                self.on_connected()
        if self._connection is None:
            self._engine.agents.ensure(self._gpu_model)  # which recovers before it admits
            timeout_seconds = _AGAIN_SECONDS
        ready = wait_readable(timeout_seconds, *self.descriptors)
        if self.wake_descriptor in ready:
            self.on_wake()
        if self._connection is not None and self._connection.fileno() in ready:
            self._read(self._connection)

    @property
    def is_connected(self) -> bool:
        """Whether the agent reports to it."""
        return self._connection is not None

    @property
    def descriptors(self) -> Sequence[int]:
        """Those that end a rest when they are readable; `rest` then handles it."""
        connection = None if self._connection is None else self._connection.fileno()
        return [each for each in (connection, self.wake_descriptor) if each is not None]

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> socket.socket | None:
        try:
            connection = self._engine.agents.connect(self._gpu_model)
        except OSError:
            return None
        with suppress(OSError):
            connection.sendall(self._id.encode() + b"\n")
        return connection

    def _read(self, connection: socket.socket) -> None:
        """Keep the last whole line; the end of the connection means that the job's entry in the ledger has changed."""
        try:
            data = connection.recv(_CHUNK_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            self.close()
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        if lines:
            self.reason = lines[-1].decode("utf-8", "replace")
