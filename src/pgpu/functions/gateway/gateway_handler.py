"""The gateway's counter: from a request to an errand in the hall of its function.

A call whose caller is known and that asks for nothing special goes the short way, without a task. It refuses to pass a
caller's token on to a function: whose code that is may be anybody's.
"""

import time
from typing import Any

from pgpu.functions.gateway.gateway_access import Credentials, GatewayAccess
from pgpu.functions.gateway.gateway_routes import Route, RouteKind, parse_route
from pgpu.functions.http.request_handler import ReplicaInfo
from pgpu.functions.http.request_heads import request_id, timeout_seconds
from pgpu.functions.ipc.messages import Body
from pgpu.functions.protocols import Refusal
from pgpu.functions.requests.pending_request import PendingRequest, ResponseSink
from pgpu.functions.router.function_router import FunctionRouter
from pgpu.functions.router.routed_request import RoutedRequest
from pgpu.functions.router.router_table import RouterTable

BAD_TIMEOUT = Refusal(400, "bad_timeout", "Request-Timeout is a positive number of seconds")
_NO_VERSION = Refusal(404, "no_version", "this version of the function gets no traffic")
_UNKNOWN_TIMEOUT_SECONDS = 60.0
_SPECIAL = ("prefer", "ce-id", "ce-specversion")
_EVENTS = "application/cloudevents"


class _Cold:
    """What answers a request that no replica has seen."""

    hot_since_seconds = 0.0
    load_seconds = 0.0

    def credit(self, ticket: PendingRequest) -> None:
        """Nothing streams."""


_COLD = _Cold()


class GatewayRequestHandler:
    """Where a gateway's connections hand in their requests."""

    def __init__(self, halls: RouterTable, access: GatewayAccess) -> None:
        self._halls, self._access = halls, access

    def is_call(self, path: str) -> bool:
        """Say whether a POST to this path is a call."""
        return parse_route(path).kind is RouteKind.CALL

    def direct(self, scope: Any, headers: dict[str, str]) -> PendingRequest | None:
        """Begin a call that goes the short way; None: it takes the ordinary one."""
        target = parse_route(scope["path"])
        hall = self._halls.get(target.name)
        if hall is None or is_special(headers) or int(headers["content-length"]) > hall.declaration.max_body_bytes:
            return None
        caller = Credentials(headers.get("authorization"), scope["state"].get("uid"))
        if not self._access.is_known(caller) or self._access.refusal(caller, hall) is not None:
            return None
        return self.errand(scope, headers, target, hall)

    def errand(self, scope: Any, headers: dict[str, str], target: Route, hall: FunctionRouter | None) -> RoutedRequest:
        """Begin a request; its deadline runs."""
        now = time.monotonic()
        declared = hall.declaration.timeout_seconds if hall else _UNKNOWN_TIMEOUT_SECONDS
        known = timeout_seconds(headers, declared) or 0.0
        deadline = now + (known or declared)  # of a timeout that is none, for the body that comes before it is refused
        forwarded = {name: value for name, value in headers.items() if name != "authorization"}
        query = scope["query_string"].decode("latin-1")
        return RoutedRequest(
            request_id(headers), scope["method"], scope["path"], query, forwarded, b"", None, now, deadline, known,
            None, hall=hall, version=target.version, is_exact=target.version > 0,
        )  # fmt: skip

    def submit(self, ticket: PendingRequest, body: Body, file: int | None, asker: ResponseSink) -> None:
        """Hand a request with its whole body to its hall."""
        assert isinstance(ticket, RoutedRequest)  # noqa: S101 - made above
        hall = ticket.hall
        assert hall is not None  # noqa: S101 - looked at before
        ticket.body, ticket.file, ticket.asker = body, file, asker
        if not ticket.timeout_seconds:
            hall.refuse(ticket, BAD_TIMEOUT)
        elif ticket.is_exact and not hall.serves(ticket.version):
            hall.refuse(ticket, _NO_VERSION)
        else:
            hall.submit(ticket)

    def abandon(self, ticket: PendingRequest) -> None:
        """Nobody waits for it any more."""
        if isinstance(ticket, RoutedRequest) and ticket.hall is not None:
            ticket.hall.abandon(ticket)

    def warm(self, ticket: PendingRequest) -> ReplicaInfo:
        """Return the replica that has a request, or had it."""
        link = ticket.link if isinstance(ticket, RoutedRequest) else None
        return _COLD if link is None else link


def is_special(headers: dict[str, str]) -> bool:
    """Say whether a call wants more than its answer: to be kept, or to be known again."""
    return any(name in headers for name in _SPECIAL) or headers.get("content-type", "").lower().startswith(_EVENTS)
