"""Services of a server as local objects: each row of `route_table` is a method that sends one request."""

import io
import os
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import partialmethod
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote, urlencode

from pgpu.client.http_transport import HttpTransport
from pgpu.errors import FunctionNotFoundError
from pgpu.model import Deployment, Event, Version
from pgpu.services import job_answers, wire
from pgpu.services.route_table import ADMIN_ROUTES, FUNCTION_ROUTES, ServiceRoute

if TYPE_CHECKING:
    # A type checker sees the services themselves. At run time the operations come from the table, and the services, which
    # would load the engine, are not imported.
    from pgpu.services.administration import AdministrationService as AdministrationOperations
    from pgpu.services.function_service import FunctionService as FunctionOperations
else:
    AdministrationOperations = FunctionOperations = object

_EVENTS_BEGIN, _EVENT_DATA = b": what happens", b"data: "
"""Lines of server-sent events: the comment that the server sends first, and the field of an event."""


class RemoteService:
    """Base of the services of a server: a subclass gets a method for each row of its part of the table."""

    def __init_subclass__(cls, routes: Sequence[ServiceRoute] = ()) -> None:
        for route in routes:
            setattr(cls, route.operation or route.name, partialmethod(RemoteService._call, route))

    def __init__(self, transport: HttpTransport, simulate: str | None = None) -> None:
        """Send nothing yet.

        Args:
            transport: Of the server.
            simulate: The simulated GPUs that requests are for; None for the server's own GPUs.
        """
        self._transport = transport
        self._simulate = simulate

    def _call(self, route: ServiceRoute, *arguments: Any, **named: Any) -> Any:
        """Send one request: the arguments are those of the path, then the body or its fields, then those of the query."""
        names, rest = route.path_parameters, list(arguments[len(route.path_parameters) :])
        path = route.path.format(**dict(zip(names, map(path_segment, arguments), strict=False)))
        body = rest.pop(0) if route.value is not None else None
        named |= dict(zip(route.arguments, rest, strict=False))
        query = {name: named.pop(name, None) for name in route.query}
        # Set by this client and not by its callers: the services have it as a parameter for requests of several
        # clients.
        if "simulate" in query:
            query["simulate"] = self._simulate
        if route.body is not None:
            body = route.body(**named)
        given = {
            name: value.value if isinstance(value, Enum) else value
            for name, value in query.items()
            if value is not None
        }
        options = {} if route.is_repeatable else {"is_repeatable": False}
        target = f"{path}?{urlencode(given, errors='surrogateescape')}" if given else path
        answer = self._transport.ask(route.method, target, body, **options)
        if route.answer is None:
            return None
        value = wire.decode(route.answer, answer)
        return list(job_answers.restore(value)) if route.answer is job_answers.JOBS else value


def path_segment(value: object) -> str:
    """Quote a value for a URL's path; bytes that are no UTF-8 survive."""
    return quote(os.fsencode(str(value)), safe="")


class HttpAdministration(RemoteService, AdministrationOperations, routes=ADMIN_ROUTES):
    """The `AdministrationService` of a server."""


class HttpFunctions(RemoteService, FunctionOperations, routes=FUNCTION_ROUTES):
    """The `FunctionService` of a server."""

    def deploy(self, deployment: Deployment, bundle: BinaryIO) -> Version:
        """Keep a new version durably; a function's first gets all of the traffic.

        Args:
            deployment: Its bundle's digest is that of `bundle`.
            bundle: The packed source tree; read only if the server has none of this digest.

        Raises:
            RequestError: It can never be served, the name is another user's, or the bundle is invalid.
            CapacityError: The caller has too many bundles.
        """
        try:
            self.has_bundle(deployment.bundle)
        except FunctionNotFoundError:
            self._transport.send("PUT", f"/v1/bundles/{deployment.bundle}", bundle)
        return self.create_version(deployment)

    def set_secret(self, name: str, value: bytes) -> None:
        self._transport.send("PUT", f"/v1/secrets/{path_segment(name)}", io.BytesIO(value))

    def events(self) -> Iterator[Event | None]:
        """Yield events as they happen, until the server ends; None once the subscription is complete."""
        with self._transport.open_stream("/v1/events") as answer:
            for line in answer.lines():
                if line.startswith(_EVENT_DATA):
                    yield wire.decode(Event, wire.parse(line.removeprefix(_EVENT_DATA)))
                elif line.startswith(_EVENTS_BEGIN):
                    yield None
