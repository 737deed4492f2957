"""Puts a gateway together and runs it until it is asked to leave, or whoever started it is gone.

Replicas live on: they are jobs, and the next gateway finds them. It refuses to be two: its socket is one.
"""

import asyncio
import contextlib
import os
import resource
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from pgpu.errors import NodeError
from pgpu.functions.async_calls.async_call_database import AsyncCallDatabase
from pgpu.functions.async_calls.async_call_store import AsyncCallStore
from pgpu.functions.control.replica_controller import ReplicaController
from pgpu.functions.gateway.async_call_routes import AsyncCallRoutes
from pgpu.functions.gateway.body_budget import BodyBudget, room_bytes
from pgpu.functions.gateway.gateway_access import GatewayAccess
from pgpu.functions.gateway.gateway_app import GatewayApp
from pgpu.functions.gateway.gateway_connection import GatewayConnection
from pgpu.functions.gateway.gateway_handler import GatewayRequestHandler
from pgpu.functions.gateway.token_cache import TokenCache
from pgpu.functions.ipc.async_channel import CoalescingLoop
from pgpu.functions.replica.worker_supervisor import log
from pgpu.functions.router.control_plane import ControlPlane
from pgpu.functions.router.gateway_metrics import GatewayMetrics
from pgpu.functions.router.load_history import LoadHistory, learned_loads, restore_loads, save_periodically
from pgpu.functions.router.router_table import RouterTable

_BACKLOG = 1024
_AGAIN_SECONDS = 0.2
"""Between two attempts to learn of functions: nobody is told that there is none before."""

_MOST_DESCRIPTORS = 1 << 15
"""That connections are counted against: each may hold 120 KiB of what its client sent and nobody has read."""

_GRACE_SECONDS = 5
"""What calls under way may take once the gateway was told to leave."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """How a gateway runs."""

    unix: Path
    """Where its Unix socket goes: everybody may connect, and is who the kernel says."""

    address: tuple[str, int] | None
    """Host and port for who has a token; None: only the Unix socket."""

    state: Path
    """Directory of the calls that it keeps."""

    parent: int | None = None
    """A descriptor that ends with whoever started it; None: nobody is waited for."""


class _Server(uvicorn.Server):
    """uvicorn without its own idea of signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


def run(desk: ControlPlane, settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        NodeError: It cannot listen there.
    """
    _, most_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_descriptors, most_descriptors))
    with asyncio.Runner(loop_factory=CoalescingLoop) as runner:
        runner.run(_serve(desk, settings))


async def _serve(desk: ControlPlane, settings: GatewaySettings) -> None:
    metrics = GatewayMetrics()
    halls, bearers = RouterTable(metrics), TokenCache(desk)
    access = GatewayAccess(bearers)
    controller = ReplicaController(halls, desk, metrics)
    counter = GatewayRequestHandler(halls, access)
    books = AsyncCallStore(AsyncCallDatabase(settings.state / "calls"), halls)
    kept = AsyncCallRoutes(books, counter, access, halls)
    app = GatewayApp(halls, access, counter, kept, controller.refresh, uploads=BodyBudget(room_bytes()))
    most_descriptors = min(_MOST_DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    words = {"counter": counter, "held": Counter(), "most_descriptors": most_descriptors}
    connection = type("ServedConnection", (GatewayConnection,), words)
    server = _Server(
        uvicorn.Config(
            app, http=connection, ws="none", lifespan="off", log_level="critical", access_log=False,
            server_header=False, timeout_keep_alive=75, timeout_graceful_shutdown=_GRACE_SECONDS,
        )
    )  # fmt: skip
    leaving = _on_leaving(settings.parent)
    sockets = _listen(settings)
    made = settings.unix.lstat()
    await _informed(controller, leaving)
    memory = LoadHistory(settings.state / "learned.db")
    restore_loads(halls, memory.read())
    await books.open()
    app.is_ready = True
    loop = asyncio.get_running_loop()
    working = loop.create_task(controller.run())
    working.add_done_callback(lambda _: leaving.set())  # a gateway without its controller would only look alive
    remembering = loop.create_task(save_periodically(halls, memory))
    serving = loop.create_task(server.serve(sockets))
    _say(sockets)
    try:
        await leaving.wait()
        server.should_exit = True
        await serving
    finally:
        working.cancel()
        remembering.cancel()
        memory.write(learned_loads(halls))
        bearers.close()
        with contextlib.suppress(asyncio.CancelledError):
            await working
        books.close()
        with contextlib.suppress(OSError):
            if os.path.samestat(settings.unix.lstat(), made):  # and not the next gateway's
                settings.unix.unlink()


async def _informed(controller: ReplicaController, leaving: asyncio.Event) -> None:
    """Wait until the server has told of its functions and their replicas."""
    while not await controller.open() and not leaving.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AGAIN_SECONDS):
                await leaving.wait()


def _on_leaving(parent: int | None) -> asyncio.Event:
    loop, leaving = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leaving.set)
    if parent is not None:

        def orphaned() -> None:
            loop.remove_reader(parent)
            leaving.set()

        loop.add_reader(parent, orphaned)
    return leaving


def _listen(settings: GatewaySettings) -> list[socket.socket]:
    sockets = [_unix_socket(settings.unix)]
    if settings.address is not None:
        host, port = settings.address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            sockets.append(socket.create_server((host, port), family=family, backlog=_BACKLOG))
        except OSError as error:  # another program's, and no reason to serve nobody
            log(f"no functions at {host}:{port}: {error.strerror or error}; choose another: pgpu serve --gateway")
    return sockets


def _unix_socket(path: Path) -> socket.socket:
    """Listen there; callers of a gateway that was killed find this one under the same name."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        fresh.unlink(missing_ok=True)
        made.bind(os.fspath(fresh))
        fresh.chmod(0o666)  # who it is, the kernel says of each
        made.listen(_BACKLOG)
        fresh.rename(path)
    except OSError as error:
        made.close()
        raise NodeError(f"{path} cannot be listened at: {error.strerror or error}") from error
    return made


def _say(sockets: list[socket.socket]) -> None:
    for each in sockets:
        name = each.getsockname()
        log(f"functions at {f'http://{name[0]}:{name[1]}' if isinstance(name, tuple) else 'their socket'}")
