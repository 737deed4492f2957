"""Connection limits: no user and no address can use up the connections of a server.

Each user of the Unix socket and each address of TCP has a limit. All TCP clients together, which are not authenticated yet,
get half of the connections at most, and all users together leave a reserve for administrators. A connection past a limit
gets one line of JSON and is closed, before a request is read.
"""

import asyncio
import contextlib
import ipaddress
import logging
import resource
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Any

from pgpu.errors import ServerFullError
from pgpu.server.peer_credentials import peer_of
from pgpu.server.responses import raw_error_response
from pgpu.services.access import administers
from pgpu.structs import Struct

# Accepted in one iteration of the loop, so that open connections are served in between.
_MOST_AT_ONCE = 64

_PAUSE_SECONDS = 0.5
_HANDSHAKE_SECONDS = 10.0
_LINGER_SECONDS = 1.0

# Refused connections kept open for `_LINGER_SECONDS`.
_MOST_REFUSED = 32

# For the ledger, logs, GPUs, threads and refused connections.
_OWN_DESCRIPTORS = 256

# Connections for administrators alone.
_RESERVE = 32

_LEAST = 4

# Of all, however many descriptors are allowed: each also costs memory, before authentication.
_MOST = 4096

# A machine chooses its addresses within this prefix. Source: RFC 4291, section 2.5.1.
_IPV6_PREFIX_BITS = 64

_log = logging.getLogger("uvicorn.error")


def raise_descriptor_limit() -> tuple[int, int]:
    """Raise this process's soft limit of open files to the hard limit; return both from before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


class ConnectionLimits(Struct, frozen=True):
    """Numbers of connections."""

    most_each: int
    """Of one user."""

    most: int
    """Of all users that are no administrators."""

    reserve: int
    """In addition, for administrators."""

    @property
    def most_remote(self) -> int:
        """Of all TCP clients; applies before authentication."""
        return max(self.most // 2, 1)

    @property
    def most_each_remote(self) -> int:
        """Of one address."""
        return max(min(self.most_each, self.most_remote // 2), 1)


def limits_for(descriptors: int, most_each: int) -> ConnectionLimits:
    """Return the limits of a process that may open so many descriptors.

    Args:
        descriptors: A connection that follows a job takes two of them.
        most_each: Of one user, as configured; no user gets more than half of all.
    """
    both = min(max((descriptors - _OWN_DESCRIPTORS) // 2, 2 * _LEAST), _MOST)
    reserve = min(_RESERVE, both // 2)
    most = both - reserve
    return ConnectionLimits(max(min(most_each, most // 2), 1), most, reserve)


def client_key(address: str) -> Hashable:
    """Return the key under which TCP connections are counted: loopback, an IPv4 address or an IPv6 /64."""
    host = ipaddress.ip_address(address.partition("%")[0])  # `fe80::1%eth0`: the zone is an interface of this machine.
    if isinstance(host, ipaddress.IPv6Address):
        host = host.ipv4_mapped or host
    if host.is_loopback:
        return "loopback"
    if host.version == 4:  # noqa: PLR2004 - the protocol's own number
        return host
    return ipaddress.ip_network((host, _IPV6_PREFIX_BITS), strict=False)


class ConnectionCounter:
    """The open connections by client."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._counts: Counter[Hashable] = Counter()
        self._remote = 0

    def enter(self, client: Hashable, *, is_admin: bool, is_remote: bool = False) -> None:
        """Count a connection.

        Raises:
            ServerFullError: It is past a limit; it was not counted.
        """
        limits, count = self.limits, self._counts[client]
        if not is_admin and count >= (limits.most_each_remote if is_remote else limits.most_each):
            raise ServerFullError(
                f"you have {count} connections to this server already, which is the most",
                hint="end some of your commands that wait or follow; the administrator sets `connections`",
            )
        # Administrators have no limit of their own, but share the number of all connections and alone use the reserve.
        most = limits.most + (limits.reserve if is_admin else 0)
        if self._counts.total() >= most or (is_remote and self._remote >= limits.most_remote):
            raise ServerFullError("this server has no room for another connection", hint="try again later")
        self._counts[client] += 1
        self._remote += is_remote

    def leave(self, client: Hashable, *, is_remote: bool = False) -> None:
        """Count a closed connection."""
        self._remote -= is_remote
        self._counts[client] -= 1
        if not self._counts[client]:  # Otherwise every address that ever connected would stay in memory.
            del self._counts[client]


