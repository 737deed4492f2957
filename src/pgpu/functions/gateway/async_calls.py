"""Asynchronous calls: their HTTP, and their way to functions a few at a time.

`AsyncCallRoutes` answers `Prefer: respond-async`, calls that their callers name, and events that arrive repeatedly. An event's
failed answer is not kept, so that its next delivery runs. `AsyncCallStore` sends stored calls to their functions, stores the
answers, and recovers both after a restart: a call that only waited is sent again; one that a replica may have begun is sent again
if its function is idempotent, and answered 502 if not. The bodies of calls that wait are only in the database.
"""

import asyncio
import logging
import sqlite3
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from pgpu.functions.control.control_plane import BackgroundTasks
from pgpu.functions.gateway.async_call_database import (
    AsyncCall,
    AsyncCallDatabase,
    AsyncCallRecord,
    StoredReply,
    event_call_id,
    named_call_id,
    new_call_id,
    request_digest,
)
from pgpu.functions.gateway.gateway_access import NOT_YOURS, Credentials, GatewayAccess
from pgpu.functions.gateway.gateway_handler import GatewayRequestHandler
from pgpu.functions.gateway.gateway_routes import GatewayRoute, RouteKind
from pgpu.functions.http.asgi_calls import ClientGoneError, Receive, read_body, refuse_too_large, serve_body
from pgpu.functions.http.response_writer import Send
from pgpu.functions.ipc.call_messages import Body, Chunk, Reply
from pgpu.functions.ipc.memory_files import map_body, split_body
from pgpu.functions.protocols import Refusal
from pgpu.functions.router.function_router import GONE, FunctionRouter, RouterTable
from pgpu.functions.router.replica_connection import RoutedRequest
from pgpu.units import MIB

MOST_BYTES = 16 * MIB
"""Largest body of an asynchronous call."""

_LONGEST_WAIT_SECONDS = 86400.0
"""Until a call is refused because no replica was free."""

_RETRY_SECONDS = 1.0
"""Before a call that a function refused is sent again."""

_KEPT_SECONDS = 86400.0
"""An answer is stored for this time."""

_SWEEP_SECONDS = 600.0
_MOST_REPLY_BYTES = 64 << 20
_MOST_HELD_BYTES = 1 << 30
"""Of one function, answers included; all functions share the disk."""

_MOST_OWNER_BYTES = 4 << 30
_MOST_ALL_BYTES = 16 << 30

MOST_WAITING = 10_000
"""Of one function."""

_NOT_NOW = {429, 503}
_T = TypeVar("_T")
_log = logging.getLogger(__name__)

_INTERRUPTED = Refusal(502, "interrupted", "the gateway ended while a replica may have served this call")
_TOO_LARGE = Refusal(502, "reply_too_large", "the answer is larger than what is kept")
_BROKEN = Refusal(502, "worker_died", "the answer broke off")
_JSON = {"content-type": "application/json"}
_NO_CALL = Refusal(404, "not_found", "there is no such call")
_DIFFERS = Refusal(409, "call_differs", "another call was made under this id")
_FULL = Refusal(429, "queue_full", "too many calls are stored already", {"retry-after": "60"})
_FORGOTTEN = Refusal(503, "forgotten", "another delivery of this event has just failed", {"retry-after": "1"})
_NO_ROOM = Refusal(503, "not_kept", "the call cannot be stored now", {"retry-after": "60"})
_LATE = Refusal(504, "deadline", "the answer did not come in time; the event is still being served")
_OWN_ERRORS = 500
_encode = msgspec.json.Encoder().encode


