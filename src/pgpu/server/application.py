"""The ASGI application of a server: services, routes and error handlers; `listeners` opens the sockets."""

import asyncio
import os
from collections import defaultdict

from fastapi import FastAPI, Request, WebSocket
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from pgpu.distribution import installed_version
from pgpu.errors import AccessError, JobNotFoundError, PgpuError, RequestError
from pgpu.host.audit_log import AuditLog
from pgpu.ledger import GpuHistory
from pgpu.server import health, stream_routes
from pgpu.server.browser_boundary import BrowserBoundary
from pgpu.server.dashboard.feed import Feed
from pgpu.server.dashboard.picture import PictureReader
from pgpu.server.dashboard.routes import Board, WeekCache, data_routes, page_routes
from pgpu.server.dashboard.sign_in import SessionKey, TokenSignIn
from pgpu.server.fan_out import EventBroadcast, SingleFlight
from pgpu.server.health import Maintenance, ReadinessProbe
from pgpu.server.metrics import MetricsMiddleware, ServerMetrics
from pgpu.server.refusals import RefusalLog
from pgpu.server.responses import LARGE_BODIES_AT_ONCE, add_body_schemas, bug_response, error_response
from pgpu.server.routes import REQUESTS_AT_ONCE, handwritten, table_routes
from pgpu.server.stream_routes import StreamRelay
from pgpu.services.access import AccessRules, Caller, Identity
from pgpu.services.engine_pool import EnginePool
from pgpu.services.function_service import FunctionHost, FunctionStore
from pgpu.services.job_service import JobService
from pgpu.services.messages import Wait
from pgpu.services.route_table import ADMIN_ROUTES, FUNCTION_ROUTES, GPU_ROUTES, JOB_ROUTES


def create_app(
    engines: EnginePool, rules: AccessRules, maintenance: Maintenance, store: FunctionStore | None = None
) -> FastAPI:
    """Make the application of one ledger.

    Args:
        engines: Grant the GPUs.
        rules: Identify callers and limit what they may do.
        maintenance: Its findings are part of the server's health.
        store: Of bundles; None where no functions can be deployed.
    """
    app = FastAPI(
        title="pgpu",
        version=installed_version(),
        description="Hard slices of a GPU's memory: submit, watch and stop jobs. Errors are JSON with a class, a message and a hint.",
        docs_url=None,  # Its page loads scripts from other hosts.
        redoc_url=None,
    )
    app.state.engines = engines
    app.state.rules = rules
    app.state.functions = FunctionHost(engines.own, store, rules.uid_of_token)
    app.state.functions.end_leftovers()
    app.state.broadcast = EventBroadcast(engines.own.ledger)
    app.state.relay = StreamRelay(engines.own, app.state.broadcast)
    app.state.readiness = ReadinessProbe(engines.own, maintenance)
    app.state.flights = SingleFlight()
    app.state.metrics = ServerMetrics()
    app.state.many_jobs = asyncio.Semaphore(1)
    app.state.many_jobs_of = defaultdict(lambda: asyncio.Semaphore(1))
    app.state.turns_of = defaultdict(lambda: asyncio.Semaphore(REQUESTS_AT_ONCE))
    app.state.large_bodies = asyncio.Semaphore(LARGE_BODIES_AT_ONCE)
    board = app.state.board = _board(app)

    def leave() -> None:
        app.state.relay.begin_shutdown()
        board.feed.close()

    app.state.leave = leave
    app.add_middleware(BrowserBoundary)
    app.add_middleware(MetricsMiddleware, metrics=app.state.metrics)
    for router in (stream_routes.routes, handwritten, table_routes(), health.routes, page_routes, data_routes):
        app.include_router(router)
    add_error_handlers(app, RefusalLog(AuditLog(engines.own.settings.state_directory)))
    rows = (*JOB_ROUTES, *GPU_ROUTES, *ADMIN_ROUTES, *FUNCTION_ROUTES)
    add_body_schemas(app, [Wait, *(body for row in rows if (body := row.body or row.value) is not None)])
    return app


def _board(app: FastAPI) -> Board:
    engines: EnginePool = app.state.engines
    engine, server = engines.own, Identity(os.geteuid(), os.getegid(), frozenset())
    settings = engine.settings
    key = SessionKey.of_directory(settings.state_directory)
    app.state.sign_in = TokenSignIn(app.state.rules, engine.ledger.tokens, key)
    reader = PictureReader(JobService(engines, Caller(server.uid, is_admin=True, identity=server)))
    return Board(
        Feed(reader.read),
        lambda caller: JobService(engines, caller),
        WeekCache(GpuHistory(settings.state_directory)),
        app.state.functions,
    )


def add_error_handlers(app: FastAPI, refusals: RefusalLog | None = None) -> None:
    """Let an application answer every error as JSON, and write refused callers into the audit log."""

    async def answer(connection: Request | WebSocket, error: Exception) -> Response | None:
        if refusals is not None and isinstance(error, AccessError):
            await refusals.note(connection, error)
        return await _answer_error(connection, error)

    app.add_exception_handler(PgpuError, answer)  # type: ignore[arg-type] # its type knows no handler of both
    app.add_exception_handler(Exception, _answer_bug)
    app.add_exception_handler(RequestValidationError, _answer_invalid_parameter)
    app.add_exception_handler(HTTPException, _answer_http_error)


async def _answer_error(connection: Request | WebSocket, error: Exception) -> Response | None:
    answer = error_response(error if isinstance(error, PgpuError) else PgpuError(str(error)))
    if not isinstance(connection, WebSocket):
        return answer
    # Not accepted yet, so HTTP can still answer. Starlette would send a returned answer as well, in some versions.
    await connection.send_denial_response(answer)
    return None


def _answer_bug(request: Request, _error: Exception) -> Response:
    # Starlette raises the exception again after this answer, so the traceback is in the server's log, not at the
    # client.
    return bug_response(request.scope)


def _answer_invalid_parameter(_request: Request, error: Exception) -> Response:
    first = error.errors()[0] if isinstance(error, RequestValidationError) else {}
    where = ".".join(str(part) for part in first.get("loc", ())[1:])
    return error_response(RequestError(f"{where}: {first.get('msg', 'it cannot be read')}"))


def _answer_http_error(_request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 404:  # noqa: PLR2004 - HTTP's own number
        return error_response(
            JobNotFoundError("there is no such route", hint="GET /openapi.json describes all of them")
        )
    answer = error_response(RequestError(str(getattr(error, "detail", error))))
    answer.status_code = getattr(error, "status_code", answer.status_code)
    return answer
