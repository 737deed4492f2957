"""Kept calls over HTTP: `Prefer: respond-async`, calls that their callers name, and events that come more than once.

It refuses to keep what may be tried again: the answer to an event that failed here is forgotten, so that its next delivery
runs.
"""

import sqlite3

import msgspec

from pgpu.functions.async_calls.async_call_database import AsyncCall, AsyncCallRecord
from pgpu.functions.async_calls.async_call_store import AsyncCallStore
from pgpu.functions.async_calls.call_ids import event_call_id, named_call_id, new_call_id, request_digest
from pgpu.functions.gateway.gateway_access import NOT_YOURS, Credentials, GatewayAccess
from pgpu.functions.gateway.gateway_handler import GatewayRequestHandler
from pgpu.functions.gateway.gateway_routes import Route, RouteKind
from pgpu.functions.http.asgi_calls import refuse_too_large, serve_body
from pgpu.functions.http.request_bodies import ClientGoneError, Receive, read_body
from pgpu.functions.http.response_writer import Send
from pgpu.functions.ipc.memory_files import map_body, split_body
from pgpu.functions.ipc.messages import Reply
from pgpu.functions.protocols import Refusal
from pgpu.functions.replica.worker_supervisor import log
from pgpu.functions.router.function_router import FunctionRouter
from pgpu.functions.router.routed_request import RoutedRequest
from pgpu.functions.router.router_refusals import GONE
from pgpu.functions.router.router_table import RouterTable
from pgpu.units import MIB

MOST_BYTES = 16 * MIB
"""Of the body of a kept call."""

_JSON = {"content-type": "application/json"}
_NO_CALL = Refusal(404, "not_found", "there is no such call")
_DIFFERS = Refusal(409, "call_differs", "another call was made under this id")
_FULL = Refusal(429, "queue_full", "too many calls are kept already", {"retry-after": "60"})
_FORGOTTEN = Refusal(503, "forgotten", "another delivery of this event has just failed", {"retry-after": "1"})
_NO_ROOM = Refusal(503, "not_kept", "the call cannot be kept now", {"retry-after": "60"})
_LATE = Refusal(504, "deadline", "the answer did not come in time; the event is served all the same")
_OWN_ERRORS = 500

_encode = msgspec.json.Encoder().encode


class AsyncCallRoutes:
    """What is answered about kept calls."""

    def __init__(
        self, books: AsyncCallStore, counter: GatewayRequestHandler, access: GatewayAccess, halls: RouterTable
    ) -> None:
        """Join the parts.

        Args:
            books: Of the calls.
            counter: Takes what is not kept after all.
            access: Says who a caller is, and what they may see.
            halls: Functions.
        """
        self._books, self._counter, self._access, self._halls = books, counter, access, halls

    async def of_function(
        self, errand: RoutedRequest, target: Route, who: str, receive: Receive, send: Send
    ) -> Reply | Refusal | None:
        """Answer a request to a function of somebody who may call it, see `GatewayAccess.principal`; None: it was answered."""
        try:
            return await self._of_function(errand, target, who, receive, send)
        except sqlite3.Error as error:
            log(f"a call of {target.name} cannot be kept: {error}")
            return _NO_ROOM

    async def _of_function(
        self, errand: RoutedRequest, target: Route, who: str, receive: Receive, send: Send
    ) -> Reply | Refusal | None:
        hall = errand.hall
        assert hall is not None  # noqa: S101 - its caller found it
        identity = hall.function.identity
        if target.kind is RouteKind.NAMED_CALL and errand.method != "PUT":
            return await self._stored(errand, named_call_id(identity, who, target.call))
        most = min(MOST_BYTES, hall.declaration.max_body_bytes)
        read = refuse_too_large(errand, most) or await _read(receive, most)
        if read is None or isinstance(read, Refusal):
            return read
        if target.kind is RouteKind.NAMED_CALL:
            location, errand.method, errand.path = errand.path, "POST", f"/functions/{hall.name}"
            return await self._accepted(
                hall, _call(errand, named_call_id(identity, who, target.call), who, read), location
            )
        is_event = errand.path.startswith("/functions/")
        to = f"{errand.method} {errand.path}"
        key = event_call_id(identity, to, who, errand.headers, read) if is_event else None
        if "respond-async" in errand.headers.get("prefer", "").lower():
            kept_as = key or new_call_id()
            return await self._accepted(hall, _call(errand, kept_as, who, read), f"/calls/{kept_as}")
        if key is not None:
            return await self._event(hall, errand, _call(errand, key, who, read))
        await serve_body(self._counter, errand, split_body(read), receive, send)
        return None

    async def of_caller(self, errand: RoutedRequest, target: Route, caller: Credentials) -> Reply | Refusal:
        """Answer a request about a call under an id of ours: to who made it, and still may."""
        known = await self._books.get(target.call)
        hall = None if known is None else self._halls.of(known.function)
        if (refused := self._access.refusal(caller, hall)) is not None:
            return _NO_CALL if refused is NOT_YOURS else refused
        is_theirs = known is not None and known.caller == self._access.principal(caller)
        return await self._stored(errand, target.call) if is_theirs else _NO_CALL

    async def _stored(self, errand: RoutedRequest, key: str) -> Reply | Refusal:
        if errand.method == "DELETE":
            return Reply(204, {}) if await self._books.forget(key) else _NO_CALL
        known = await self._books.get(key)
        if known is None:
            return _NO_CALL
        return self._waits(key) if known.reply is None else _replayed(known)

    async def _accepted(self, hall: FunctionRouter, call: AsyncCall, location: str) -> Reply | Refusal:
        if self._books.is_full(call.function):
            return _FULL
        known = await self._books.add(call)
        if known is not None and known.digest != call.digest:
            return _DIFFERS
        if hall.is_closed:
            return GONE
        waits = self._waits(call.id)
        headers = {**waits.headers, "location": location, "preference-applied": "respond-async"}
        return Reply(202, headers, waits.body)

    async def _event(self, hall: FunctionRouter, errand: RoutedRequest, call: AsyncCall) -> Reply | Refusal:
        if self._books.is_full(call.function):
            return _FULL
        await self._books.add(call)
        known = await self._books.finished(call.id, errand.timeout_seconds)
        if known is None:
            return GONE if hall.is_closed else _FORGOTTEN
        if known.reply is None:
            return _LATE
        if known.reply.status >= _OWN_ERRORS:
            await self._books.forget(call.id)
        return _replayed(known)

    def _waits(self, key: str) -> Reply:
        return Reply(202, {**_JSON, "retry-after": "1"}, _encode({"id": key, "state": self._books.state(key)}))


def _replayed(known: AsyncCallRecord) -> Reply:
    assert known.reply is not None  # noqa: S101 - looked at before
    return Reply(known.reply.status, known.reply.headers, known.reply.body)


def _call(errand: RoutedRequest, key: str, who: str, body: bytes) -> AsyncCall:
    assert errand.hall is not None  # noqa: S101 - its caller found it
    headers = {name: value for name, value in errand.headers.items() if name not in {"prefer", "content-length"}}
    digest = request_digest(errand.path, errand.query, headers, body)
    function = errand.hall.function.identity
    return AsyncCall(key, function, who, digest, errand.method, errand.path, errand.query, headers, body)


async def _read(receive: Receive, most_bytes: int) -> bytes | Refusal | None:
    """Read a body into memory; None: the client has left."""
    try:
        read = await read_body(receive, most_bytes)
    except ClientGoneError:
        return None
    if isinstance(read, Refusal):
        return read
    body, file = read
    return body if file is None else bytes(map_body(file))
