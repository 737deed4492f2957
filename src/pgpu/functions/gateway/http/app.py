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
from pgpu.functions.calls.frames import INLINE_BYTES
from pgpu.functions.calls.messages import Reply
from pgpu.functions.front.http.answering import Send
from pgpu.functions.front.http.bodies import Receive
from pgpu.functions.front.http.ordinary import answer_call, send_reply
from pgpu.functions.front.http.requests import plain_headers
from pgpu.functions.gateway.access import Access, Caller
from pgpu.functions.gateway.calling.errands import Errand
from pgpu.functions.gateway.calling.hall import Hall
from pgpu.functions.gateway.controlling.halls import Halls
from pgpu.functions.gateway.http.counter import GatewayCounter, is_special
from pgpu.functions.gateway.http.describing import described
from pgpu.functions.gateway.http.document import document
from pgpu.functions.gateway.http.kept import KeptCalls
from pgpu.functions.gateway.http.targets import Kind, Target, target_of
from pgpu.functions.gateway.http.uploads import NotTakenError, Upload, Uploads
from pgpu.functions.protocols import Refusal

JSON = {"content-type": "application/json"}
_NOT_FOUND = Refusal(404, "not_found", "there is nothing at this path")
_BUSY = Refusal(503, "busy", "too many tokens are being looked up", {"retry-after": "1"})
_SERVER_AWAY = Refusal(503, "server_away", "the server does not answer", {"retry-after": "1"})
_FUNCTIONS = "/functions/"
_APPLICATIONS = {Kind.CALL, Kind.OPENAPI, Kind.PART}
"""What an ASGI application answers itself, by whatever method, if it is asked below its function's path."""

_REFRESH_SECONDS = 0.2
"""The server is asked for a function that nobody knows at most so often."""

_encode = msgspec.json.Encoder().encode

Answered = Reply | Refusal | None
"""What a page says; None: it was sent."""


