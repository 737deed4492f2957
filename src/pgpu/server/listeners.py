"""The sockets of a server, and its life from the first request to the last answer.

A file lock permits one server for each ledger; the kernel releases it with the process, whatever is left of the socket of a
killed one. On SIGTERM or SIGINT the server answers the requests that it has and exits; jobs continue. TCP without TLS is
refused except on loopback.
"""

import asyncio
import contextlib
import fcntl
import grp
import ipaddress
import logging
import os
import resource
import signal
import socket
import ssl
import stat
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from pgpu.engine.unix_sockets import connect
from pgpu.errors import NodeError, RequestError
from pgpu.host.file_lock import open_lock_file, try_flock
from pgpu.server.connection_limits import ConnectionAcceptor, ConnectionCounter, limits_for
from pgpu.server.peer_credentials import PeerHttpProtocol
from pgpu.server.quiet_server import QuietServer
from pgpu.structs import Struct

_LOG = logging.getLogger(__name__)
_BACKLOG = 1024
_SYSTEMD_DESCRIPTOR = 3

# Time limit for running requests after SIGTERM; clients that wait for a job reconnect.
_GRACE_SECONDS = 3

_MOST_MESSAGE_BYTES = 1 << 21


class Tcp(Struct, frozen=True):
    """An address in addition to the Unix socket."""

    host: str
    port: int
    certificate: Path | None = None
    """PEM, followed by its chain; None for no TLS, on loopback alone."""

    key: Path | None = None


