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

from pgpu.functions.calls.coalescing import CoalescingLoop
from pgpu.functions.calls.listening import listening_socket
from pgpu.functions.front.deadlines import Deadlines
from pgpu.functions.front.desk import Desk
from pgpu.functions.front.http.app import App
from pgpu.functions.front.http.connections import Connection
from pgpu.functions.front.http.service import Service
from pgpu.functions.front.keeping.keeper import Keeper
from pgpu.functions.front.keeping.wellness import Wellness
from pgpu.functions.front.metrics import Metrics
from pgpu.functions.front.slice_news import follow
from pgpu.functions.front.spawning import Function, Spawned
from pgpu.functions.front.states import State
from pgpu.functions.front.visits import Visits
from pgpu.functions.protocols.refusal import Refusal
from pgpu.functions.worker.family import adopt_orphans

HTTP_SOCKET = "http.sock"
CALLS_SOCKET = "calls.sock"
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class Settings:
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


def run(function: Function, settings: Settings, first: Spawned | None = None) -> None:
    """Serve a function until SIGTERM or SIGINT; `first` is its zygote, if that was started already."""
    adopt_orphans()
    with asyncio.Runner(loop_factory=CoalescingLoop) as runner:
        runner.run(_serve(function, settings, first))


async def _serve(function: Function, settings: Settings, first: Spawned | None) -> None:
    metrics = Metrics()
    desk = Desk(Keeper.declaration_of(function), metrics)
    metrics.gauges["pgpu_function_in_flight"] = ("Requests waiting or with the worker.", lambda: desk.requests)
    metrics.gauges["pgpu_function_waiting"] = ("Requests waiting for a place.", lambda: desk.waiting)
    keeper = Keeper(function, desk, metrics)
    keeper.first = first
    service = Service(function.name, desk, keeper, metrics)
    connection = type("ServedConnection", (Connection,), {"counter": service})
    config = uvicorn.Config(
        App(service), http=connection, ws="none", lifespan="off", log_level="critical", access_log=False,
        server_header=False, timeout_keep_alive=75,
    )  # fmt: skip
    server = _Server(config)
    leaving = _on_signals(asyncio.get_running_loop(), keeper)
    sockets = _listen(settings)
    Deadlines(desk, keeper)
    Wellness(desk, keeper, settings.health_seconds)
    visits = Visits(desk, keeper, settings.directory / CALLS_SOCKET)
    keeper.start()
    gc.freeze()  # what is loaded stays: no collection looks at it again
    serving = asyncio.get_running_loop().create_task(server.serve(sockets))
    try:
        await leaving.wait()
        keeper.state, desk.closed = State.DRAINING, DRAINING
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


def _on_signals(loop: asyncio.AbstractEventLoop, keeper: Keeper) -> asyncio.Event:
    leaving = asyncio.Event()
    follow(loop, keeper.stand_aside, keeper.go_on)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _leave, leaving)
    return leaving


def _leave(leaving: asyncio.Event) -> None:
    if leaving.is_set():
        os._exit(1)  # asked twice: whatever is still served ends here, and zygote and worker with it
    leaving.set()


async def _until_idle(desk: Desk) -> None:
    idle = asyncio.Event()
    desk.on_idle = idle.set
    if desk.requests:
        await idle.wait()


def _listen(settings: Settings) -> list[socket.socket]:
    sockets = [listening_socket(settings.directory / HTTP_SOCKET, _BACKLOG)]
    if settings.address is not None:
        sockets.append(socket.create_server(settings.address, backlog=_BACKLOG))
    return sockets
