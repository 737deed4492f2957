"""The gateway's process: its connections, its parts, and its run until a signal or the end of its parent.

Replicas are jobs and go on; the next gateway finds them. Its Unix socket replaces that of the previous gateway. A connection
over that socket belongs to the user at its other end; over TCP there are only tokens.
"""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from pgpu.errors import NodeError
from pgpu.functions.control.control_plane import ControlPlane
from pgpu.functions.control.replica_controller import ReplicaController
from pgpu.functions.gateway.async_call_database import AsyncCallDatabase
from pgpu.functions.gateway.async_calls import AsyncCallRoutes, AsyncCallStore
from pgpu.functions.gateway.gateway_access import GatewayAccess, TokenCache
from pgpu.functions.gateway.gateway_app import BodyBudget, GatewayApp, default_budget_bytes
from pgpu.functions.gateway.gateway_handler import GatewayRequestHandler
from pgpu.functions.http.http_connection import DirectCall, HttpConnection, HttpServer
from pgpu.functions.ipc.async_channel import CoalescingLoop
from pgpu.functions.ipc.local_sockets import peer_uid
from pgpu.functions.requests.prometheus_metrics import GatewayMetrics
from pgpu.functions.router.function_router import RouterTable
from pgpu.structs import Struct

_BACKLOG = 1024
_RETRY_SECONDS = 0.2
"""Between two attempts to learn the functions; no request is answered before."""

_MOST_DESCRIPTORS = 1 << 15
"""Upper limit for the limits of connections: each may hold 120 KiB that its client sent and that is not processed."""

_GRACE_SECONDS = 5
"""Time for calls in flight at the end."""

_log = logging.getLogger(__name__)


class GatewayConnection(HttpConnection):
    """A connection that puts its user's id into the state of each request's scope."""

    patience_seconds = 30.0
    """Between two checks. A connection is aborted if a request's head or small body is incomplete at two checks in a row, or if
    the client took nothing of its responses in between.
    """

    most_descriptors = 1 << 16
    """Limit of this process. Callers over TCP may hold half as many connections, each user of the Unix socket a quarter, all
    together seven eighths.
    """

    held: ClassVar["Counter[int | None]"] = Counter()
    """Connections of each user; None: those over TCP."""

    _check_timer: asyncio.TimerHandle | None = None
    _unfinished: object = None
    _unread_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        uid = peer_uid(transport.get_extra_info("socket"))
        self.app_state: dict[str, Any] = {**self.app_state, "uid": uid}
        # Counted even if the connection is aborted below: connection_lost() follows in any case.
        self.held[uid] += 1
        is_one_too_many = self.held[uid] > self.most_descriptors // (2 if uid is None else 4)
        if is_one_too_many or self.held.total() > self.most_descriptors * 7 // 8:
            transport.abort()
            return
        # A client that sends or reads one byte at a time would hold its descriptor for hours.
        self._check_timer = self.loop.call_later(self.patience_seconds, self._check_progress)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        uid = self.app_state["uid"]
        self.held[uid] -= 1
        if not self.held[uid]:
            del self.held[uid]
        if self._check_timer is not None:
            self._check_timer.cancel()

    def _check_progress(self) -> None:
        cycle = self.cycle
        # Of complete responses only: the writer of an incomplete one has a timeout of its own.
        is_complete = cycle is None or cycle.response_complete or self.transport.is_closing()
        unread_bytes = self.transport.get_write_buffer_size() if is_complete else 0
        is_stuck = 0 < unread_bytes == self._unread_bytes
        unfinished = self._unfinished_request()
        if is_stuck or (unfinished is not None and unfinished is self._unfinished):
            self.transport.abort()
            return
        self._unfinished, self._unread_bytes = unfinished, unread_bytes
        self._check_timer = self.loop.call_later(self.patience_seconds, self._check_progress)

    def _unfinished_request(self) -> object:
        """Return an object that identifies the incomplete request; None: there is none.

        A body that an ASGI task reads has its call's deadline, and is not checked here.
        """
        cycle, scope = self.cycle, self.scope
        if scope is None:
            return self  # there was no request yet
        if "method" not in scope:
            return scope  # its head is incomplete
        is_direct = cycle is not None and isinstance(cycle.message_event, DirectCall)
        return cycle if is_direct and cycle.more_body else None


class GatewaySettings(Struct, frozen=True):
    """How a gateway runs."""

    unix: Path
    """Path of its Unix socket: all users may connect, identified by the kernel."""

    address: tuple[str, int] | None
    """Host and port for callers with a token; None: only the Unix socket."""

    state: Path
    """Directory of asynchronous calls."""

    parent: int | None = None
    """A descriptor that becomes readable when the parent ends; None: the gateway ends by a signal only."""