class AsyncCallStore:
    """All asynchronous calls of one gateway; on the event loop only, with the database in a thread of its own.

    A call belongs to one function by its identity, never to a later function of the same name.
    """

    def __init__(
        self,
        database: AsyncCallDatabase,
        routers: RouterTable,
        most_owner_bytes: int = _MOST_OWNER_BYTES,
        most_all_bytes: int = _MOST_ALL_BYTES,
    ) -> None:
        self._database, self._routers = database, routers
        self._most_owner_bytes, self._most_all_bytes = most_owner_bytes, most_all_bytes
        # One thread: SQLite gets the operations one after the other, in the order in which the loop requested them.
        self._thread = ThreadPoolExecutor(1, "calls")
        self._waiting: dict[str, deque[str]] = defaultdict(deque)
        """Ids of the calls that were not sent yet, by function."""

        self._running: dict[str, RoutedRequest] = {}
        """Requests that a router has, by the ids of their calls."""

        self._sent: dict[str, int] = defaultdict(int)
        """Slots in use by function: calls that were sent, or that pause before they are sent again."""

        self._finished: dict[str, asyncio.Event] = {}
        """Set when a call has its answer or was deleted, by the call's id."""

        self._loop = asyncio.get_running_loop()
        self._tasks = BackgroundTasks("an asynchronous call is left for the next start")
        routers.events.on_send, routers.events.on_closed = self._on_send, self._on_closed

    async def open(self) -> None:
        """Recover the calls of an earlier gateway; drop those of functions that were removed."""
        # First, since calls of a function without a router would never end.
        await self._in_thread(
            self._database.forget_functions_but, [router.function.identity for router in self._routers]
        )
        unfinished, begun = await self._in_thread(self._database.recover)
        for call_id, function in unfinished:
            router = self._routers.of(function)
            if call_id not in begun or (router is not None and router.declaration.is_idempotent):
                self._waiting[function].append(call_id)
            else:
                reply = _INTERRUPTED.reply(call_id)
                await self._finish(call_id, function, reply, reply.body)
        for function in [*self._waiting]:
            self._pump(function)
        self._sweep()

    def close(self) -> None:
        """Close the database after its current operation."""
        self._tasks.cancel()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._database.close()

    def is_full(self, function: str) -> bool:
        """Whether a function, its owner or all functions together have as many calls as allowed."""
        if self._database.held_bytes(function) >= _MOST_HELD_BYTES or len(self._waiting[function]) >= MOST_WAITING:
            return True
        router = self._routers.of(function)
        owned = [
            each.function.identity
            for each in self._routers
            if router and each.function.owner_uid == router.function.owner_uid
        ]
        is_owner_full = sum(map(self._database.held_bytes, owned)) >= self._most_owner_bytes
        return is_owner_full or self._database.all_held_bytes() >= self._most_all_bytes

    async def add(self, call: AsyncCall) -> AsyncCallRecord | None:
        """Store a call and send it to its function; a call that is stored under its id already is returned instead."""
        known = await self._in_thread(self._database.add, call)
        # Sent after the commit: a call that a replica has begun is always in the database.
        if known is None:
            self._waiting[call.function].append(call.id)
            self._pump(call.function)
        return known

    async def get(self, call_id: str) -> AsyncCallRecord | None:
        return await self._in_thread(self._database.get, call_id)

    def state(self, call_id: str) -> str:
        """Return the state of a call without an answer: `queued` or `running`."""
        request = self._running.get(call_id)
        return "running" if request is not None and request.replica is not None else "queued"

    def request_of(self, call_id: str) -> RoutedRequest | None:
        """Return the request of a call that was sent to its function; None: it waits, or has its answer."""
        return self._running.get(call_id)

    async def forget(self, call_id: str) -> bool:
        """Cancel a call, and delete it with its answer; False: there was none."""
        # Removed before the call is cancelled: on_answer() ignores an answer that arrives from now on.
        request = self._running.pop(call_id, None)
        if request is not None and request.router is not None:
            request.router.abandon(request)
            self._release(request.router.function.identity)
        is_known = await self._in_thread(self._database.forget, call_id)
        self._notify_finished(call_id)
        return is_known

    async def wait_finished(self, call_id: str, timeout_seconds: float) -> AsyncCallRecord | None:
        """Wait until a call has its answer or the time is over, and return the call."""
        # Registered before the database is read: an answer in between sets the event.
        event = self._finished.setdefault(call_id, asyncio.Event())
        known = await self.get(call_id)
        if known is None or known.reply is not None:
            self._finished.pop(call_id, None)
            return known
        try:
            async with asyncio.timeout(timeout_seconds):
                await event.wait()
        except TimeoutError:
            return known
        return await self.get(call_id)

    def on_answer(self, call_id: str, function: str, reply: Reply, body: Body) -> None:
        """Store an answer; after a refusal without a worker, send the call again."""
        if self._running.pop(call_id, None) is None:
            return  # the call was cancelled, or has its answer already
        if reply.status in _NOT_NOW and not reply.started_seconds:
            # The slot stays taken during the pause: a busy function is not flooded with retries.
            self._waiting[function].appendleft(call_id)
            self._loop.call_later(_RETRY_SECONDS, self._release, function)
        else:
            self._tasks.start(self._finish(call_id, function, reply, body))
            self._release(function)

    def _on_send(self, request: RoutedRequest) -> None:
        """Record that a replica may have begun a call; called just before it is sent, so after a crash it counts as begun."""
        if isinstance(request.sink, _StoreSink):
            self._database.begin(request.sink.call_id)

    def _on_closed(self, function: str) -> None:
        """Delete the calls of a removed function; those that it had were answered just before."""
        # Without an entry, later calls of _release() for this function change nothing.
        self._sent.pop(function, None)
        self._tasks.start(self._forget_function(function, self._waiting.pop(function, deque())))

    async def _forget_function(self, function: str, waiting: Iterable[str]) -> None:
        await self._in_thread(self._database.forget_function, function)
        for call_id in waiting:
            self._notify_finished(call_id)

    def _pump(self, function: str) -> None:
        """Send as many calls of a function as it may run at a time; the others wait on disk."""
        router, waiting = self._routers.of(function), self._waiting.get(function)
        if not waiting:
            return
        if router is None:
            self._on_closed(function)
            return
        slots = router.slots
        while waiting and self._sent[function] < slots:
            self._sent[function] += 1
            self._tasks.start(self._send(router, waiting.popleft()))

    async def _send(self, router: FunctionRouter, call_id: str) -> None:
        call = await self._in_thread(self._database.get_unfinished, call_id)
        if call is None:  # it was cancelled while it waited
            self._release(router.function.identity)
            return
        now, seconds = time.monotonic(), router.declaration.timeout_seconds
        # Its deadline covers the wait for a replica; the function's own timeout begins when a replica gets it.
        body, file = split_body(call.body)
        request = RoutedRequest(
            call_id, call.method, call.path, call.query, call.headers, body, file, now, now + _LONGEST_WAIT_SECONDS,
            seconds, _StoreSink(self, call_id, router.function.identity), router=router,
        )  # fmt: skip
        self._running[call_id] = request
        router.submit(request)

    async def _finish(self, call_id: str, function: str, reply: Reply, body: Body) -> None:
        # The function may have been removed while its last calls were answered: their answers have no reader.
        if self._routers.of(function) is None:
            await self._in_thread(self._database.forget, call_id)
        else:
            stored = StoredReply(reply.status, reply.headers, bytes(body))
            await self._in_thread(self._database.finish, call_id, stored)
        self._notify_finished(call_id)

    def _notify_finished(self, call_id: str) -> None:
        if (event := self._finished.pop(call_id, None)) is not None:
            event.set()

    def _release(self, function: str) -> None:
        if function in self._sent:
            self._sent[function] -= 1
        self._pump(function)

    def _sweep(self) -> None:
        self._tasks.start(self._in_thread(self._database.forget_before, time.time() - _KEPT_SECONDS))
        self._loop.call_later(_SWEEP_SECONDS, self._sweep)

    async def _in_thread(self, operation: Callable[..., _T], *arguments: Any) -> _T:
        return await self._loop.run_in_executor(self._thread, operation, *arguments)


