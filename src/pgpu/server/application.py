"""Joins routes, desk and access into one ASGI application.

It refuses to listen and to read settings: `listening` and the command line do.
"""

import asyncio

from fastapi import FastAPI, Request, WebSocket
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from pgpu.distribution import installed_version
from pgpu.errors import JobNotFoundError, PgpuBug, PgpuError, RequestError
from pgpu.server.event_broadcast import EventBroadcast
from pgpu.server.function_service import FunctionService, FunctionStore
from pgpu.server.job_service import JobService
from pgpu.server.maintenance import Maintenance
from pgpu.server.metrics import MetricsMiddleware, ServerMetrics
from pgpu.server.readiness_probe import ReadinessProbe
from pgpu.server.responses import LARGE_BODIES_AT_ONCE, add_body_schemas, error_response
from pgpu.server.routes import (
    admin_routes,
    event_routes,
    function_routes,
    gpu_routes,
    health_routes,
    job_routes,
    stream_routes,
)
from pgpu.server.single_flight import SingleFlight
from pgpu.server.stream_relay import StreamRelay

_BODIES = (*job_routes.BODIES, *gpu_routes.BODIES, *admin_routes.BODIES, *function_routes.BODIES)


def create_app(desk: JobService, caretaker: Maintenance, deploying: FunctionStore | None = None) -> FastAPI:
    """Make the application that answers from a desk, and tells how its caretaker found things.

    Args:
        desk: Answers about jobs.
        caretaker: Likewise about the server's own health.
        deploying: Knows bundles; None where no functions can be deployed.
    """
    app = FastAPI(
        title="pgpu",
        version=installed_version(),
        description="Hard slices of a GPU's memory: submit, watch and stop jobs. Errors are JSON with a class, a message and a hint.",
        docs_url=None,  # Its page loads scripts from elsewhere.
        redoc_url=None,
    )
    app.state.desk = desk
    app.state.functions = FunctionService(desk, deploying)
    app.state.bulletin = EventBroadcast(desk.engine.ledger)
    app.state.following = StreamRelay(desk.engine, app.state.bulletin)
    app.state.examiner = ReadinessProbe(desk.engine, caretaker)
    app.state.departures = SingleFlight()
    app.state.meters = ServerMetrics()
    app.state.large_bodies = asyncio.Semaphore(LARGE_BODIES_AT_ONCE)
    app.add_middleware(MetricsMiddleware, meters=app.state.meters)
    for router in (
        stream_routes.routes,
        job_routes.routes,
        gpu_routes.routes,
        admin_routes.routes,
        function_routes.routes,
        event_routes.routes,
        health_routes.routes,
    ):
        app.include_router(router)
    app.add_exception_handler(PgpuError, _ours)
    app.add_exception_handler(Exception, _bug)
    app.add_exception_handler(RequestValidationError, _unreadable)
    app.add_exception_handler(HTTPException, _no_such_route)
    add_body_schemas(app, _BODIES)
    return app


async def _ours(connection: Request | WebSocket, error: Exception) -> Response:
    answer = error_response(error if isinstance(error, PgpuError) else PgpuError(str(error)))
    if isinstance(connection, WebSocket):
        await connection.send_denial_response(answer)
    return answer


def _bug(request: Request, _error: Exception) -> Response:
    """Say that it is ours to mend; what it was stands in the server's log, for callers need not see our insides."""
    return error_response(
        PgpuBug(f"{request.method} {request.url.path} failed", hint="please report what the server logged")
    )


def _unreadable(_request: Request, error: Exception) -> Response:
    """Say in one line which parameter of the path or query is wrong."""
    first = error.errors()[0] if isinstance(error, RequestValidationError) else {}
    where = ".".join(str(part) for part in first.get("loc", ())[1:])
    return error_response(RequestError(f"{where}: {first.get('msg', 'it cannot be read')}"))


def _no_such_route(_request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 404:  # noqa: PLR2004 - HTTP's own number
        return error_response(
            JobNotFoundError("there is no such route", hint="GET /openapi.json describes all of them")
        )
    answer = error_response(RequestError(str(getattr(error, "detail", error))))
    answer.status_code = getattr(error, "status_code", answer.status_code)
    return answer