def run(control_plane: ControlPlane, settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        NodeError: The Unix socket cannot be created.
    """
    logging.basicConfig(format="pgpu: %(message)s", level=logging.INFO)
    _, most_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Raise the soft limit to the hard one: each caller and each large body needs a descriptor.
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_descriptors, most_descriptors))
    with asyncio.Runner(loop_factory=CoalescingLoop) as runner:
        runner.run(_serve(control_plane, settings))


async def _serve(control_plane: ControlPlane, settings: GatewaySettings) -> None:
    metrics = GatewayMetrics()
    routers, tokens = RouterTable(metrics), TokenCache(control_plane)
    access = GatewayAccess(tokens)
    controller = ReplicaController(routers, control_plane, metrics)
    handler = GatewayRequestHandler(routers, access)
    store = AsyncCallStore(AsyncCallDatabase(settings.state / "calls"), routers)
    async_calls = AsyncCallRoutes(store, handler, access, routers)
    app = GatewayApp(
        routers, access, handler, async_calls, controller.refresh, budget=BodyBudget(default_budget_bytes())
    )
    server = _http_server(app, handler)
    leaving = _leave_on_signals(settings.parent)
    sockets = _listen(settings)
    # Device and inode identify this socket at the end, when the path may belong to the next gateway.
    made = settings.unix.lstat()
    await _learn_functions(controller, leaving)
    await store.open()
    app.is_ready = True
    loop = asyncio.get_running_loop()
    controlling = loop.create_task(controller.run())
    # A gateway without its controller would answer health checks and start no replica.
    controlling.add_done_callback(lambda _: leaving.set())
    serving = loop.create_task(server.serve(sockets))
    _log_addresses(sockets)
    try:
        await leaving.wait()
        # Calls in flight get their answers before the controller and the store of asynchronous calls end.
        server.leave()
        await serving
    finally:
        controlling.cancel()
        tokens.close()
        with contextlib.suppress(asyncio.CancelledError):
            await controlling
        store.close()
        with contextlib.suppress(OSError):
            if os.path.samestat(settings.unix.lstat(), made):
                settings.unix.unlink()


def _http_server(app: GatewayApp, handler: GatewayRequestHandler) -> HttpServer:
    # uvicorn makes its connections from a class, without arguments of ours: this gateway's state is attributes of a subclass.
    most_descriptors = min(_MOST_DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    attributes = {"handler": handler, "held": Counter(), "most_descriptors": most_descriptors}
    return HttpServer(app, type("GatewayHttpConnection", (GatewayConnection,), attributes), _GRACE_SECONDS)


async def _learn_functions(controller: ReplicaController, leaving: asyncio.Event) -> None:
    """Wait until the server has sent its functions and their replicas."""
    while not await controller.open() and not leaving.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RETRY_SECONDS):
                await leaving.wait()


def _leave_on_signals(parent: int | None) -> asyncio.Event:
    loop, leaving = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leaving.set)
    if parent is not None:

        def on_parent_end() -> None:
            loop.remove_reader(parent)  # a pipe without a writer stays readable
            leaving.set()

        loop.add_reader(parent, on_parent_end)
    return leaving


def _listen(settings: GatewaySettings) -> list[socket.socket]:
    sockets = [_unix_socket(settings.unix)]
    if settings.address is not None:
        host, port = settings.address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            sockets.append(socket.create_server((host, port), family=family, backlog=_BACKLOG))
        except OSError as error:  # the port is in use: the Unix socket still works
            reason = error.strerror or error
            _log.info("no functions at %s:%s: %s; choose another: pgpu serve --gateway", host, port, reason)
    return sockets


def _log_addresses(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        name = each.getsockname()
        _log.info("functions at %s", f"http://{name[0]}:{name[1]}" if isinstance(name, tuple) else "their socket")


def _unix_socket(path: Path) -> socket.socket:
    """Listen at a path, replacing the socket of a gateway that was killed in one step."""
    # Bound beside the path, since bind() fails while the old socket is there.
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        fresh.unlink(missing_ok=True)
        made.bind(os.fspath(fresh))
        fresh.chmod(0o666)  # all users: the kernel reports the user of each connection
        made.listen(_BACKLOG)
        # rename() replaces the old socket in one step: a caller always finds one of the two.
        fresh.rename(path)
    except OSError as error:
        made.close()
        raise NodeError(f"{path} cannot be listened at: {error.strerror or error}") from error
    return made
