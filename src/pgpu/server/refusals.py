"""Refused requests in the audit log: callers without a valid token or code, and administration by users that are no administrators.

The first one of a kind from an address or user is written at once. Those of the next minute are counted, and the entry after it has their number.
An hour has at most 600 entries of a kind, and an entry the beginning of the path: clients that guess tokens, from however many addresses, fill no log.
"""

import time
from collections import Counter
from collections.abc import Callable, Hashable

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from pgpu.errors import AccessError, PgpuError, UnauthenticatedError
from pgpu.host.audit_log import AuditLog
from pgpu.server.browser_boundary import DASHBOARD_PATH
from pgpu.server.connection_limits import client_key
from pgpu.server.peer_credentials import STATE_KEY, PeerCredentials

INTERVAL_SECONDS = 60.0

HOUR_SECONDS = 3600.0
MOST_ENTRIES = 600
"""Of a kind in an hour."""

_ADMIN_PATH = "/v1/admin/"
_MOST_CALLERS = 1024
_MOST_PATH = 128


class RefusalLog:
    """Writes refused requests, and counts those that it leaves out."""

    def __init__(self, log: AuditLog, now_seconds: Callable[[], float] = time.monotonic) -> None:
        self._log, self._now_seconds = log, now_seconds
        self._callers: dict[Hashable, tuple[float, int]] = {}
        """Time of the last entry, and number of refusals since."""

        self._hour_began_seconds = now_seconds()
        self._written: Counter[str] = Counter()
        """Entries in this hour by kind."""

    async def note(self, connection: HTTPConnection, error: PgpuError) -> None:
        """Write a refusal, unless its caller had one within a minute or it is none that is logged."""
        action = _action(connection, error)
        if action is None:
            return
        peer: PeerCredentials | None = connection.scope.get("state", {}).get(STATE_KEY)
        address = connection.client.host if connection.client is not None and peer is None else None
        left_out = self._left_out(action, client_key(address or "::") if peer is None else peer.uid)
        if left_out is not None:
            actor = {"uid": None, "pid": None} if peer is None else {"uid": peer.uid, "pid": peer.pid}
            path = connection.url.path[:_MOST_PATH]
            await run_in_threadpool(self._log.write, action, **actor, address=address, path=path, left_out=left_out)

    def _left_out(self, action: str, caller: Hashable) -> int | None:
        """Return how many refusals of a caller were left out since its last entry; None to leave out this one."""
        now_seconds = self._now_seconds()
        if now_seconds - self._hour_began_seconds >= HOUR_SECONDS:
            self._hour_began_seconds = now_seconds
            self._written.clear()
        at_seconds, count = self._callers.pop((action, caller), (float("-inf"), 0))
        is_due = now_seconds - at_seconds >= INTERVAL_SECONDS and self._written[action] < MOST_ENTRIES
        self._written[action] += is_due
        # At the end, so that the first one is the one without a refusal for the longest time.
        self._callers[action, caller] = (now_seconds, 0) if is_due else (at_seconds, count + 1)
        if len(self._callers) > _MOST_CALLERS:
            del self._callers[next(iter(self._callers))]
        return count if is_due else None


def _action(connection: HTTPConnection, error: PgpuError) -> str | None:
    path = connection.url.path
    if isinstance(error, UnauthenticatedError):
        # A page whose session is over asks for data until its user signs in again: no login.
        is_login = not path.startswith(DASHBOARD_PATH) or connection.scope.get("method") == "POST"
        return "login.refused" if is_login else None
    return "admin.refused" if isinstance(error, AccessError) and path.startswith(_ADMIN_PATH) else None
