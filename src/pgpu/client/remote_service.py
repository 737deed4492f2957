"""Services of a server as local objects: each row of `route_table` is a method that sends one request."""

import os
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote, urlencode

from pgpu.client.connection import HttpTransport
from pgpu.errors import FunctionNotFoundError
from pgpu.model import ColdStart, Deployment, Event, Version
from pgpu.services import wire
from pgpu.services.route_table import FUNCTION_ROUTES, Route

if TYPE_CHECKING:
    # A type checker sees the service itself. At run time its operations come from the table, and the service, which would
    # load the engine, is not imported.
    from pgpu.services.function_service import FunctionService as FunctionOperations
else:
    FunctionOperations = object

_EVENTS_BEGIN, _EVENT_DATA = b": what happens", b"data: "
"""Lines of server-sent events: the comment that the server sends first, and the field of an event."""


class RemoteService:
    """The operations of one service, with the parameters of the service's methods."""

    def __init__(self, transport: HttpTransport, routes: Sequence[Route], simulate: str | None = None) -> None:
        """Send nothing yet.

        Args:
            transport: Of the server.
            routes: The rows of the table.
            simulate: The simulated GPUs that requests are for; None for the server's own GPUs.
        """
        self._transport = transport
        self._routes = {route.operation or route.name: route for route in routes}
        self._simulate = simulate

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in self._routes:
            raise AttributeError(f"{type(self).__name__} has no operation {name!r}")
        return partial(self._call, self._routes[name])

    def _call(self, route: Route, *arguments: Any, **named: Any) -> Any:
        names, rest = route.path_parameters, list(arguments[len(route.path_parameters) :])
        path = route.path.format(**dict(zip(names, map(path_segment, arguments), strict=False)))
        body = rest.pop(0) if route.value is not None else None
        named |= dict(zip(route.arguments, rest, strict=False))
        query = {name: _query_value(named.pop(name, None)) for name in route.query}
        if "simulate" in query:
            query["simulate"] = self._simulate
        if route.body is not None:
            body = route.body(**named)
        query = {name: value for name, value in query.items() if value is not None}
        options = {} if route.is_repeatable else {"is_repeatable": False}
        target = f"{path}?{urlencode(query, errors='surrogateescape')}" if query else path
        answer = self._transport.ask(route.method, target, body, **options)
        return None if route.answer is None else wire.decode(route.answer, answer)


def path_segment(value: object) -> str:
    """Quote a value for a URL's path; bytes that are no UTF-8 survive."""
    return quote(os.fsencode(str(value)), safe="")


def _query_value(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


class HttpFunctions(RemoteService, FunctionOperations):
    """The `FunctionClient` and the `GatewayClient` of one server."""

    def __init__(self, transport: HttpTransport) -> None:
        super().__init__(transport, FUNCTION_ROUTES)

    def deploy(self, deployment: Deployment, bundle: BinaryIO) -> Version:
        """Send the bundle if the server lacks it, and keep a new version; see `FunctionClient.deploy`."""
        try:
            self.has_bundle(deployment.bundle)
        except FunctionNotFoundError:
            self._transport.send("PUT", f"/v1/bundles/{deployment.bundle}", bundle)
        return self.create_version(deployment)

    def note_cold_start(self, start: ColdStart) -> None:  # type: ignore[override] # `start` has the name
        """Store the phases of a start; see `GatewayClient.note_cold_start`."""
        self._call(self._routes["note_cold_start"], start.function, start)

    def events(self) -> Iterator[Event | None]:
        """Yield events; see `GatewayClient.events`."""
        with self._transport.streaming("/v1/events") as answer:
            for line in answer.lines():
                if line.startswith(_EVENT_DATA):
                    yield wire.decode(Event, wire.parse(line.removeprefix(_EVENT_DATA)))
                elif line.startswith(_EVENTS_BEGIN):
                    yield None
