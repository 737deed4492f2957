"""Those who wait for one job each: told why it waits, and hung up on when it waits no longer.

They ask with the job's id and a newline, and get lines; nobody of them can hold the keeper up.
"""

import socket
from collections.abc import Callable, Collection
from contextlib import suppress

from pgpu.engine.event_loop import READABLE, EventLoop

_MOST_BYTES = 64


class Door:
    """The connections of everybody who waits."""

    def __init__(
        self,
        loop: EventLoop,
        listener: socket.socket,
        still_waits: Callable[[str], bool],
        reason: Callable[[str], str | None],
    ) -> None:
        """Take callers from now on.

        Args:
            loop: Calls on whoever is ready.
            listener: Where they call.
            still_waits: Whether a job waits now.
            reason: Says why, as the last round found it; None for a job that it did not know.
        """
        self._loop = loop
        self._listener = listener
        self._still_waits = still_waits
        self._reason = reason
        self._connections: dict[int, socket.socket] = {}
        self._jobs: dict[int, str] = {}
        self._told: dict[int, str] = {}
        listener.listen(socket.SOMAXCONN)
        loop.watch(listener.fileno(), READABLE, lambda _: self._accept())

    def let_go(self, waiting_ids: Collection[str]) -> None:
        """Hang up on those whose jobs are not among the waiting ones."""
        for descriptor, job_id in list(self._jobs.items()):
            if job_id not in waiting_ids:
                self._drop(descriptor)

    def tell(self) -> None:
        """Say what is new to each."""
        for descriptor, job_id in self._jobs.items():
            self._say(descriptor, self._reason(job_id))

    def close(self) -> None:
        """Hang up on everybody."""
        for descriptor in list(self._connections):
            self._drop(descriptor)
        self._loop.forget(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # It hung up before it was answered.
        connection.settimeout(0)
        descriptor = connection.fileno()
        self._connections[descriptor] = connection
        self._loop.watch(descriptor, READABLE, lambda _: self._hear(descriptor))

    def _hear(self, descriptor: int) -> None:
        """Read whom it is about; a caller that says more, or hangs up, goes."""
        try:
            words = self._connections[descriptor].recv(_MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            words = b""
        job_id = words.decode("ascii", "replace").strip()
        if descriptor in self._jobs or not words.endswith(b"\n") or not self._still_waits(job_id):
            self._drop(descriptor)
        else:
            self._jobs[descriptor] = job_id
            self._say(descriptor, self._reason(job_id))

    def _say(self, descriptor: int, reason: str | None) -> None:
        if reason is not None and self._told.get(descriptor) != reason:
            self._told[descriptor] = reason
            with suppress(OSError):  # Who does not read misses a reason, not the end.
                self._connections[descriptor].send(reason.encode() + b"\n")

    def _drop(self, descriptor: int) -> None:
        self._jobs.pop(descriptor, None)
        self._told.pop(descriptor, None)
        self._loop.forget(descriptor)
        self._connections.pop(descriptor).close()
