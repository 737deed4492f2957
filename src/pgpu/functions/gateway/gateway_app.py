"""The ASGI application of a gateway: everything that is not a direct call; and the memory budget for bodies.

Each request runs in a task of its own on the event loop: its token is looked up, its function found, then the request is passed
to the function's router or to the store of asynchronous calls.

The budget covers request bodies and stored answers that are being sent: per caller, per owner, and in total. A body with a
`Content-Length` reserves its size before it is read, so that of many bodies at once some can complete; one without grows its
reservation as it arrives. A request that finds no room is refused at once.
"""

import asyncio
import math
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from pgpu.errors import CapacityError, PgpuError
from pgpu.functions.gateway.async_calls import AsyncCallRoutes
from pgpu.functions.gateway.gateway_access import Credentials, GatewayAccess
from pgpu.functions.gateway.gateway_handler import GatewayRequestHandler, describe_function, is_stored
from pgpu.functions.gateway.gateway_routes import GatewayRoute, RouteKind, openapi_document, parse_route
from pgpu.functions.http.asgi_calls import TOO_LARGE, Receive, answer_call, send_reply
from pgpu.functions.http.request_handler import NOT_FOUND, plain_headers
from pgpu.functions.http.response_writer import Send
from pgpu.functions.ipc.call_messages import INLINE_BYTES, Reply
from pgpu.functions.protocols import Refusal
from pgpu.functions.requests.prometheus_metrics import metrics_text
from pgpu.functions.router.function_router import FunctionRouter, RouterTable
from pgpu.functions.router.replica_connection import RoutedRequest
from pgpu.units import MIB

_PATIENCE_SECONDS = 30.0
"""Time in which a client must send the next piece of its body."""

_LEAST_BUDGET_BYTES = 256 * MIB

_NO_ROOM = Refusal(
    503,
    "busy",
    "too much is being sent to functions already",
    {"retry-after": "1", "connection": "close"},
)
_LATE = Refusal(408, "body_timeout", "the body did not come in time", {"connection": "close"})
JSON = {"content-type": "application/json"}
_BUSY = Refusal(503, "busy", "too many tokens are being looked up", {"retry-after": "1"})
_SERVER_AWAY = Refusal(503, "server_away", "the server does not answer", {"retry-after": "1"})
_FUNCTIONS = "/functions/"

_APPLICATIONS = {RouteKind.CALL, RouteKind.OPENAPI, RouteKind.PART}
"""Routes below a function's path that an ASGI application serves itself, with any method."""

_REFRESH_SECONDS = 0.2
"""Least time between two updates of the functions because of calls of unknown ones."""

_encode = msgspec.json.Encoder().encode
_METADATA = _encode({"name": "pgpu", "version": "1", "extensions": ["binary_tensor_data"]})

Answer = Reply | Refusal | None
"""The answer to a request; None: it was sent already."""


class BodyRefusedError(Exception):
    """A body is refused before its end."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.error)
        self.refusal = refusal


def default_budget_bytes() -> int:
    """Return the budget of this machine: a quarter of its memory."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(_LEAST_BUDGET_BYTES, memory_bytes // 4)


