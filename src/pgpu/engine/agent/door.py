"""The connections of clients that wait for one job each: they get the reason of the wait, and end when it ends.

A client sends the job's id and a newline, and gets lines; no client can delay the agent. `create` of a container sends `container`
and the id of its slice, and gets one byte. A command that offers its job's monitor sends `monitor` and the job's id with two
descriptors. A server sends `stay` and gets nothing: the agent stays as long as the connection.
"""

import os
import socket
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from pgpu.engine.agent.agents import MONITOR
from pgpu.engine.event_loop import READABLE, EventLoop

CONTAINER = "container "
"""Begins the message that names a new container; the answer is `+`, or `-` if no thread can be started for it."""

STAY = "stay"
"""Message of a process for which the agent stays although no job waits or runs."""

_MOST_BYTES = 64
_MOST_DESCRIPTORS = 2


class Door:
    """All connections of one agent."""

    def __init__(  # noqa: PLR0917 - the calls of one agent
        self,
        loop: EventLoop,
        listener: socket.socket,
        still_waits: Callable[[str], bool],
        reason: Callable[[str], str | None],
        take_container: Callable[[str], bool],
        take_offer: Callable[[str, socket.socket, Sequence[int]], None],
        on_stay: Callable[[], None],
    ) -> None:
        """Accept connections from now on.

        Args:
            loop: Of the agent.
            listener: Stream socket.
            still_waits: Whether a job waits now.
            reason: Returns why, as the last round found it; None for a job that the round did not have.
            take_container: Has a thread attend a container; returns whether there is one.
            take_offer: Takes the offer of a monitor for a job: its connection, which is then the callee's, and descriptors.
            on_stay: Called when `is_kept` may have changed.
        """
        self._loop = loop
        self._listener = listener
        self._still_waits = still_waits
        self._reason = reason
        self._take_container = take_container
        self._take_offer = take_offer
        self._on_stay = on_stay
        self._keepers: set[int] = set()
        self._connections: dict[int, socket.socket] = {}
        self._jobs: dict[int, str] = {}
        self._sent: dict[int, str] = {}
        listener.listen(socket.SOMAXCONN)
        loop.watch(listener.fileno(), READABLE, lambda _: self._accept())

    @property
    def is_kept(self) -> bool:
        """Whether a process is connected for which the agent stays."""
        return bool(self._keepers)

    def close_all_but(self, waiting_ids: Collection[str]) -> None:
        """Close the connections of jobs that are not among the waiting ones."""
        for descriptor, job_id in list(self._jobs.items()):
            if job_id not in waiting_ids:
                self._drop(descriptor)

    def report(self) -> None:
        """Send each client a reason that is new to it."""
        for descriptor, job_id in self._jobs.items():
            self._send(descriptor, self._reason(job_id))

    def close(self) -> None:
        """Close all connections."""
        self._keepers.clear()
        for descriptor in list(self._connections):
            self._drop(descriptor)
        self._loop.forget(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # The client closed it before it was accepted.
        connection.settimeout(0)
        descriptor = connection.fileno()
        self._connections[descriptor] = connection
        self._loop.watch(descriptor, READABLE, lambda _: self._receive(descriptor))

    def _receive(self, descriptor: int) -> None:
        """Read the job's id; a client that sends more, or closes, is dropped."""
        words, given = b"", list[int]()
        try:
            words, given, _, _ = socket.recv_fds(
                self._connections[descriptor], _MOST_BYTES, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            pass  # The client has closed the connection.
        job_id = words.decode("ascii", "replace").strip()
        if words.startswith(MONITOR):
            self._loop.forget(descriptor)
            self._take_offer(job_id.removeprefix(MONITOR.decode()), self._connections.pop(descriptor), given)
            return
        for each in given:
            os.close(each)
        if job_id.startswith(CONTAINER):
            is_taken = self._take_container(job_id.removeprefix(CONTAINER))
            with suppress(OSError):  # A container that is being removed; its thread finds that.
                self._connections[descriptor].send(b"+" if is_taken else b"-")
            self._drop(descriptor)
        elif job_id == STAY:
            self._keepers.add(descriptor)
            self._on_stay()
        elif descriptor in self._jobs or not words.endswith(b"\n") or not self._still_waits(job_id):
            self._drop(descriptor)
        else:
            self._jobs[descriptor] = job_id
            self._send(descriptor, self._reason(job_id))

    def _send(self, descriptor: int, reason: str | None) -> None:
        if reason is not None and self._sent.get(descriptor) != reason:
            self._sent[descriptor] = reason
            with suppress(OSError):  # A client that does not read misses a reason, not the end.
                self._connections[descriptor].send(reason.encode() + b"\n")

    def _drop(self, descriptor: int) -> None:
        self._jobs.pop(descriptor, None)
        self._sent.pop(descriptor, None)
        self._loop.forget(descriptor)
        self._connections.pop(descriptor).close()
        if descriptor in self._keepers:
            self._keepers.remove(descriptor)
            self._on_stay()
