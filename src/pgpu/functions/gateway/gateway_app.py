"""The ordinary way through the gateway: an ASGI application for everything that it answers.

It refuses to decide who may: access does.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from pgpu.errors import CapacityError, PgpuError
from pgpu.functions.gateway.async_call_routes import AsyncCallRoutes
from pgpu.functions.gateway.body_budget import BodyBudget, BodyReservation, NotTakenError
from pgpu.functions.gateway.function_pages import describe_function
from pgpu.functions.gateway.gateway_access import Credentials, GatewayAccess
from pgpu.functions.gateway.gateway_handler import GatewayRequestHandler, is_special
from pgpu.functions.gateway.gateway_routes import Route, RouteKind, parse_route
from pgpu.functions.gateway.openapi_document import openapi_document
from pgpu.functions.http.asgi_calls import answer_call, send_reply
from pgpu.functions.http.request_bodies import Receive
from pgpu.functions.http.request_heads import plain_headers
from pgpu.functions.http.response_writer import Send
from pgpu.functions.ipc.call_frames import INLINE_BYTES
from pgpu.functions.ipc.messages import Reply
from pgpu.functions.protocols import Refusal
from pgpu.functions.router.function_router import FunctionRouter
from pgpu.functions.router.routed_request import RoutedRequest
from pgpu.functions.router.router_table import RouterTable

JSON = {"content-type": "application/json"}
_NOT_FOUND = Refusal(404, "not_found", "there is nothing at this path")
_BUSY = Refusal(503, "busy", "too many tokens are being looked up", {"retry-after": "1"})
_SERVER_AWAY = Refusal(503, "server_away", "the server does not answer", {"retry-after": "1"})
_FUNCTIONS = "/functions/"
_APPLICATIONS = {RouteKind.CALL, RouteKind.OPENAPI, RouteKind.PART}
"""What an ASGI application answers itself, by whatever method, if it is asked below its function's path."""

_REFRESH_SECONDS = 0.2
"""The server is asked for a function that nobody knows at most so often."""

_encode = msgspec.json.Encoder().encode

Answered = Reply | Refusal | None
"""What a page says; None: it was sent."""