@contextlib.contextmanager
def hold_server_lock(lock_path: Path) -> Iterator[None]:
    """Hold the lock of the one server of a ledger.

    Raises:
        NodeError: Another server holds it.
    """
    try:
        descriptor = open_lock_file(lock_path)
    except OSError as exc:
        raise NodeError(f"{lock_path} cannot be opened: {exc.strerror}") from exc
    try:
        if not try_flock(descriptor):
            raise NodeError(f"another server runs on {lock_path.parent}", hint="stop it, or choose another --state-dir")
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def listen_unix(path: Path, group: str) -> Iterator[socket.socket]:
    """Listen at `path`, accessible to root and to a group if it exists; replaces a socket without a server.

    The socket is removed at the end: a client takes one that is left for a server that was killed. One that systemd passed,
    or that another server has put in its place meanwhile, stays. Clients queue in systemd's while the service restarts.

    Raises:
        NodeError: A server answers there, or the socket cannot be made.
    """
    if os.environ.get("LISTEN_PID") == str(os.getpid()):
        with _take_passed_socket(path) as passed:
            yield passed
        return
    _check_unused(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            # The socket gets its permissions under a temporary name: no client can connect while they are wider.
            fresh = path.with_name(f".{path.name}.{os.getpid()}")
            fresh.unlink(missing_ok=True)
            made.bind(str(fresh))
            _grant_access(fresh, group)
            made.listen(_BACKLOG)
            fresh.rename(path)
            known = path.lstat()
        except OSError as exc:
            reason = exc.strerror or exc
            raise NodeError(f"{path} cannot be listened at: {reason}", hint="choose another --host") from exc
        try:
            yield made
        finally:
            with contextlib.suppress(OSError):
                if os.path.samestat(path.lstat(), known):
                    path.unlink()


def _take_passed_socket(path: Path) -> socket.socket:
    """Return the one socket that systemd passed. Source: sd_listen_fds(3)."""
    # The variables are removed and the descriptor is closed on exec: jobs and the gateway must not inherit them.
    count = os.environ.pop("LISTEN_FDS", "0")
    for name in ("LISTEN_PID", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    fcntl.fcntl(_SYSTEMD_DESCRIPTOR, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    passed = socket.socket(fileno=_SYSTEMD_DESCRIPTOR)
    if count != "1" or passed.family != socket.AF_UNIX or passed.getsockname() != str(path):
        passed.close()
        raise NodeError(f"systemd passed another socket than {path}", hint="use deploy/systemd/pgpu.socket")
    return passed


def _check_unused(path: Path) -> None:
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return
    if not is_socket:
        raise NodeError(f"{path} exists and is no socket", hint="choose another --host")
    with contextlib.suppress(OSError):  # Refused: the server of this socket was killed.
        connect(path).close()
        raise NodeError(f"a server answers at {path} already", hint="stop that server, or choose another --host")


def _grant_access(path: Path, group: str) -> None:
    try:
        group_id = grp.getgrnam(group).gr_gid
    except KeyError:
        path.chmod(0o600)
        return
    with contextlib.suppress(PermissionError):  # A server of an ordinary user serves that user alone.
        os.chown(path, -1, group_id)
    path.chmod(0o660)


def listen_tcp(tcp: Tcp) -> socket.socket:
    """Return a socket at a TCP address.

    Raises:
        RequestError: It is off loopback and has no certificate.
        NodeError: It cannot be made.
    """
    if tcp.certificate is None and not is_loopback(tcp.host):
        raise RequestError(
            f"TCP at {tcp.host} needs TLS: a token would be read on the way",
            hint="name --tls-certificate and --tls-key, or listen at 127.0.0.1",
        )
    try:
        return socket.create_server(
            (tcp.host, tcp.port), family=socket.AF_INET6 if ":" in tcp.host else socket.AF_INET, backlog=_BACKLOG
        )
    except OSError as exc:
        raise NodeError(f"{tcp.host}:{tcp.port} cannot be listened at: {exc.strerror or exc}") from exc


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    app: FastAPI,
    unix: socket.socket,
    tcp: tuple[Tcp, socket.socket] | None = None,
    *,
    most_connections: int,
    on_ready: Callable[[], None] = lambda: None,
    on_hang_up: Callable[[], int] | None = None,
) -> None:
    """Answer requests until SIGTERM or SIGINT.

    Args:
        app: The application; its `state.leave` ends the requests that wait.
        unix: The listening Unix socket; of `pgpu dashboard`, one of loopback.
        tcp: Another address, or None.
        most_connections: Of one user at a time, fewer where this process may not open enough descriptors.
        on_ready: Called once signals end the server gracefully.
        on_hang_up: Reloads settings on SIGHUP, in a thread, and returns `most_connections`; certificate and key are read again as
            well. None leaves the signal as it is.

    Raises:
        RequestError: The certificate or its key cannot be used.
    """
    counter = ConnectionCounter(limits_for(resource.getrlimit(resource.RLIMIT_NOFILE)[0], most_connections))
    servers = [_ListenerServer(_configuration(app), unix, counter)]
    if tcp is not None:
        servers.append(_ListenerServer(_load_certificate(_configuration(app, tcp[0]), tcp[0]), tcp[1], counter))

    async def reload() -> None:
        for server in servers:
            server.reload_certificate()
        if on_hang_up is not None:
            most = await asyncio.to_thread(on_hang_up)
            counter.limits = limits_for(resource.getrlimit(resource.RLIMIT_NOFILE)[0], most)

    asyncio.run(_serve(servers, app.state.leave, on_ready, None if on_hang_up is None else reload))


def _load_certificate(configuration: uvicorn.Config, tcp: Tcp) -> uvicorn.Config:
    # Loaded before the socket accepts connections, so that a wrong file is an error of `pgpu serve`.
    files = [path for path in (tcp.certificate, tcp.key) if path is not None]
    for path in files:
        try:
            path.open("rb").close()
        except OSError as exc:
            raise RequestError(f"{path} cannot be read: {exc.strerror}", hint="it must be a file in PEM") from exc
    try:
        configuration.load()
    except OSError as exc:  # TLS's errors too.
        raise RequestError(
            f"{' with the key '.join(map(str, files))} cannot be used for TLS: {exc.strerror or exc}",
            hint="name a certificate in PEM, its chain after it, and the key that belongs to it",
        ) from exc
    return configuration


class _ListenerServer(QuietServer):
    """A server without signal handlers, which `_serve` installs once for two servers; a `ConnectionAcceptor` accepts."""

    def __init__(self, configuration: uvicorn.Config, listener: socket.socket, counter: ConnectionCounter) -> None:
        super().__init__(configuration)
        self._listener = listener
        self._counter = counter
        self._acceptor: ConnectionAcceptor | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own would install handlers for each of the servers, and raise the signal again once they have ended.
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`; it opens no socket of its own."""
        await super().startup(sockets or [])

        def protocol() -> asyncio.Protocol:
            return PeerHttpProtocol(self.config, self.server_state, self.lifespan.state)

        self._acceptor = ConnectionAcceptor(self._listener, self._counter, protocol, self.config.ssl)

    def reload_certificate(self) -> None:
        """Use the certificate and key as their files are now, for new connections; a pair that cannot be used changes nothing."""
        certificate, key = self.config.ssl_certfile, self.config.ssl_keyfile
        if certificate is None or self.config.ssl is None:
            return
        try:
            # First into another context: a certificate without its key would stay in the one that is used.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.config.ssl):
                context.load_cert_chain(certificate, key)
        except OSError as exc:
            _LOG.warning("pgpu: the certificate %s is not reloaded: %s", certificate, exc.strerror or exc)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        await super().shutdown(sockets)


async def _serve(
    servers: Sequence[_ListenerServer],
    leave: Callable[[], None],
    on_ready: Callable[[], None],
    reload: Callable[[], Coroutine[Any, Any, None]] | None,
) -> None:
    def begin_shutdown() -> None:
        # Waiting requests first: uvicorn waits for them until its timeout otherwise.
        leave()
        for server in servers:
            server.leave()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, begin_shutdown)
    reloads: set[asyncio.Task[None]] = set()
    if reload is not None:
        # One of `nohup` outlives its terminal.
        had_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()

        def begin_reload() -> None:
            if had_terminal and not _has_terminal():
                begin_shutdown()  # it was closed: the signal of the shell, and not one of an administrator
                return
            reloads.add(task := loop.create_task(reload()))
            task.add_done_callback(reloads.discard)

        loop.add_signal_handler(signal.SIGHUP, begin_reload)
    on_ready()
    await asyncio.gather(*(server.serve() for server in servers))


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal that is open."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _configuration(app: FastAPI, tcp: Tcp | None = None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=PeerHttpProtocol,
        ws="websockets-sansio",
        ws_max_size=_MOST_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        lifespan="off",
        log_level="error",  # Errors of clients go to the clients, not into the operator's log.
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        ssl_certfile=None if tcp is None else tcp.certificate,
        ssl_keyfile=None if tcp is None else tcp.key,
    )
