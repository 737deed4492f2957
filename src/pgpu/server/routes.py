"""The HTTP routes of the services, made from `route_table`; pages, bundles and events have routes written by hand.

A request is authenticated first; its service object then acts for that caller alone. Service methods block, so they run in
the thread pool, with the encoding of their answers.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any, cast, get_type_hints
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.concurrency import contextmanager_in_threadpool
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.responses import Response, StreamingResponse

from pgpu.engine.submission_expansion import MANY_JOBS, count_jobs
from pgpu.errors import RequestError
from pgpu.model import Event
from pgpu.server.fan_out import EventBroadcast, SingleFlight
from pgpu.server.peer_credentials import HANG_UP_KEY, STATE_KEY, PeerCredentials
from pgpu.server.responses import JsonResponse, body_schema, described, parse_body
from pgpu.services import job_answers, wire
from pgpu.services.access import AccessRules, Caller, Identity
from pgpu.services.administration import AdministrationService
from pgpu.services.engine_pool import EnginePool
from pgpu.services.function_service import FunctionHost, FunctionService
from pgpu.services.job_service import JobService
from pgpu.services.messages import Ask, Cancel, JobNames, JobReport
from pgpu.services.route_table import ADMIN_ROUTES, FUNCTION_ROUTES, GPU_ROUTES, JOB_ROOT, JOB_ROUTES, ServiceRoute

_BEARER = "bearer "
_MOST_ON_A_PAGE = 5000

REQUESTS_AT_ONCE = 2
"""Of one user: more would only make each of them wait longer for the interpreter, and those of all other users."""

# Time limit for the upload of a bundle: a hundred megabytes over a slow line.
_BUNDLE_SECONDS = 600.0

_MOST_SECRET_BYTES, _SECRET_SECONDS = 1 << 16, 10.0

_BUNDLE_SCHEMA = {
    "requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string"}}}}
}
_EVENT_STREAM = "text/event-stream"
_MOST_EVENT_DIGITS = 18

# Bounds of parameters in the query, which the services' own annotations do not have.
_QUERIES = {"limit": Annotated[int, Query(ge=1, le=10_000)]}


def authenticate(connection: HTTPConnection) -> Caller:
    """Return the caller of a request.

    Raises:
        UnauthenticatedError: Over TCP, without a valid token.
    """
    rules: AccessRules = connection.app.state.rules
    peer: PeerCredentials | None = connection.scope.get("state", {}).get(STATE_KEY)
    header = connection.headers.get("authorization", "")
    token = header[len(_BEARER) :].strip() if header.lower().startswith(_BEARER) else None
    identity = None if peer is None else Identity(peer.uid, peer.gid, peer.groups, peer.pid)
    address = connection.client.host if peer is None and connection.client is not None else None
    return rules.authenticate(identity, token, address)


CallerDep = Annotated[Caller, Depends(authenticate)]


def job_service(connection: HTTPConnection, caller: CallerDep) -> JobService:
    """Return the `JobService` of a request's caller."""
    engines: EnginePool = connection.app.state.engines
    return JobService(engines, caller)


def function_service(connection: HTTPConnection, caller: CallerDep) -> FunctionService:
    """Return the `FunctionService` of a request's caller."""
    host: FunctionHost = connection.app.state.functions
    return FunctionService(host, caller)


def administration_service(connection: HTTPConnection, caller: CallerDep) -> AdministrationService:
    """Return the `AdministrationService`.

    Raises:
        AccessError: The caller is no administrator.
    """
    engines: EnginePool = connection.app.state.engines
    return AdministrationService(engines.own, caller)


def hang_up_check(connection: HTTPConnection) -> Callable[[], bool]:
    """Return a function that checks whether the client has closed the connection."""
    state = connection.scope.get("state", {})
    return cast("Callable[[], bool]", state.get(HANG_UP_KEY, lambda: False))


JobServiceDep = Annotated[JobService, Depends(job_service)]
FunctionServiceDep = Annotated[FunctionService, Depends(function_service)]
HangUpDep = Annotated[Callable[[], bool], Depends(hang_up_check)]