class GatewayApp:
    """The ASGI application."""

    def __init__(
        self,
        halls: RouterTable,
        access: GatewayAccess,
        counter: GatewayRequestHandler,
        kept: AsyncCallRoutes,
        refresh: Callable[[], Awaitable[object]],
        *,
        uploads: BodyBudget,
    ) -> None:
        """Join the parts.

        Args:
            halls: Functions.
            access: Who may.
            counter: Takes calls.
            kept: Answers calls that are kept.
            refresh: Learns of functions that were deployed a moment ago.
            uploads: What bodies may take.
        """
        self._halls, self._access, self._counter = halls, access, counter
        self._refresh = refresh
        self._refreshed_seconds = 0.0
        self.is_ready = False
        self._kept, self._uploads = kept, uploads

        self._pages: dict[str, Callable[[], Reply]] = {
            "/healthz": lambda: self._health(200),
            "/v2/health/live": lambda: self._health(200),
            "/readyz": lambda: self._health(200 if self.is_ready else 503),
            "/v2/health/ready": lambda: self._health(200 if self.is_ready else 503),
            "/v2": lambda: Reply(
                200, JSON, _encode({"name": "pgpu", "version": "1", "extensions": ["binary_tensor_data"]})
            ),
            "/openapi.json": lambda: Reply(200, JSON, openapi_document()),
        }

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        headers = plain_headers(scope["headers"])
        target = parse_route(scope["path"])
        caller = Credentials(headers.get("authorization"), scope["state"].get("uid"))
        errand = self._counter.errand(scope, headers, target, None)
        answered = await self._answered(errand, target, caller, receive, send)
        if isinstance(answered, Refusal):
            answered = answered.reply(errand.request_id)
        if answered is not None:
            await self._told(errand, answered, self._uploads.of(None, self._access.principal(caller), receive), send)

    async def _told(self, errand: RoutedRequest, answer: Reply, place: BodyReservation, send: Send) -> None:
        """Send an answer; a large one that was kept is held as long as its reader is slow."""
        with place:
            try:
                place.hold(len(answer.body) if len(answer.body) > INLINE_BYTES else 0)
            except NotTakenError as error:
                answer = error.refused.reply(errand.request_id)
            await send_reply(self._counter, errand, answer, send)

    async def _answered(
        self, errand: RoutedRequest, target: Route, caller: Credentials, receive: Receive, send: Send
    ) -> Answered:
        if not _may_be_an_applications(errand, target) and (refused := _misdirected(errand, target)) is not None:
            return refused
        if (refused := await self._unjudged(errand, caller)) is not None:
            return refused
        if target.kind is RouteKind.PAGE:
            return self._page(errand.path, caller)
        if target.kind is RouteKind.STORED:
            return await self._kept.of_caller(errand, target, caller)
        return await self._in_hall(errand, target, caller, receive, send)

    async def _in_hall(
        self, errand: RoutedRequest, target: Route, caller: Credentials, receive: Receive, send: Send
    ) -> Answered:
        hall = await self._hall(target.name, caller)
        if (refused := self._access.refusal(caller, hall)) is not None or hall is None:
            return refused or _NOT_FOUND
        if hall.declaration.is_asgi and _may_be_an_applications(errand, target):
            target = target._replace(kind=RouteKind.CALL)
        elif (refused := _misdirected(errand, target)) is not None:
            return refused
        errand.hall = hall
        self._allow_its_time(errand, hall)
        return await self._of_function(errand, target, caller, receive, send)

    async def _unjudged(self, errand: RoutedRequest, caller: Credentials) -> Refusal | None:
        try:
            async with asyncio.timeout_at(errand.deadline_seconds if errand.timeout_seconds else None):
                await self._access.bearers.learn(caller)
        except CapacityError:
            return _BUSY
        except (PgpuError, TimeoutError):
            return _SERVER_AWAY
        return None

    async def _of_function(
        self, errand: RoutedRequest, target: Route, caller: Credentials, receive: Receive, send: Send
    ) -> Answered:
        hall = errand.hall
        assert hall is not None  # noqa: S101 - set by the caller
        if target.kind in {RouteKind.CALL, RouteKind.NAMED_CALL}:
            return await self._called(errand, target, self._access.principal(caller), receive, send)
        if target.version and not hall.serves(target.version):
            return _NOT_FOUND
        if target.kind is RouteKind.MODEL_READY:
            return self._model_ready(hall)
        return await describe_function(self._counter, errand, target)

    async def _called(self, errand: RoutedRequest, target: Route, who: str, receive: Receive, send: Send) -> Answered:
        hall = errand.hall
        assert hall is not None  # noqa: S101 - set before
        with self._uploads.of(hall.function.owner_uid, who, receive) as upload:
            try:
                upload.announce(errand.headers.get("content-length", ""))
                if target.kind is RouteKind.NAMED_CALL or is_special(errand.headers):
                    return await self._kept.of_function(errand, target, who, upload.receive, send)
                await answer_call(self._counter, errand, hall.declaration.max_body_bytes, upload.receive, send)
            except NotTakenError as error:
                return error.refused
        return None

    async def _hall(self, name: str, caller: Credentials) -> FunctionRouter | None:
        """Find a function's hall; whoever may not call it may since a moment ago, when it was deployed or made public.

        So the server is asked whether there is such a function or not: how long an answer takes tells nobody.
        """
        hall = self._halls.get(name)
        is_refused = self._access.refusal(caller, hall) is not None
        if is_refused and time.monotonic() - self._refreshed_seconds > _REFRESH_SECONDS:
            self._refreshed_seconds = (
                math.inf
            )  # until it has answered: who knocks meanwhile is one more and asks no more
            try:
                await self._refresh()
            finally:
                self._refreshed_seconds = time.monotonic()
            hall = self._halls.get(name)
        return hall

    def _allow_its_time(self, errand: RoutedRequest, hall: FunctionRouter) -> None:
        """Let the function's own limit count, which was not known before."""
        if "request-timeout" not in errand.headers:
            errand.timeout_seconds = hall.declaration.timeout_seconds
        elif errand.timeout_seconds:
            errand.timeout_seconds = min(errand.timeout_seconds, hall.declaration.timeout_seconds)
        allowed_seconds = errand.timeout_seconds or hall.declaration.timeout_seconds
        errand.deadline_seconds = errand.admitted_seconds + allowed_seconds

    def _page(self, path: str, caller: Credentials) -> Answered:
        if path != "/metrics":
            return self._pages[path]()
        if (refused := self._access.admin_refusal(caller)) is not None:
            return refused
        return Reply(200, {"content-type": "text/plain; version=0.0.4; charset=utf-8"}, self._halls.metrics.text())

    def _health(self, status: int) -> Reply:
        state = "hot" if self.is_ready else "starting"
        return Reply(status, JSON, _encode({"state": state, "reason": None, "restarts": 0}))

    def _model_ready(self, hall: FunctionRouter) -> Reply:
        """A cold function is ready: it is started for who calls."""
        is_ready = hall.hopeless() is None
        state = "hot" if any(load.hot for load in hall.loads.values()) else "cold" if is_ready else "failed"
        return Reply(200 if is_ready else 503, JSON, _encode({"name": hall.name, "ready": is_ready, "state": state}))


def _misdirected(errand: RoutedRequest, target: Route) -> Refusal | None:
    if target.kind in {RouteKind.NOTHING, RouteKind.PART}:
        return _NOT_FOUND
    if errand.method not in target.methods.split(", "):
        said = f"this path takes {target.methods}"
        return Refusal(405, "bad_method", said, {"allow": target.methods})
    return None


def _may_be_an_applications(errand: RoutedRequest, target: Route) -> bool:
    """Whether a path may be one that an application has by itself."""
    return target.kind in _APPLICATIONS and errand.path.startswith(_FUNCTIONS)
