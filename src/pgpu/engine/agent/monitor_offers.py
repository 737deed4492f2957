"""Monitors that attached commands offer to the agent for their own jobs.

A command starts its job's monitor, so that the job keeps the command's control group, niceness, affinity and namespaces. It
hands the monitor's socket and pidfd to the agent over a connection and keeps that open; the job's thread takes the offer at the
start and sends the order. The ledger has with the job which process offers (`Account.starter`), so a thread knows whether an
offer is to come. It waits a limited time, ended by the death of that process, and then starts the monitor itself: one thread
decides, so no job is started twice.
"""

import os
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pgpu.engine.event_loop import READABLE, EventLoop
from pgpu.engine.unix_sockets import wait_readable
from pgpu.host.process_identity import open_pidfd
from pgpu.host.thread_turns import pause
from pgpu.model import ProcessHolder
from pgpu.runtimes.job_monitor import OfferedMonitor

PATIENCE_SECONDS = 5.0
"""Longest wait for the offer of a living process. A command offers within milliseconds of the submission, or of the start of an
agent; only a stopped one takes longer."""

_TAKEN = b"+"

_RIGHTS = ("CapEff", "NoNewPrivs", "Seccomp")
"""Lines of /proc/PID/status. A job of a command with fewer rights than the agent could not make its view."""


class _Offer:
    def __init__(self, connection: socket.socket, monitor: OfferedMonitor | None) -> None:
        self.connection = connection
        self.monitor = monitor
        """None for an offer that was refused; it stays until the command closes the connection."""


class MonitorOffers:
    """The offers of one agent. `add` and `close` are called in the main thread, `take` in the jobs' threads."""

    def __init__(self, loop: EventLoop, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Hold no offer.

        Args:
            loop: Of the agent's main thread.
            patience_seconds: How long `take` waits.
        """
        self._loop = loop
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._offers: dict[str, _Offer] = {}
        self._awaited: dict[str, int] = {}

    def add(self, job_id: str, connection: socket.socket, descriptors: Sequence[int]) -> None:
        """Keep an offer until a thread takes it or the command closes the connection.

        An offer is refused if its command is another user's, in another PID or user namespace, under another root directory, or
        has other rights than this process.

        Args:
            job_id: The job.
            connection: Of the command; closed here.
            descriptors: The monitor's socket and its pidfd; closed here.
        """
        monitor = None
        if len(descriptors) == 2 and _starts_alike(connection):  # noqa: PLR2004 - socket and pidfd
            monitor = OfferedMonitor(socket.socket(fileno=descriptors[0]), descriptors[1])
        else:
            for descriptor in descriptors:
                os.close(descriptor)
        self._remove(job_id, self._offers.get(job_id))
        offer = _Offer(connection, monitor)
        with self._lock:
            self._offers[job_id] = offer
            if job_id in self._awaited:
                os.eventfd_write(self._awaited[job_id], 1)
        self._loop.watch(connection.fileno(), READABLE, lambda _: self._remove(job_id, offer))

    def take(self, job_id: str, starter: ProcessHolder) -> OfferedMonitor | None:
        """Return the monitor that a process offers for its job, and wait for the offer; None where the agent starts it.

        The command gets a byte and the end of its connection; for the job's next try it offers another monitor.
        """
        offer = self._await(job_id, starter)
        if offer is None or offer.monitor is None:
            return None
        with self._lock:
            if self._offers.get(job_id) is not offer:
                return None  # the command has closed its connection meanwhile
            del self._offers[job_id]
            monitor, offer.monitor = offer.monitor, None
            with suppress(OSError):
                offer.connection.send(_TAKEN)
                offer.connection.shutdown(socket.SHUT_RDWR)  # readable for the main thread, which closes it
        return monitor

    def close(self) -> None:
        """Drop all offers, which ends their monitors."""
        for job_id, offer in list(self._offers.items()):
            self._remove(job_id, offer)

    def _await(self, job_id: str, starter: ProcessHolder) -> _Offer | None:
        with self._lock:
            if job_id in self._offers:
                return self._offers[job_id]
            pidfd = open_pidfd(starter)
            if pidfd is None:
                return None
            event = self._awaited[job_id] = os.eventfd(0, os.EFD_CLOEXEC)
        with pause():
            wait_readable(self._patience_seconds, pidfd, event)
        with self._lock:
            del self._awaited[job_id]
            for descriptor in (pidfd, event):
                os.close(descriptor)
            return self._offers.get(job_id)

    def _remove(self, job_id: str, offer: _Offer | None) -> None:
        if offer is None:
            return
        with self._lock:
            if self._offers.get(job_id) is offer:
                del self._offers[job_id]
            monitor, offer.monitor = offer.monitor, None
            self._loop.forget(offer.connection.fileno())
            offer.connection.close()
        if monitor is not None:
            monitor.close()


def _starts_alike(connection: socket.socket) -> bool:
    """Whether a process at the other end of a Unix socket can start a monitor in place of this process."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    if uid != os.geteuid() or pid <= 0:  # no PID: it is in another PID namespace
        return False
    with suppress(OSError):
        return _surroundings(str(pid)) == _surroundings("self")
    return False  # it has ended, or may do what this process may not


def _surroundings(pid: str) -> tuple[object, ...]:
    process = Path("/proc", pid)
    root = (process / "root").stat()
    lines = (process / "status").read_text("utf-8", errors="replace").splitlines()
    rights = [line for line in lines if line.partition(":")[0] in _RIGHTS]
    return root.st_dev, root.st_ino, *((process / "ns" / name).readlink() for name in ("pid", "user")), *rights
