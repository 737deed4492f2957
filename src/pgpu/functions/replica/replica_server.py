"""Assembles a replica's process and runs it until it must exit.

SIGTERM drains: readiness ends at once, admitted requests are served, new ones refused, then the worker closes its handler.
A second SIGTERM exits at once. SIGTSTP means that the slice was taken, SIGCONT that there is one again.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pgpu.functions.api import parse_declaration
from pgpu.functions.http.http_connection import HttpConnection, HttpServer
from pgpu.functions.ipc.async_channel import CoalescingLoop
from pgpu.functions.ipc.local_sockets import listening_socket
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.functions.replica.call_server import CallServer
from pgpu.functions.replica.replica_app import ReplicaApp, ReplicaRequestHandler
from pgpu.functions.replica.startup import SLICE_SIGNALS, ServedFunction, ZygoteProcess
from pgpu.functions.replica.worker_queue import WorkerQueue
from pgpu.functions.replica.worker_supervisor import ServingState, WorkerSupervisor
from pgpu.functions.requests.request_queue import ReplicaMetrics
from pgpu.functions.worker.child_processes import adopt_orphans

HTTP_SOCKET = "http.sock"
CALLS_SOCKET = "calls.sock"
DRAINING = Refusal(503, "draining", "this replica is leaving", {"retry-after": "1", "connection": "close"})
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """How a replica runs, independent of its function."""

    directory: Path
    """Of its Unix sockets."""

    address: tuple[str, int] | None = None
    """Host and port for HTTP as well; None: only the Unix socket."""

    health_seconds: float = 10.0
    """Interval of health probes of an idle worker: a broken GPU is found before the next call."""


def run(function: ServedFunction, settings: ReplicaSettings, first: ZygoteProcess | None = None) -> None:
    """Serve a function until SIGTERM or SIGINT; `first` is its zygote, if that was started already."""
    logging.basicConfig(format="pgpu: %(message)s", level=logging.INFO)
    # Children of a zygote that dies must become children of this process, which kills them.
    adopt_orphans()
    with asyncio.Runner(loop_factory=CoalescingLoop) as runner:
        runner.run(_serve(function, settings, first))


async def _serve(function: ServedFunction, settings: ReplicaSettings, first: ZygoteProcess | None) -> None:
    loop = asyncio.get_running_loop()
    metrics = ReplicaMetrics()
    queue = WorkerQueue(parse_declaration(function.declaration), metrics)
    metrics.gauges["pgpu_function_in_flight"] = ("Requests waiting or with the worker.", lambda: queue.size)
    metrics.gauges["pgpu_function_waiting"] = ("Requests waiting for a place.", lambda: queue.waiting)
    supervisor = WorkerSupervisor(function, queue, metrics)
    supervisor.first = first
    handler = ReplicaRequestHandler(function.name, queue, supervisor, metrics)
    connection = type("ReplicaHttpConnection", (HttpConnection,), {"handler": handler})
    server = HttpServer(ReplicaApp(handler), connection)
    leaving = _leave_on_signals(loop)
    _follow_slice_signals(loop, supervisor.on_slice_taken, supervisor.on_slice_given)
    sockets = [listening_socket(settings.directory / HTTP_SOCKET, _BACKLOG)]
    if settings.address is not None:
        sockets.append(socket.create_server(settings.address, backlog=_BACKLOG))
    queue.watch_deadlines(supervisor.check_deadline)
    loop.call_later(settings.health_seconds, supervisor.probe_health, settings.health_seconds)
    calls = CallServer(queue, supervisor, settings.directory / CALLS_SOCKET)
    supervisor.start()
    gc.freeze()  # loaded modules stay for the process's life: garbage collection need not visit them
    serving = loop.create_task(server.serve(sockets))
    try:
        await leaving.wait()
        # The gateway is notified of the state and sends no more calls; late ones get a 503 that it retries elsewhere.
        supervisor.state, queue.closed = ServingState.DRAINING, DRAINING
        idle = asyncio.Event()
        queue.on_idle = idle.set
        if queue.size:
            await idle.wait()
        # No request is pending any more; the worker runs its handler's close().
        await supervisor.leave()
        server.should_exit = True
        await serving
    finally:
        calls.close()
        supervisor.close()
        for name in (HTTP_SOCKET, CALLS_SOCKET):
            (settings.directory / name).unlink(missing_ok=True)


def _leave_on_signals(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    leaving = asyncio.Event()

    def leave() -> None:
        if leaving.is_set():
            os._exit(1)  # the second signal: pending requests are dropped, zygote and worker end with this process
        leaving.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)
    return leaving


def _follow_slice_signals(
    loop: asyncio.AbstractEventLoop, on_taken: Callable[[], None], on_given: Callable[[], None]
) -> None:
    """Call one of the two on the loop for each slice signal, in the order of their arrival.

    One thread takes the blocked signals with `sigwait`; while both are blocked the kernel keeps only the later of SIGTSTP and
    SIGCONT. Signal handlers would reverse the order of two signals that arrive together: the second's handler interrupts the first's.
    """

    def wait() -> None:
        while not loop.is_closed():
            is_taken = signal.sigwait(SLICE_SIGNALS) == signal.SIGTSTP
            try:
                loop.call_soon_threadsafe(on_taken if is_taken else on_given)
            except RuntimeError:  # the loop was closed meanwhile
                return

    threading.Thread(target=wait, name="slice-signals", daemon=True).start()
