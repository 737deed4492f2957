"""Who is let in, and how many at a time: a user who opens connections without end keeps nobody else out.

Each user of the Unix socket, and each address of TCP, has a bound; those of TCP, whom nobody knows yet, leave half of the
room to this machine's users, and all together leave a reserve that administrators alone may use. Whoever is past it is told
so in one line and hung up on. It refuses to read what is asked.
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
from dataclasses import dataclass
from typing import Any

from pgpu.errors import ServerFullError
from pgpu.server.peer_credentials import peer_of
from pgpu.server.responses import raw_error_response
from pgpu.services.access import administers

_MOST_AT_ONCE = 64
"""Accepted in one turn, so that those who are in are served between two crowds."""

_PAUSE_SECONDS = 0.5
_HANDSHAKE_SECONDS = 10.0
_LINGER_SECONDS = 1.0
_MOST_REFUSED = 32
"""Kept open for that long at a time."""

_OWN_DESCRIPTORS = 256
"""For the ledger, logs, GPUs and threads, and who is being refused."""

_RESERVE = 32
"""Connections that administrators alone may have."""

_LEAST = 4
_MOST = 4096
"""Of all, however many descriptors there may be: each costs memory too, before anybody is known."""

_IPV6_PREFIX_BITS = 64
"""Within it a machine chooses its addresses itself. Source: RFC 4291, section 2.5.1."""

_log = logging.getLogger("uvicorn.error")


def raise_descriptor_limit() -> tuple[int, int]:
    """Let this process open as many descriptors as it may; return its soft and hard limit before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections there may be."""

    most_each: int
    """Of one user."""

    most: int
    """Of all who do not administer."""

    reserve: int
    """More of them for administrators."""

    @property
    def most_remote(self) -> int:
        """Of all who come over TCP, which is before anybody asks for their token."""
        return max(self.most // 2, 1)

    @property
    def most_each_remote(self) -> int:
        """Of one address."""
        return max(min(self.most_each, self.most_remote // 2), 1)


def limits_within(descriptors: int, most_each: int) -> ConnectionLimits:
    """Return how many connections a process with so many descriptors can hold.

    Args:
        descriptors: Its limit. A connection that follows a job takes two of them.
        most_each: Of one user, by the operator's wish; no user takes more than half of all.
    """
    both = min(max((descriptors - _OWN_DESCRIPTORS) // 2, 2 * _LEAST), _MOST)
    reserve = min(_RESERVE, both // 2)
    most = both - reserve
    return ConnectionLimits(max(min(most_each, most // 2), 1), most, reserve)


def client_key(address: str) -> Hashable:
    """Return who counts as one visitor over TCP: this machine, or the network in which a machine chooses its address."""
    host = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(host, ipaddress.IPv6Address):
        host = host.ipv4_mapped or host
    if host.is_loopback:
        return "loopback"
    if host.version == 4:  # noqa: PLR2004 - the protocol's own number
        return host
    return ipaddress.ip_network((host, _IPV6_PREFIX_BITS), strict=False)


class ConnectionCounter:
    """The connections that are open now, by who made them."""

    def __init__(self, room: ConnectionLimits) -> None:
        self._room = room
        self._counts: Counter[Hashable] = Counter()
        self._remote = 0

    def enter(self, visitor: Hashable, *, is_admin: bool, is_remote: bool = False) -> None:
        """Count one more.

        Raises:
            ServerFullError: There is no room for it; it was not counted.
        """
        count = self._counts[visitor]
        if not is_admin and count >= (self._room.most_each_remote if is_remote else self._room.most_each):
            raise ServerFullError(
                f"you have {count} connections to this server already, which is the most",
                hint="end some of your commands that wait or follow; the administrator sets `connections`",
            )
        if not self._has_room(is_admin=is_admin, is_remote=is_remote):
            raise ServerFullError("this server has no room for another connection", hint="try again later")
        self._counts[visitor] += 1
        self._remote += is_remote

    def _has_room(self, *, is_admin: bool, is_remote: bool) -> bool:
        if is_remote and self._remote >= self._room.most_remote:
            return False
        return self._counts.total() < self._room.most + (self._room.reserve if is_admin else 0)

    def leave(self, visitor: Hashable, *, is_remote: bool = False) -> None:
        """Count one less."""
        self._remote -= is_remote
        self._counts[visitor] -= 1
        if not self._counts[visitor]:
            del self._counts[visitor]


class _Counted(socket.socket):
    """A connection that is counted until it is closed, whichever protocol it speaks by then."""

    on_close: Callable[[], None] | None = None

    def close(self) -> None:
        """See `socket.socket`."""
        super().close()
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close()


class ConnectionAcceptor:
    """Lets connections in at one listening socket."""

    def __init__(
        self,
        listener: socket.socket,
        visitors: ConnectionCounter,
        protocol: Callable[[], asyncio.Protocol],
        encryption: ssl.SSLContext | None = None,
    ) -> None:
        """Listen from now on, in the loop that runs.

        Args:
            listener: Bound; closed by `close`.
            visitors: Counts them, at other entrances too.
            protocol: Makes what speaks with each.
            encryption: For TLS.
        """
        self._listener = listener
        self._visitors = visitors
        self._protocol = protocol
        self._encryption = encryption
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._is_exhausted = False
        self._coming: set[asyncio.Task[None]] = set()
        self._refused: deque[_Counted] = deque()
        listener.settimeout(0)
        self._open()

    def _open(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Let nobody else in."""
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
                continue  # It hung up before it was answered.
            except OSError as exc:
                self._rest(exc)
                return
            self._is_exhausted = False
            self._receive(connection)

    def _rest(self, exc: OSError) -> None:
        """Let those who call wait outside until there are descriptors again; told once, however long that takes."""
        if not self._is_exhausted:
            _log.error("no connection can be accepted: %s; trying again until one can", exc.strerror or exc)
        self._is_exhausted = True
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(_PAUSE_SECONDS, self._open)

    def _receive(self, connection: socket.socket) -> None:
        counted = _Counted(fileno=connection.detach())
        counted.settimeout(0)
        try:
            self._admit(counted)
        except ServerFullError as exc:
            self._refuse(counted, exc)
        except OSError:  # It is gone already.
            counted.close()
        else:
            task = self._loop.create_task(self._let_in(counted))
            self._coming.add(task)
            task.add_done_callback(self._coming.discard)

    def _admit(self, connection: _Counted) -> None:
        peer = peer_of(connection)
        visitor = client_key(connection.getpeername()[0]) if peer is None else peer.uid
        is_remote, is_admin = peer is None, peer is not None and administers(peer.uid)
        self._visitors.enter(visitor, is_admin=is_admin, is_remote=is_remote)
        connection.on_close = lambda: self._visitors.leave(visitor, is_remote=is_remote)

    def _refuse(self, connection: _Counted, error: ServerFullError) -> None:
        """Say why, and give who asks first and reads then a moment to read it."""
        with contextlib.suppress(OSError):
            if self._encryption is None:
                connection.send(raw_error_response(503, error))
            connection.shutdown(socket.SHUT_WR)
        self._refused.append(connection)
        if len(self._refused) > _MOST_REFUSED:
            self._refused.popleft().close()
        self._loop.call_later(_LINGER_SECONDS, connection.close)

    async def _let_in(self, connection: _Counted) -> None:
        options: dict[str, Any] = {}
        if self._encryption is not None:
            options = {"ssl": self._encryption, "ssl_handshake_timeout": _HANDSHAKE_SECONDS}
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection, **options)
        except OSError:  # TLS's errors too.
            connection.close()
