"""HTTP of asynchronous calls: `Prefer: respond-async`, calls that their callers name, and events that arrive repeatedly.

An event's failed answer is not kept, so that its next delivery runs.
"""

import logging
import sqlite3

import msgspec

from pgpu.functions.gateway.async_call_database import (
    AsyncCall,
    AsyncCallRecord,
    event_call_id,
    named_call_id,
    new_call_id,
    request_digest,
)
from pgpu.functions.gateway.async_calls import AsyncCallStore
from pgpu.functions.gateway.gateway_access import NOT_YOURS, Credentials, GatewayAccess
from pgpu.functions.gateway.gateway_handler import GatewayRequestHandler
from pgpu.functions.gateway.gateway_routes import GatewayRoute, RouteKind
from pgpu.functions.http.asgi_calls import ClientGoneError, Receive, read_body, refuse_too_large, serve_body
from pgpu.functions.http.response_writer import Send
from pgpu.functions.ipc.call_messages import Reply
from pgpu.functions.ipc.memory_files import map_body, split_body
from pgpu.functions.protocols import Refusal
from pgpu.functions.router.function_router import GONE, FunctionRouter
from pgpu.functions.router.replica_connection import RoutedRequest
from pgpu.functions.router.router_table import RouterTable
from pgpu.units import MIB

MOST_BYTES = 16 * MIB
"""Largest body of an asynchronous call."""

_JSON = {"content-type": "application/json"}
_NO_CALL = Refusal(404, "not_found", "there is no such call")
_DIFFERS = Refusal(409, "call_differs", "another call was made under this id")
_FULL = Refusal(429, "queue_full", "too many calls are kept already", {"retry-after": "60"})
_FORGOTTEN = Refusal(503, "forgotten", "another delivery of this event has just failed", {"retry-after": "1"})
_NO_ROOM = Refusal(503, "not_kept", "the call cannot be kept now", {"retry-after": "60"})
_LATE = Refusal(504, "deadline", "the answer did not come in time; the event is served all the same")
_OWN_ERRORS = 500

_encode = msgspec.json.Encoder().encode
_log = logging.getLogger(__name__)


class AsyncCallRoutes:
    """Answers requests about asynchronous calls."""

    def __init__(
        self,
        store: AsyncCallStore,
        handler: GatewayRequestHandler,
        access: GatewayAccess,
        routers: RouterTable,
    ) -> None:
        """Join the parts.

        Args:
            store: The calls.
            handler: Takes calls that need not be stored after all.
            access: Decides about access.
            routers: Functions.
        """
        self._store, self._handler, self._access, self._routers = store, handler, access, routers

    async def of_function(
        self, request: RoutedRequest, route: GatewayRoute, principal: str, receive: Receive, send: Send
    ) -> Reply | Refusal | None:
        """Answer a request to a function by a caller with access, see `GatewayAccess.principal`; None: it was answered."""
        try:
            return await self._of_function(request, route, principal, receive, send)
        except sqlite3.Error as error:
            _log.info("a call of %s cannot be stored: %s", route.name, error)
            return _NO_ROOM

    async def _of_function(
        self, request: RoutedRequest, route: GatewayRoute, principal: str, receive: Receive, send: Send
    ) -> Reply | Refusal | None:
        router = request.router
        assert router is not None  # noqa: S101 - checked by the caller
        identity = router.function.identity
        if route.kind is RouteKind.NAMED_CALL and request.method != "PUT":
            return await self._stored(request, named_call_id(identity, principal, route.call))
        body = await _read(request, receive, min(MOST_BYTES, router.declaration.max_body_bytes))
        if body is None or isinstance(body, Refusal):
            return body
        if route.kind is RouteKind.NAMED_CALL:
            location, request.method, request.path = request.path, "POST", f"/functions/{router.name}"
            call_id = named_call_id(identity, principal, route.call)
            return await self._accept(router, _call(identity, request, call_id, principal, body), location)
        event_id = None
        if request.path.startswith("/functions/"):
            target = f"{request.method} {request.path}"
            event_id = event_call_id(identity, target, principal, request.headers, body)
        if "respond-async" in request.headers.get("prefer", "").lower():
            call_id = event_id or new_call_id()
            return await self._accept(router, _call(identity, request, call_id, principal, body), f"/calls/{call_id}")
        if event_id is not None:
            return await self._deliver_event(router, request, _call(identity, request, event_id, principal, body))
        await serve_body(self._handler, request, split_body(body), receive, send)
        return None

    async def of_caller(self, request: RoutedRequest, route: GatewayRoute, caller: Credentials) -> Reply | Refusal:
        """Answer a request about a call with a generated id: only to its caller, and while it has access to the function."""
        known = await self._store.get(route.call)
        router = None if known is None else self._routers.of(known.function)
        if (refusal := self._access.refusal(caller, router)) is not None:
            return _NO_CALL if refusal is NOT_YOURS else refusal
        is_theirs = known is not None and known.caller == self._access.principal(caller)
        return await self._stored(request, route.call) if is_theirs else _NO_CALL

    async def _stored(self, request: RoutedRequest, call_id: str) -> Reply | Refusal:
        if request.method == "DELETE":
            return Reply(204, {}) if await self._store.forget(call_id) else _NO_CALL
        known = await self._store.get(call_id)
        if known is None:
            return _NO_CALL
        return self._pending(call_id) if known.reply is None else _replay(known)

    async def _accept(self, router: FunctionRouter, call: AsyncCall, location: str) -> Reply | Refusal:
        if self._store.is_full(call.function):
            return _FULL
        known = await self._store.add(call)
        if known is not None and known.digest != call.digest:
            return _DIFFERS
        if router.is_closed:
            return GONE
        pending = self._pending(call.id)
        headers = {**pending.headers, "location": location, "preference-applied": "respond-async"}
        return Reply(202, headers, pending.body)

    async def _deliver_event(self, router: FunctionRouter, request: RoutedRequest, call: AsyncCall) -> Reply | Refusal:
        if self._store.is_full(call.function):
            return _FULL
        await self._store.add(call)
        known = await self._store.wait_finished(call.id, request.timeout_seconds)
        if known is None:
            return GONE if router.is_closed else _FORGOTTEN
        if known.reply is None:
            return _LATE
        if known.reply.status >= _OWN_ERRORS:
            await self._store.forget(call.id)
        return _replay(known)

    def _pending(self, call_id: str) -> Reply:
        body = _encode({"id": call_id, "state": self._store.state(call_id)})
        return Reply(202, {**_JSON, "retry-after": "1"}, body)


def _replay(known: AsyncCallRecord) -> Reply:
    assert known.reply is not None  # noqa: S101 - checked by the caller
    return Reply(known.reply.status, known.reply.headers, known.reply.body)


def _call(function: str, request: RoutedRequest, call_id: str, principal: str, body: bytes) -> AsyncCall:
    headers = {name: value for name, value in request.headers.items() if name not in {"prefer", "content-length"}}
    digest = request_digest(request.path, request.query, headers, body)
    return AsyncCall(
        call_id, function, principal, digest, request.method, request.path, request.query, headers, body
    )  # fmt: skip


async def _read(request: RoutedRequest, receive: Receive, most_bytes: int) -> bytes | Refusal | None:
    """Read a body into memory; None: the client has left."""
    if (refusal := refuse_too_large(request, most_bytes)) is not None:
        return refusal
    try:
        read = await read_body(receive, most_bytes)
    except ClientGoneError:
        return None
    if isinstance(read, Refusal):
        return read
    body, file = read
    return body if file is None else bytes(map_body(file))
