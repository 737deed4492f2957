"""A gateway's HTTP connections: the user at the other end of a Unix socket, timeouts of slow clients, limits per user.

Over TCP there is no user, only tokens.
"""

import asyncio
from collections import Counter
from typing import Any, ClassVar

from pgpu.functions.http.http_connection import DirectCall, HttpConnection
from pgpu.functions.ipc.local_sockets import peer_uid


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
            return scope
        is_direct = cycle is not None and isinstance(cycle.message_event, DirectCall)
        return cycle if is_direct and cycle.more_body else None