class BodyBudget:
    """The bytes of bodies that one gateway holds, by account; on the event loop only."""

    def __init__(self, most_bytes: int, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._most_bytes, self.patience_seconds = most_bytes, patience_seconds
        self._held_bytes: Counter[str] = Counter()
        """By account: the empty name is the total, others are owners and callers."""

    def reserve(self, owner_uid: int | None, caller: str, receive: Receive) -> "BodyReservation":
        """Begin the reservation of a request's body, or of a stored answer.

        Args:
            owner_uid: Owner of the called function: the functions of one owner may use half of the budget; None: no function.
            caller: Each caller may use a quarter. Owner and caller may exceed their part if this is their only body.
            receive: ASGI's.
        """
        most = self._most_bytes
        owner = () if owner_uid is None else ((f"owner {owner_uid}", most // 2),)
        return BodyReservation(self, (("", most), *owner, (f"caller {caller}", most // 4)), receive)

    def take(self, accounts: Sequence[tuple[str, int]], more_bytes: int, own_bytes: int) -> None:
        """Enlarge a reservation.

        Raises:
            BodyRefusedError: An account has no room.
        """
        if own_bytes + more_bytes > self._most_bytes:
            raise BodyRefusedError(TOO_LARGE)
        for index, (name, most_bytes) in enumerate(accounts):
            held = self._held_bytes[name]
            # An owner or caller may exceed its part with its only body. The total (index 0) has no exception: it protects the
            # machine's memory.
            is_alone = index > 0 and held == own_bytes
            if held + more_bytes > most_bytes and not is_alone:
                raise BodyRefusedError(_NO_ROOM)
        self.change(accounts, more_bytes)

    def change(self, accounts: Sequence[tuple[str, int]], by_bytes: int) -> None:
        """Add to all accounts of a reservation; a negative number frees room."""
        for name, _ in accounts:
            self._held_bytes[name] += by_bytes
            if not self._held_bytes[name]:
                del self._held_bytes[name]


class BodyReservation:
    """One body's reservation: a context that lasts as long as its request."""

    def __init__(self, budget: BodyBudget, accounts: Sequence[tuple[str, int]], receive: Receive) -> None:
        self._budget, self._accounts, self._receive = budget, accounts, receive
        self._taken_bytes = self._read_bytes = 0
        self._is_whole = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._budget.change(self._accounts, -self._taken_bytes)

    def hold(self, size_bytes: int) -> None:
        """Enlarge the reservation to a size.

        Raises:
            BodyRefusedError: There is no room.
        """
        if size_bytes > self._taken_bytes:
            self._budget.take(self._accounts, size_bytes - self._taken_bytes, self._taken_bytes)
            self._taken_bytes = size_bytes

    def announce(self, length: str) -> None:
        """Reserve the size in a `Content-Length`.

        Raises:
            BodyRefusedError: There is no room.
        """
        if length.isdecimal():
            self.hold(int(length))

    async def receive(self) -> Any:
        """ASGI's `receive` with a limit of time and size.

        Raises:
            BodyRefusedError: There is no room for the next piece, or it did not arrive in time.
        """
        if self._is_whole:
            # After the body only the end of the connection arrives, for which an application may wait without a limit.
            return await self._receive()
        try:
            async with asyncio.timeout(self._budget.patience_seconds):
                message = await self._receive()
        except TimeoutError:
            raise BodyRefusedError(_LATE) from None
        self._read_bytes += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        self.hold(self._read_bytes)
        return message


class GatewayApp:
    """The ASGI application."""

    def __init__(
        self,
        routers: RouterTable,
        access: GatewayAccess,
        handler: GatewayRequestHandler,
        async_calls: AsyncCallRoutes,
        refresh: Callable[[], Awaitable[object]],
        *,
        budget: BodyBudget,
    ) -> None:
        """Join the parts.

        Args:
            routers: Functions.
            access: Decides about access.
            handler: Takes calls.
            async_calls: Answers requests about asynchronous calls.
            refresh: Learns of functions that were deployed a moment ago.
            budget: Limits bodies.
        """
        self._routers, self._access, self._handler = routers, access, handler
        self._async_calls, self._budget = async_calls, budget
        self._refresh = refresh
        self._refreshed_seconds = 0.0
        self.is_ready = False

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = plain_headers(scope["headers"])
        route = parse_route(scope["path"])
        caller = Credentials.of_request(headers, scope["state"].get("uid"))
        # Before the lookup of the token, which counts against the caller's timeout.
        request = self._handler.new_request(scope, headers, route, None)
        answer = await self._answer(request, route, caller, receive, send)
        if isinstance(answer, Refusal):
            answer = answer.reply(request.request_id)
        if answer is None:
            return
        # Bytes of an answer stay in memory until its client has read them: a large stored answer counts against the budget.
        with self._budget.reserve(None, self._access.principal(caller), receive) as reservation:
            try:
                reservation.hold(len(answer.body) if len(answer.body) > INLINE_BYTES else 0)
            except BodyRefusedError as error:
                answer = error.refusal.reply(request.request_id)
            await send_reply(self._handler, request, answer, send)

    async def _answer(
        self, request: RoutedRequest, route: GatewayRoute, caller: Credentials, receive: Receive, send: Send
    ) -> Answer:
        # A wrong path or method needs no token, unless an ASGI application may serve it: that shows only after the lookup.
        if not _may_be_application_path(request, route) and (refusal := _route_refusal(request, route)) is not None:
            return refusal
        if (refusal := await self._look_up_token(request, caller)) is not None:
            return refusal
        if route.kind is RouteKind.PAGE:
            return self._page(request.path, caller)
        if route.kind is RouteKind.STORED:
            return await self._async_calls.of_caller(request, route, caller)
        return await self._answer_of_function(request, route, caller, receive, send)

    async def _answer_of_function(
        self, request: RoutedRequest, route: GatewayRoute, caller: Credentials, receive: Receive, send: Send
    ) -> Answer:
        router = await self._find_router(route.name, caller)
        if (refusal := self._access.refusal(caller, router)) is not None or router is None:
            return refusal or NOT_FOUND
        if router.declaration.is_asgi and _may_be_application_path(request, route):
            route = route._replace(kind=RouteKind.CALL)
        elif (refusal := _route_refusal(request, route)) is not None:
            return refusal
        request.router = router
        _apply_timeout(request, router)
        if route.kind in {RouteKind.CALL, RouteKind.NAMED_CALL}:
            return await self._answer_call(request, route, self._access.principal(caller), receive, send)
        if route.version and not router.serves(route.version):
            return NOT_FOUND
        if route.kind is RouteKind.MODEL_READY:
            return _readiness_reply(router)
        return await describe_function(self._handler, request, route)

    async def _answer_call(
        self, request: RoutedRequest, route: GatewayRoute, principal: str, receive: Receive, send: Send
    ) -> Answer:
        router = request.router
        assert router is not None  # noqa: S101 - set by the caller
        with self._budget.reserve(router.function.owner_uid, principal, receive) as body:
            try:
                # Before any of the body is read: of many large bodies at once, those that fit complete.
                body.announce(request.headers.get("content-length", ""))
                if route.kind is RouteKind.NAMED_CALL or is_stored(request.headers):
                    return await self._async_calls.of_function(request, route, principal, body.receive, send)
                await answer_call(self._handler, request, router.declaration.max_body_bytes, body.receive, send)
            except BodyRefusedError as error:
                return error.refusal
        return None

    async def _look_up_token(self, request: RoutedRequest, caller: Credentials) -> Refusal | None:
        try:
            async with asyncio.timeout_at(request.deadline_seconds if request.timeout_seconds else None):
                await self._access.tokens.look_up(caller)
        except CapacityError:
            return _BUSY
        except (PgpuError, TimeoutError):
            return _SERVER_AWAY
        return None

    async def _find_router(self, name: str, caller: Credentials) -> FunctionRouter | None:
        """Find a function; where access would be refused, update the functions from the server first.

        A function that exists but belongs to another user has the same delay, so the duration of an answer reveals nothing.
        """
        router = self._routers.get(name)
        is_refused = self._access.refusal(caller, router) is not None
        if is_refused and time.monotonic() - self._refreshed_seconds > _REFRESH_SECONDS:
            # Infinite during the update: a burst of calls of unknown functions costs the server one request.
            self._refreshed_seconds = math.inf
            try:
                await self._refresh()
            finally:
                self._refreshed_seconds = time.monotonic()
            router = self._routers.get(name)
        return router

    def _page(self, path: str, caller: Credentials) -> Answer:
        if path == "/metrics":
            if (refusal := self._access.admin_refusal(caller)) is not None:
                return refusal
            text = metrics_text(self._routers.metrics)
            return Reply(200, {"content-type": "text/plain; version=0.0.4; charset=utf-8"}, text)
        if path == "/v2":
            return Reply(200, JSON, _METADATA)
        if path == "/openapi.json":
            return Reply(200, JSON, openapi_document())
        # What is left are health checks; the two for liveness pass before the functions are known.
        is_fine = self.is_ready or path in {"/healthz", "/v2/health/live"}
        state = "hot" if self.is_ready else "starting"
        return Reply(200 if is_fine else 503, JSON, _encode({"state": state, "reason": None, "restarts": 0}))


def _apply_timeout(request: RoutedRequest, router: FunctionRouter) -> None:
    """Apply the function's own timeout, which was not known when the request began."""
    declared_seconds = router.declaration.timeout_seconds
    if "request-timeout" not in request.headers:
        request.timeout_seconds = declared_seconds
    elif request.timeout_seconds:
        request.timeout_seconds = min(request.timeout_seconds, declared_seconds)
    request.deadline_seconds = request.admitted_seconds + (request.timeout_seconds or declared_seconds)


def _readiness_reply(router: FunctionRouter) -> Reply:
    """Report readiness: a cold function is ready, since its next call starts it."""
    is_ready = router.start_refusal() is None
    state = "hot" if any(load.hot for load in router.loads.values()) else "cold" if is_ready else "failed"
    return Reply(200 if is_ready else 503, JSON, _encode({"name": router.name, "ready": is_ready, "state": state}))


def _route_refusal(request: RoutedRequest, route: GatewayRoute) -> Refusal | None:
    if route.kind in {RouteKind.NOTHING, RouteKind.PART}:
        return NOT_FOUND
    if request.method not in route.methods.split(", "):
        return Refusal(405, "bad_method", f"this path takes {route.methods}", {"allow": route.methods})
    return None


def _may_be_application_path(request: RoutedRequest, route: GatewayRoute) -> bool:
    """Whether an ASGI application may serve a path itself."""
    return route.kind in _APPLICATIONS and request.path.startswith(_FUNCTIONS)
