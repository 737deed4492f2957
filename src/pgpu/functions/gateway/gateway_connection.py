"""A gateway's connections: who is at the other end of a Unix socket is asked once, when it is made.

A request that begins and does not go on is given up after a while, and no user has more than a part of all connections:
descriptors are everybody's. It refuses to believe
anything else about a user: over TCP there are only tokens.
"""

import asyncio
from collections import Counter
from typing import Any, ClassVar

from pgpu.functions.http.http_connection import DirectCall, HttpConnection
from pgpu.functions.ipc.unix_sockets import peer_uid


class GatewayConnection(HttpConnection):
    """A connection whose requests know their user."""

    patience_seconds = 30.0
    """Between two looks; a request whose head or small body is not whole at two of them in a row is given up, and so is a client
    who took nothing of its answers in between.
    """

    most_descriptors = 1 << 16
    """That this process may have: callers over TCP together hold half as many connections, each user over the socket a quarter,
    all together seven eighths.
    """

    held: ClassVar["Counter[int | None]"] = Counter()
    """Connections of each user; None: those over TCP."""

    _looking: asyncio.TimerHandle | None = None
    _unfinished: object = None
    _unread_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Note who it is."""
        super().connection_made(transport)
        uid = peer_uid(transport.get_extra_info("socket"))
        self.app_state: dict[str, Any] = {**self.app_state, "uid": uid}
        self.held[uid] += 1
        is_one_too_many = self.held[uid] > self.most_descriptors // (2 if uid is None else 4)
        if is_one_too_many or self.held.total() > self.most_descriptors * 7 // 8:
            transport.abort()
            return
        self._looking = self.loop.call_later(self.patience_seconds, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Look no more."""
        super().connection_lost(exc)
        uid = self.app_state["uid"]
        self.held[uid] -= 1
        if not self.held[uid]:
            del self.held[uid]
        if self._looking is not None:
            self._looking.cancel()

    def _look(self) -> None:
        unfinished, unread_bytes = self._what_is_unfinished(), self._what_is_unread()
        is_stuck = 0 < unread_bytes == self._unread_bytes
        if is_stuck or (unfinished is not None and unfinished is self._unfinished):
            self.transport.abort()
            return
        self._unfinished, self._unread_bytes = unfinished, unread_bytes
        self._looking = self.loop.call_later(self.patience_seconds, self._look)

    def _what_is_unread(self) -> int:
        """Return how much of answers that are whole their client has not taken; whoever sends the others waits no longer than they last."""
        is_whole = self.cycle is None or self.cycle.response_complete or self.transport.is_closing()
        return self.transport.get_write_buffer_size() if is_whole else 0

    def _what_is_unfinished(self) -> object:
        """Return what stands for a request that has begun and is not whole; None: nobody waits for a client.

        Bodies on the ordinary way are waited for until their call's deadline.
        """
        cycle, scope = self.cycle, self.scope
        if scope is None:
            return self  # it has never said a word
        if "method" not in scope:
            return scope
        is_direct = cycle is not None and isinstance(cycle.message_event, DirectCall)
        return cycle if is_direct and cycle.more_body else None