class App:
    """The ASGI application."""

    def __init__(
        self,
        halls: Halls,
        access: Access,
        counter: GatewayCounter,
        kept: KeptCalls,
        refresh: Callable[[], Awaitable[object]],
        *,
        uploads: Uploads,
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
            "/openapi.json": lambda: Reply(200, JSON, document()),
        }

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        headers = plain_headers(scope["headers"])
        target = target_of(scope["path"])
        caller = Caller(headers.get("authorization"), scope["state"].get("uid"))
        errand = self._counter.errand(scope, headers, target, None)
        answered = await self._answered(errand, target, caller, receive, send)
        if isinstance(answered, Refusal):
            answered = answered.reply(errand.request_id)
        if answered is not None:
            await self._told(errand, answered, self._uploads.of(None, self._access.principal(caller), receive), send)

    async def _told(self, errand: Errand, answer: Reply, place: Upload, send: Send) -> None:
        """Send an answer; a large one that was kept is held as long as its reader is slow."""
        with place:
            try:
                place.hold(len(answer.body) if len(answer.body) > INLINE_BYTES else 0)
            except NotTakenError as error:
                answer = error.refused.reply(errand.request_id)
            await send_reply(self._counter, errand, answer, send)

    async def _answered(self, errand: Errand, target: Target, caller: Caller, receive: Receive, send: Send) -> Answered:
        if not _may_be_an_applications(errand, target) and (refused := _misdirected(errand, target)) is not None:
            return refused
        if (refused := await self._unjudged(errand, caller)) is not None:
            return refused
        if target.kind is Kind.PAGE:
            return self._page(errand.path, caller)
        if target.kind is Kind.STORED:
            return await self._kept.of_caller(errand, target, caller)
        return await self._in_hall(errand, target, caller, receive, send)

    async def _in_hall(self, errand: Errand, target: Target, caller: Caller, receive: Receive, send: Send) -> Answered:
        hall = await self._hall(target.name, caller)
        if (refused := self._access.refusal(caller, hall)) is not None or hall is None:
            return refused or _NOT_FOUND
        if hall.declaration.is_asgi and _may_be_an_applications(errand, target):
            target = target._replace(kind=Kind.CALL)
        elif (refused := _misdirected(errand, target)) is not None:
            return refused
        errand.hall = hall
        self._allow_its_time(errand, hall)
        return await self._of_function(errand, target, caller, receive, send)

    async def _unjudged(self, errand: Errand, caller: Caller) -> Refusal | None:
        try:
            async with asyncio.timeout_at(errand.deadline_seconds if errand.timeout_seconds else None):
                await self._access.bearers.learn(caller)
        except CapacityError:
            return _BUSY
        except (PgpuError, TimeoutError):
            return _SERVER_AWAY
        return None

    async def _of_function(
        self, errand: Errand, target: Target, caller: Caller, receive: Receive, send: Send
    ) -> Answered:
        hall = errand.hall
        assert hall is not None  # noqa: S101 - set by the caller
        if target.kind in {Kind.CALL, Kind.NAMED_CALL}:
            return await self._called(errand, target, self._access.principal(caller), receive, send)
        if target.version and not hall.serves(target.version):
            return _NOT_FOUND
        if target.kind is Kind.MODEL_READY:
            return self._model_ready(hall)
        return await described(self._counter, errand, target)

    async def _called(self, errand: Errand, target: Target, who: str, receive: Receive, send: Send) -> Answered:
        hall = errand.hall
        assert hall is not None  # noqa: S101 - set before
        with self._uploads.of(hall.function.owner_uid, who, receive) as upload:
            try:
                upload.announce(errand.headers.get("content-length", ""))
                if target.kind is Kind.NAMED_CALL or is_special(errand.headers):
                    return await self._kept.of_function(errand, target, who, upload.receive, send)
                await answer_call(self._counter, errand, hall.declaration.max_body_bytes, upload.receive, send)
            except NotTakenError as error:
                return error.refused
        return None

    async def _hall(self, name: str, caller: Caller) -> Hall | None:
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

    def _allow_its_time(self, errand: Errand, hall: Hall) -> None:
        """Let the function's own limit count, which was not known before."""
        if "request-timeout" not in errand.headers:
            errand.timeout_seconds = hall.declaration.timeout_seconds
        elif errand.timeout_seconds:
            errand.timeout_seconds = min(errand.timeout_seconds, hall.declaration.timeout_seconds)
        allowed_seconds = errand.timeout_seconds or hall.declaration.timeout_seconds
        errand.deadline_seconds = errand.admitted_seconds + allowed_seconds

    def _page(self, path: str, caller: Caller) -> Answered:
        if path != "/metrics":
            return self._pages[path]()
        if (refused := self._access.admin_refusal(caller)) is not None:
            return refused
        return Reply(200, {"content-type": "text/plain; version=0.0.4; charset=utf-8"}, self._halls.metrics.text())

    def _health(self, status: int) -> Reply:
        state = "hot" if self.is_ready else "starting"
        return Reply(status, JSON, _encode({"state": state, "reason": None, "restarts": 0}))

    def _model_ready(self, hall: Hall) -> Reply:
        """A cold function is ready: it is started for who calls."""
        is_ready = hall.hopeless() is None
        state = "hot" if any(load.hot for load in hall.loads.values()) else "cold" if is_ready else "failed"
        return Reply(200 if is_ready else 503, JSON, _encode({"name": hall.name, "ready": is_ready, "state": state}))


def _misdirected(errand: Errand, target: Target) -> Refusal | None:
    if target.kind in {Kind.NOTHING, Kind.PART}:
        return _NOT_FOUND
    if errand.method not in target.methods.split(", "):
        said = f"this path takes {target.methods}"
        return Refusal(405, "bad_method", said, {"allow": target.methods})
    return None


def _may_be_an_applications(errand: Errand, target: Target) -> bool:
    """Whether a path may be one that an application has by itself."""
    return target.kind in _APPLICATIONS and errand.path.startswith(_FUNCTIONS)
