"""Puts a front together and runs it until it is asked to leave.

SIGTERM drains: ready is false at once, what was admitted is served, the rest is refused, then the worker is asked to
close and everything ends. SIGTSTP says that the slice is taken, and SIGCONT that there is one again. It refuses to survive a second one.
"""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from pgpu.functions.http.http_connection import HttpConnection
from pgpu.functions.ipc.async_channel import CoalescingLoop
from pgpu.functions.ipc.unix_sockets import listening_socket
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.functions.replica.call_server import CallServer
from pgpu.functions.replica.health_probe import HealthProbe
from pgpu.functions.replica.replica_app import ReplicaApp
from pgpu.functions.replica.replica_handler import ReplicaRequestHandler
from pgpu.functions.replica.request_deadlines import Deadlines
from pgpu.functions.replica.request_queue import RequestQueue
from pgpu.functions.replica.serving_state import ServingState
from pgpu.functions.replica.slice_signals import follow_slice_signals
from pgpu.functions.replica.worker_supervisor import WorkerSupervisor
from pgpu.functions.replica.zygote_process import ServedFunction, ZygoteProcess
from pgpu.functions.requests.request_metrics import ReplicaMetrics
from pgpu.functions.worker.child_processes import adopt_orphans

HTTP_SOCKET = "http.sock"
CALLS_SOCKET = "calls.sock"
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """How a front runs, whatever it serves."""

    directory: Path
    """Of its Unix sockets."""

    address: tuple[str, int] | None = None
    """Host and port for HTTP too; None: only the Unix socket."""

    health_seconds: float = 10.0
    """How often an idle worker is asked whether it is well: a broken GPU is found before the next caller finds it."""


class _Server(uvicorn.Server):
    """uvicorn without its own idea of signals: a front drains first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


def run(function: ServedFunction, settings: ReplicaSettings, first: ZygoteProcess | None = None) -> None:
    """Serve a function until SIGTERM or SIGINT; `first` is its zygote, if that was started already."""
    adopt_orphans()
    with asyncio.Runner(loop_factory=CoalescingLoop) as runner:
        runner.run(_serve(function, settings, first))


async def _serve(function: ServedFunction, settings: ReplicaSettings, first: ZygoteProcess | None) -> None:
    metrics = ReplicaMetrics()
    desk = RequestQueue(WorkerSupervisor.declaration_of(function), metrics)
    metrics.gauges["pgpu_function_in_flight"] = ("Requests waiting or with the worker.", lambda: desk.requests)
    metrics.gauges["pgpu_function_waiting"] = ("Requests waiting for a place.", lambda: desk.waiting)
    keeper = WorkerSupervisor(function, desk, metrics)
    keeper.first = first
    service = ReplicaRequestHandler(function.name, desk, keeper, metrics)
    connection = type("ServedConnection", (HttpConnection,), {"counter": service})
    config = uvicorn.Config(
        ReplicaApp(service), http=connection, ws="none", lifespan="off", log_level="critical", access_log=False,
        server_header=False, timeout_keep_alive=75,
    )  # fmt: skip
    server = _Server(config)
    leaving = _on_signals(asyncio.get_running_loop(), keeper)
    sockets = _listen(settings)
    Deadlines(desk, keeper)
    HealthProbe(desk, keeper, settings.health_seconds)
    visits = CallServer(desk, keeper, settings.directory / CALLS_SOCKET)
    keeper.start()
    gc.freeze()  # what is loaded stays: no collection looks at it again
    serving = asyncio.get_running_loop().create_task(server.serve(sockets))
    try:
        await leaving.wait()
        keeper.state, desk.closed = ServingState.DRAINING, DRAINING
        await _until_idle(desk)
        await keeper.leave()
        server.should_exit = True
        await serving
    finally:
        visits.close()
        keeper.close()
        for name in (HTTP_SOCKET, CALLS_SOCKET):
            (settings.directory / name).unlink(missing_ok=True)


DRAINING = Refusal(503, "draining", "this replica is leaving", {"retry-after": "1", "connection": "close"})


def _on_signals(loop: asyncio.AbstractEventLoop, keeper: WorkerSupervisor) -> asyncio.Event:
    leaving = asyncio.Event()
    follow_slice_signals(loop, keeper.stand_aside, keeper.go_on)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _leave, leaving)
    return leaving


def _leave(leaving: asyncio.Event) -> None:
    if leaving.is_set():
        os._exit(1)  # asked twice: whatever is still served ends here, and zygote and worker with it
    leaving.set()


async def _until_idle(desk: RequestQueue) -> None:
    idle = asyncio.Event()
    desk.on_idle = idle.set
    if desk.requests:
        await idle.wait()


def _listen(settings: ReplicaSettings) -> list[socket.socket]:
    sockets = [listening_socket(settings.directory / HTTP_SOCKET, _BACKLOG)]
    if settings.address is not None:
        sockets.append(socket.create_server(settings.address, backlog=_BACKLOG))
    return sockets
