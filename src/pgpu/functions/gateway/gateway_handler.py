"""The request handler of a gateway's connections: from a request's head to its function's router.

A call that needs no token lookup and no storage goes the direct way, without a task. A caller's token is not passed on to
the function: its code belongs to its owner.
"""

import asyncio
import time
from typing import Any

from pgpu.functions.gateway.gateway_access import Credentials, GatewayAccess
from pgpu.functions.gateway.gateway_routes import GatewayRoute, RouteKind, parse_route
from pgpu.functions.http.request_handler import BAD_TIMEOUT, ReplicaInfo, request_id, request_times
from pgpu.functions.ipc.call_messages import Body, Chunk, Reply
from pgpu.functions.protocols import Refusal
from pgpu.functions.requests.request_queue import PendingRequest, ResponseSink
from pgpu.functions.router.function_router import FunctionRouter, RouterTable
from pgpu.functions.router.replica_connection import RoutedRequest

_NO_VERSION = Refusal(404, "no_version", "this version of the function gets no traffic")
_NO_PAGE = Refusal(404, "not_found", "the function has no such description")
_UNKNOWN_TIMEOUT_SECONDS = 60.0
_STORED_HEADERS = ("prefer", "ce-id", "ce-specversion")
_EVENTS = "application/cloudevents"
_OK = 200
_DESCRIBE_SECONDS = 5.0
"""Limit for a hot replica's description, which it has in memory."""


class _NoReplica:
    """The replica of a request that no replica has seen."""

    hot_since_seconds = 0.0
    load_seconds = 0.0

    def credit(self, request: PendingRequest) -> None:
        pass  # a refusal is no stream


_NO_REPLICA = _NoReplica()


class GatewayRequestHandler:
    """Passes the requests of HTTP connections to routers; see `RequestHandler`."""

    def __init__(self, routers: RouterTable, access: GatewayAccess) -> None:
        self._routers, self._access = routers, access

    def is_call(self, path: str) -> bool:
        return parse_route(path).kind is RouteKind.CALL

    def accept_direct(self, scope: Any, headers: dict[str, str]) -> PendingRequest | None:
        route = parse_route(scope["path"])
        router = self._routers.get(route.name)
        if router is None or is_stored(headers) or int(headers["content-length"]) > router.declaration.max_body_bytes:
            return None
        caller = Credentials.of_request(headers, scope["state"].get("uid"))
        if not self._access.is_known(caller) or self._access.refusal(caller, router) is not None:
            return None
        return self.new_request(scope, headers, route, router)

    def new_request(
        self, scope: Any, headers: dict[str, str], route: GatewayRoute, router: FunctionRouter | None
    ) -> RoutedRequest:
        """Begin a request; its deadline runs from now on."""
        declared_seconds = router.declaration.timeout_seconds if router else _UNKNOWN_TIMEOUT_SECONDS
        # Without the token: the function's code could use it elsewhere.
        forwarded = {name: value for name, value in headers.items() if name != "authorization"}
        query = scope["query_string"].decode("latin-1")
        return RoutedRequest(
            request_id(headers), scope["method"], scope["path"], query, forwarded, b"", None,
            *request_times(headers, declared_seconds), None, router=router, version=route.version,
            is_exact=route.version > 0,
        )  # fmt: skip

    def submit(self, request: PendingRequest, body: Body, file: int | None, sink: ResponseSink) -> None:
        assert isinstance(request, RoutedRequest)  # noqa: S101 - made by new_request()
        router = request.router
        assert router is not None  # noqa: S101 - checked before
        request.body, request.file, request.sink = body, file, sink
        if not request.timeout_seconds:
            router.refuse(request, BAD_TIMEOUT)
        elif request.is_exact and not router.serves(request.version):
            router.refuse(request, _NO_VERSION)
        else:
            router.submit(request)

    def abandon(self, request: PendingRequest) -> None:
        if isinstance(request, RoutedRequest) and request.router is not None:
            request.router.abandon(request)

    def replica_of(self, request: PendingRequest) -> ReplicaInfo:
        replica = request.replica if isinstance(request, RoutedRequest) else None
        return _NO_REPLICA if replica is None else replica


def is_stored(headers: dict[str, str]) -> bool:
    """Whether a call may have to be stored: it is asynchronous, or an event."""
    content_type = headers.get("content-type", "").lower()
    return any(name in headers for name in _STORED_HEADERS) or content_type.startswith(_EVENTS)


class _DescriptionSink:
    """The sink of a `describe` command."""

    def __init__(self) -> None:
        self.described: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def reply(self, reply: Reply, file: int | None) -> None:
        _ = file  # a description has none
        if not self.described.done():
            self.described.set_result(reply)

    def chunk(self, chunk: Chunk, file: int | None) -> None:
        pass  # a description is no stream


async def describe_function(
    handler: GatewayRequestHandler,
    request: RoutedRequest,
    route: GatewayRoute,
    patience_seconds: float = _DESCRIBE_SECONDS,
) -> Reply | Refusal:
    """Return a page of a function's own description, from a replica, once for each version.

    A replica is started for it if there is none; the limit is then the version's start timeout, not the calls' timeout.
    """
    router = request.router
    assert router is not None  # noqa: S101 - checked before
    load = router.load_of(request)
    if load is None:
        return _NO_PAGE
    if not load.pages:
        request.command = "describe"
        start_seconds = 0.0 if load.hot else load.declaration.startup_timeout_seconds
        request.deadline_seconds = min(request.deadline_seconds, time.monotonic() + start_seconds + patience_seconds)
        sink = _DescriptionSink()
        handler.submit(request, b"", None, sink)
        try:
            reply = await sink.described
        finally:
            router.abandon(request)
        if reply.status != _OK:
            return reply
        load.pages = {page: body.encode() for page, body in reply.headers.items()}
    path = "/openapi.json" if route.kind is RouteKind.OPENAPI else f"/v2/models/{router.name}"
    body = load.pages.get(path)
    return _NO_PAGE if body is None else Reply(_OK, {"content-type": "application/json"}, body)