def table_routes() -> APIRouter:
    """Return the routes of every row of the table."""
    router = APIRouter()
    for tag, service, dependency, rows in (
        ("jobs", JobService, job_service, JOB_ROUTES),
        ("gpus", JobService, job_service, GPU_ROUTES),
        ("admin", AdministrationService, administration_service, ADMIN_ROUTES),
        ("functions", FunctionService, function_service, FUNCTION_ROUTES),
    ):
        for route in rows:
            method = getattr(service, route.operation or route.name)
            body = route.body or route.value
            router.add_api_route(
                route.path,
                _endpoint(route, method, dependency),
                methods=[route.method],
                name=route.name,
                tags=[tag],
                status_code=route.status if route.answer is not None else 204,
                response_model=described(route.answer),
                description=(inspect.getdoc(method) or "").partition("\n\n")[0],
                openapi_extra=body_schema(body) if body is not None else None,
            )
    return router


def _endpoint(
    route: ServiceRoute, method: Callable[..., Any], dependency: Callable[..., Any]
) -> Callable[..., Awaitable[Response]]:
    """Return a function for FastAPI with the parameters of the path, the query and the body."""

    async def endpoint(request: Request, caller: Caller, service: Any, **given: Any) -> Response:
        arguments = [given[name] for name in route.path_parameters]
        if route.value is not None:
            arguments.append(given["body"])
        elif route.body is not None:
            # The service's parameters have the names of the body's fields.
            named = {name: getattr(given["body"], name) for name in route.arguments if name not in route.query}
            given |= named
        named = {name: given[name] for name in route.arguments}

        def answer() -> Response:
            value = method(service, *arguments, **named)
            if route.answer is job_answers.JOBS:
                value = list(job_answers.compact(value))
            return Response(status_code=204) if route.answer is None else JsonResponse(value, route.status)

        async with _turn(request, caller, is_long=route.name == "dry_run" or _names_many_jobs(given.get("body"))):
            # Encoding is part of the thread's work as well: a long list would block the event loop for seconds.
            if not route.is_shared:
                return await run_in_threadpool(answer)
            flights: SingleFlight = request.app.state.flights
            return cast("Response", await flights.answer((route.name, caller.sees_uid, *named.values()), answer))

    endpoint.__signature__ = inspect.Signature(_parameters(route, method, dependency))  # type: ignore[attr-defined] # FastAPI reads it
    return endpoint


def _names_many_jobs(body: object) -> bool:
    if isinstance(body, Ask):
        return count_jobs(body.submissions) > MANY_JOBS
    return isinstance(body, Cancel | JobNames) and len(body.jobs) > MANY_JOBS


@asynccontextmanager
async def _turn(request: Request, caller: Caller, *, is_long: bool = False) -> AsyncIterator[None]:
    """Wait until a request may have a thread of the pool, and the interpreter, which it shares with all others.

    One long request runs at a time, and waits until the others of its user are done: users take turns, however many one of them has
    sent. Of other requests each user has `REQUESTS_AT_ONCE`, administrators, and so the gateway, any number.
    """
    state = request.app.state
    async with AsyncExitStack() as stack:
        if is_long:
            await stack.enter_async_context(state.many_jobs_of[caller.uid])
            await stack.enter_async_context(state.many_jobs)
        elif not caller.is_admin:
            await stack.enter_async_context(state.turns_of[caller.uid])
        yield


def _parameters(
    route: ServiceRoute, method: Callable[..., Any], dependency: Callable[..., Any]
) -> list[inspect.Parameter]:
    hints, signature = get_type_hints(method), inspect.signature(method)
    annotations: dict[str, Any] = {
        "request": Request,
        "caller": CallerDep,
        "service": Annotated[Any, Depends(dependency)],
    }
    # The path's names are those of the interface, the method's may differ: they agree in their order.
    own = list(signature.parameters)[1:]
    for position, name in enumerate(route.path_parameters):
        annotations[name] = hints[own[position]]
    for name in route.query:
        annotations[name] = _QUERIES.get(name, hints[name])
    if (body := route.body or route.value) is not None:
        annotations["body"] = Annotated[body, Depends(parse_body(body))]
    defaults = {name: signature.parameters[name].default for name in route.query}
    empty = inspect.Parameter.empty
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, empty), annotation=kind)
        for name, kind in annotations.items()
    ]


handwritten = APIRouter(prefix="/v1")