class _StoreSink:
    """The sink of an asynchronous call; collects a stream."""

    def __init__(self, store: AsyncCallStore, call_id: str, function: str) -> None:
        self.call_id = call_id
        self._store, self._function = store, function
        self._head: Reply | None = None
        self._pieces = bytearray()

    def reply(self, reply: Reply, file: int | None) -> None:
        body = reply.body if file is None else map_body(file)
        if not reply.is_last:
            self._head = reply
        elif len(body) > _MOST_REPLY_BYTES:
            self._refuse(_TOO_LARGE)
        else:
            self._store.on_answer(self.call_id, self._function, reply, body)

    def chunk(self, chunk: Chunk, file: int | None) -> None:
        self._pieces += chunk.body if file is None else map_body(file)
        request = self._store.request_of(self.call_id)
        if chunk.is_broken or len(self._pieces) > _MOST_REPLY_BYTES:
            if request is not None and request.router is not None:
                request.router.abandon(request)
            self._refuse(_BROKEN if chunk.is_broken else _TOO_LARGE)
        elif chunk.is_last and self._head is not None:
            self._store.on_answer(self.call_id, self._function, self._head, self._pieces)
        elif request is not None and request.replica is not None:
            request.replica.credit(request)  # the piece is in memory already, so the next one may come at once

    def _refuse(self, refusal: Refusal) -> None:
        reply = refusal.reply(self.call_id)
        self._store.on_answer(self.call_id, self._function, reply, reply.body)


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
            return await self._answer_stored(request, named_call_id(identity, principal, route.call))
        body = await _read(request, receive, min(MOST_BYTES, router.declaration.max_body_bytes))
        if body is None or isinstance(body, Refusal):
            return body
        if route.kind is RouteKind.NAMED_CALL:
            # The function gets a plain call; the path with the caller's id becomes the location of the answer.
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
        return await self._answer_stored(request, route.call) if is_theirs else _NO_CALL

    async def _answer_stored(self, request: RoutedRequest, call_id: str) -> Reply | Refusal:
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
        if router.is_closed:  # while the call was being stored
            return GONE
        pending = self._pending(call.id)
        headers = {**pending.headers, "location": location, "preference-applied": "respond-async"}
        return Reply(202, headers, pending.body)

    async def _deliver_event(self, router: FunctionRouter, request: RoutedRequest, call: AsyncCall) -> Reply | Refusal:
        if self._store.is_full(call.function):
            return _FULL
        # A delivery of a known event stores nothing: it waits for the answer of the earlier one.
        await self._store.add(call)
        known = await self._store.wait_finished(call.id, request.timeout_seconds)
        if known is None:
            return GONE if router.is_closed else _FORGOTTEN
        if known.reply is None:
            return _LATE
        # Not kept, so that the sender's next delivery of this event runs the function again.
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