class _CountedSocket(socket.socket):
    """A connection that is counted until `close`, also after an upgrade to another protocol."""

    on_close: Callable[[], None] | None = None

    def close(self) -> None:
        super().close()
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close()


class ConnectionAcceptor:
    """Accepts the connections of one listening socket, in the running event loop."""

    def __init__(
        self,
        listener: socket.socket,
        counter: ConnectionCounter,
        protocol: Callable[[], asyncio.Protocol],
        encryption: ssl.SSLContext | None = None,
    ) -> None:
        """Accept from now on.

        Args:
            listener: Bound; closed by `close`.
            counter: Shared with the acceptors of other sockets.
            protocol: Makes the protocol of each connection.
            encryption: For TLS.
        """
        self._listener = listener
        self._counter = counter
        self._protocol = protocol
        self._encryption = encryption
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._is_exhausted = False
        self._starting: set[asyncio.Task[None]] = set()
        self._refused: deque[_CountedSocket] = deque()
        listener.settimeout(0)
        self._resume()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Accept no other connection."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        while self._refused:
            self._refused.popleft().close()

    def _accept(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue  # The client closed it before it was accepted.
            except OSError as exc:
                self._suspend(exc)
                return
            self._is_exhausted = False
            self._admit(connection)

    def _suspend(self, exc: OSError) -> None:
        # Out of descriptors: without a pause the listening socket would stay readable and the loop would spin.
        if not self._is_exhausted:
            _log.error("no connection can be accepted: %s; trying again until one can", exc.strerror or exc)
        self._is_exhausted = True
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(_PAUSE_SECONDS, self._resume)

    def _admit(self, accepted: socket.socket) -> None:
        connection = _CountedSocket(fileno=accepted.detach())  # Detached: two objects would close one descriptor.
        connection.settimeout(0)
        try:
            peer = peer_of(connection)
            client = client_key(connection.getpeername()[0]) if peer is None else peer.uid
            is_remote, is_admin = peer is None, peer is not None and administers(peer.uid)
            self._counter.enter(client, is_admin=is_admin, is_remote=is_remote)
        except ServerFullError as exc:
            self._refuse(connection, exc)
        except OSError:  # The client is gone.
            connection.close()
        else:
            connection.on_close = lambda: self._counter.leave(client, is_remote=is_remote)
            task = self._loop.create_task(self._start(connection))
            self._starting.add(task)  # The loop itself holds only a weak reference to a task.
            task.add_done_callback(self._starting.discard)

    def _refuse(self, connection: _CountedSocket, error: ServerFullError) -> None:
        with contextlib.suppress(OSError):
            if self._encryption is None:
                connection.send(raw_error_response(503, error))
            connection.shutdown(socket.SHUT_WR)
        # A client sends its request before it reads: closing at once would discard the answer with a reset.
        self._refused.append(connection)
        if len(self._refused) > _MOST_REFUSED:
            self._refused.popleft().close()
        self._loop.call_later(_LINGER_SECONDS, connection.close)

    async def _start(self, connection: _CountedSocket) -> None:
        options: dict[str, Any] = {}
        if self._encryption is not None:
            options = {"ssl": self._encryption, "ssl_handshake_timeout": _HANDSHAKE_SECONDS}
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection, **options)
        except OSError:  # TLS's errors too.
            connection.close()