@handwritten.get("/jobs", response_model=described(list[JobReport]), tags=["jobs"])
async def list_jobs(
    request: Request,
    service: JobServiceDep,
    *,
    include_final: bool = False,
    limit: Annotated[int | None, Query(ge=1, le=_MOST_ON_A_PAGE, description="At most so many; else all.")] = None,
    after: Annotated[int, Query(ge=0, le=(1 << 63) - 1, description="As the link to the next page has it.")] = 0,
) -> Response:
    """List the caller's jobs, for an administrator all, oldest first.

    Where there are more than `limit`, the header `Link` names the next page (`rel="next"`, RFC 8288).
    """
    flights: SingleFlight = request.app.state.flights

    def answer() -> Response:
        reports, behind = service.page(include_final=include_final, after=after, limit=limit)
        response = JsonResponse(reports)
        if behind is not None:
            query = urlencode({"include_final": str(include_final).lower(), "limit": limit, "after": behind})
            response.headers["Link"] = f'<{JOB_ROOT}?{query}>; rel="next"'
        return response

    key = ("jobs", service.caller.sees_uid, include_final, limit, after)
    async with _turn(request, service.caller):
        return cast("Response", await flights.answer(key, answer))


@handwritten.put("/secrets/{name}", status_code=204, openapi_extra=_BUNDLE_SCHEMA, tags=["functions"])
async def put_secret(request: Request, service: FunctionServiceDep, name: str) -> Response:
    """Keep a secret, in place of one of the same name: the body is its value."""
    # By hand: an error in a JSON body could quote a part of the value.
    value = b""
    try:
        async with asyncio.timeout(_SECRET_SECONDS):
            async for chunk in request.stream():
                value += chunk
                if len(value) > _MOST_SECRET_BYTES:
                    raise RequestError(f"a secret has at most {_MOST_SECRET_BYTES >> 10} KiB")
    except TimeoutError:
        raise RequestError(f"the secret did not come within {_SECRET_SECONDS:.0f} seconds") from None
    await run_in_threadpool(service.set_secret, name, value)
    return Response(status_code=204)


@handwritten.put("/bundles/{digest}", status_code=204, openapi_extra=_BUNDLE_SCHEMA, tags=["functions"])
async def put_bundle(request: Request, service: FunctionServiceDep, digest: str) -> Response:
    """Keep a packed source tree; its SHA-256 must be the address that it is sent to."""
    # A version names its bundle by digest, so the bundle comes first: one ledger transaction accepts the version, and a
    # bundle of a client that disconnected belongs to no version and is swept.
    receiving = await run_in_threadpool(service.receive)
    async with contextmanager_in_threadpool(receiving) as upload:
        try:
            async with asyncio.timeout(_BUNDLE_SECONDS):
                async for chunk in request.stream():
                    await run_in_threadpool(upload.write, chunk)
        except TimeoutError:
            raise RequestError(f"the bundle did not come within {_BUNDLE_SECONDS:.0f} seconds") from None
        await run_in_threadpool(upload.keep, digest)
    return Response(status_code=204)


@handwritten.get(
    "/events",
    response_class=Response,
    responses={200: {"model": described(Event), "content": {_EVENT_STREAM: {}}}},
    tags=["events"],
)
async def events(
    request: Request,
    caller: CallerDep,
    after: Annotated[int | None, Query(ge=0, le=(1 << 63) - 1, description="Begin behind this event.")] = None,
    last_event_id: Annotated[str | None, Header(description="As browsers send it when they reconnect.")] = None,
) -> Response:
    """Send the events of the caller's jobs as they happen, an administrator gets all; each event's data is JSON."""
    if after is None and last_event_id is not None:
        is_number = last_event_id.isascii() and last_event_id.isdecimal()
        if not is_number or len(last_event_id) > _MOST_EVENT_DIGITS:
            raise RequestError("Last-Event-ID is no number of an event")
        after = int(last_event_id)
    broadcast: EventBroadcast = request.app.state.broadcast
    stream = _event_lines(broadcast, caller, after)
    return StreamingResponse(stream, media_type=_EVENT_STREAM, headers={"Cache-Control": "no-store"})


async def _event_lines(broadcast: EventBroadcast, caller: Caller, after: int | None) -> AsyncIterator[bytes]:
    """Encode events. Source: https://html.spec.whatwg.org/multipage/server-sent-events.html."""
    after = await broadcast.newest() if after is None else after
    yield b": what happens from here on\n\n"
    async for found in broadcast.events(after):
        if not found:
            yield b": nothing new\n\n"
        for event in found:
            if caller.sees_uid is None or event.owner_uid == caller.sees_uid:
                yield b"id: %d\nevent: %s\ndata: %s\n\n" % (event.sequence, event.kind.encode(), wire.encode(event))
