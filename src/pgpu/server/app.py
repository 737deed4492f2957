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
from pgpu.server.answers import LARGE_BODIES_AT_ONCE, describe, refusal
from pgpu.server.bulletin import Bulletin
from pgpu.server.care import Caretaker
from pgpu.server.departures import Departures
from pgpu.server.desk import Desk
from pgpu.server.following import Following
from pgpu.server.functions import Deploying, FunctionDesk
from pgpu.server.metrics import Metered, Meters
from pgpu.server.readiness import Examiner
from pgpu.server.routes import admin, events, functions, gpus, health, jobs, streams

_BODIES = (*jobs.BODIES, *gpus.BODIES, *admin.BODIES, *functions.BODIES)


def create_app(desk: Desk, caretaker: Caretaker, deploying: Deploying | None = None) -> FastAPI:
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
    app.state.functions = FunctionDesk(desk, deploying)
    app.state.bulletin = Bulletin(desk.engine.ledger)
    app.state.following = Following(desk.engine, app.state.bulletin)
    app.state.examiner = Examiner(desk.engine, caretaker)
    app.state.departures = Departures()
    app.state.meters = Meters()
    app.state.large_bodies = asyncio.Semaphore(LARGE_BODIES_AT_ONCE)
    app.add_middleware(Metered, meters=app.state.meters)
    for router in (
        streams.routes,
        jobs.routes,
        gpus.routes,
        admin.routes,
        functions.routes,
        events.routes,
        health.routes,
    ):
        app.include_router(router)
    app.add_exception_handler(PgpuError, _ours)
    app.add_exception_handler(Exception, _bug)
    app.add_exception_handler(RequestValidationError, _unreadable)
    app.add_exception_handler(HTTPException, _no_such_route)
    describe(app, _BODIES)
    return app


async def _ours(connection: Request | WebSocket, error: Exception) -> Response:
    answer = refusal(error if isinstance(error, PgpuError) else PgpuError(str(error)))
    if isinstance(connection, WebSocket):
        await connection.send_denial_response(answer)
    return answer


def _bug(request: Request, _error: Exception) -> Response:
    """Say that it is ours to mend; what it was stands in the server's log, for callers need not see our insides."""
    return refusal(PgpuBug(f"{request.method} {request.url.path} failed", hint="please report what the server logged"))


def _unreadable(_request: Request, error: Exception) -> Response:
    """Say in one line which parameter of the path or query is wrong."""
    first = error.errors()[0] if isinstance(error, RequestValidationError) else {}
    where = ".".join(str(part) for part in first.get("loc", ())[1:])
    return refusal(RequestError(f"{where}: {first.get('msg', 'it cannot be read')}"))


def _no_such_route(_request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 404:  # noqa: PLR2004 - HTTP's own number
        return refusal(JobNotFoundError("there is no such route", hint="GET /openapi.json describes all of them"))
    answer = refusal(RequestError(str(getattr(error, "detail", error))))
    answer.status_code = getattr(error, "status_code", answer.status_code)
    return answer
