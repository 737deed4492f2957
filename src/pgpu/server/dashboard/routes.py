"""The routes of the dashboard: the page and its files for everybody, its data for those that are signed in.

They are not part of the API: they change with the page.
"""

import asyncio
import gzip
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response, StreamingResponse

from pgpu.engine.history.usage_records import Waste
from pgpu.errors import RequestError, UnauthenticatedError
from pgpu.ledger import GpuHistory
from pgpu.ledger.gpu_history import KEPT_SECONDS
from pgpu.model import GpuSeries
from pgpu.palette import DARK, LIGHT, css_variables
from pgpu.server.browser_boundary import DASHBOARD_PATH, check_origin
from pgpu.server.dashboard.feed import Feed
from pgpu.server.dashboard.function_loads import function_loads
from pgpu.server.dashboard.job_output import output_of
from pgpu.server.dashboard.picture import printable, user_name
from pgpu.server.dashboard.sign_in import SignIn, set_cookie, until_signed_out
from pgpu.server.fan_out import SingleFlight
from pgpu.services.access import Caller
from pgpu.services.function_service import FunctionHost, FunctionService
from pgpu.services.job_service import JobService
from pgpu.structs import Struct, encode_json

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_MOST_SECRET_BYTES = 1000
_SESSION_DIGITS = 16
_MOST_ADVICE = 8
_MOST_NAME = 100
_HISTORY_SECONDS = 60.0
_MIB = 1 << 20


class WeekCache:
    """The last week, encoded once a minute for all viewers: of all GPUs together or of one."""

    def __init__(self, history: GpuHistory) -> None:
        self._history = history
        self._kept: dict[str | None, tuple[float, bytes]] = {}

    def get(self, gpu_uuid: str | None) -> bytes:
        """Return gzip of JSON: minutes as differences, memory in MiB."""
        now_seconds = time.time()
        self._kept = {key: kept for key, kept in self._kept.items() if 0 <= now_seconds - kept[0] < _HISTORY_SECONDS}
        if gpu_uuid not in self._kept:
            since_seconds = now_seconds - KEPT_SECONDS
            if gpu_uuid is None:
                series = self._history.total(since_seconds)
            else:
                found = self._history.series(since_seconds, gpu_uuid)
                series = found[0] if found else GpuSeries(gpu_uuid, (), (), (), ())
            self._kept[gpu_uuid] = now_seconds, gzip.compress(encode_json(_columns(series)), 6)
        return self._kept[gpu_uuid][1]


class Board(Struct, frozen=True):
    """What the routes need of one application."""

    feed: Feed
    jobs_of: Callable[[Caller], JobService]
    history: WeekCache
    functions: FunctionHost | None = None
    """None where none are served."""

    loads: Callable[[FunctionService], list[dict[str, object]]] = function_loads
    """How the functions of a caller fare."""


page_routes = APIRouter(prefix=DASHBOARD_PATH, include_in_schema=False)
"""What the browser loads, and how it signs in; of an application with a `SignIn` as `state.sign_in`."""

data_routes = APIRouter(prefix=DASHBOARD_PATH, include_in_schema=False)
"""For those that are signed in; of an application that has a `Board` as `state.board` as well."""


def _board(connection: HTTPConnection) -> Board:
    return cast("Board", connection.app.state.board)


BoardDep = Annotated[Board, Depends(_board)]


def _sign_in(connection: HTTPConnection) -> SignIn:
    return cast("SignIn", connection.app.state.sign_in)


SignInDep = Annotated[SignIn, Depends(_sign_in)]


def _caller(connection: HTTPConnection, sign_in: SignInDep) -> Caller:
    return sign_in.caller(connection)


CallerDep = Annotated[Caller, Depends(_caller)]


@page_routes.get("", response_class=Response)
def redirect() -> Response:
    """The page's relative links need the slash at the end."""
    return RedirectResponse(f".{DASHBOARD_PATH}/")


@page_routes.get("/", response_class=Response)
def page() -> Response:
    return _file("index.html")


@page_routes.get("/page/{name}", response_class=Response)
def file(name: str) -> Response:
    return _file(name)


@page_routes.post("/session", response_class=Response)
async def begin_session(request: Request, sign_in: SignInDep) -> Response:
    """Exchange a code or a token for the cookie."""
    # A secret is sent with it, so the name of the host decides nothing here.
    check_origin(request)
    secret = b""
    try:
        async with asyncio.timeout(sign_in.secret_seconds):
            async for chunk in request.stream():
                secret += chunk
                if len(secret) > _MOST_SECRET_BYTES:
                    raise RequestError("that is too long for a code or a token")
    except TimeoutError:
        raise RequestError("the code or token did not come in time") from None
    sealed = await run_in_threadpool(sign_in.seal, secret.decode("utf-8", "replace").strip())
    response = Response(status_code=204)
    set_cookie(response, sign_in.key.cookie, sealed, is_encrypted=request.url.scheme == "https")
    return response


@page_routes.delete("/session", response_class=Response)
def end_session(request: Request, sign_in: SignInDep) -> Response:
    """End the session, and let the browser forget its cookie."""
    check_origin(request)
    with suppress(UnauthenticatedError):  # it has ended before
        sign_in.key.end(request.cookies.get(sign_in.key.cookie, ""))
    response = Response(status_code=204)
    response.delete_cookie(sign_in.key.cookie, DASHBOARD_PATH)
    return response


@page_routes.get("/session", response_class=Response)
def session(connection: Request, sign_in: SignInDep) -> Response:
    """Return who is signed in, what a user signs in with, and a digest of the cookie, which tells sessions apart; None without one."""
    cookie = connection.cookies.get(sign_in.key.cookie)
    digest = None if cookie is None else sha256(cookie.encode()).hexdigest()[:_SESSION_DIGITS]
    try:
        user = user_name(sign_in.caller(connection).uid)
    except UnauthenticatedError:
        user = None
    return _json({"user": user, "secret": sign_in.asks_for, "session": digest})


@data_routes.get("/events", response_class=Response)
async def events(request: Request, sign_in: SignInDep, board: BoardDep, caller: CallerDep) -> Response:
    # Without the last header a proxy such as nginx would hold the events back.
    headers = {"Content-Encoding": "gzip", "X-Accel-Buffering": "no"}
    stream = until_signed_out(sign_in, request, board.feed.stream(caller.sees_uid))
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


@data_routes.get("/history.json", response_class=Response)
def week(
    board: BoardDep, _caller: CallerDep, gpu: Annotated[str | None, Query(max_length=_MOST_NAME)] = None
) -> Response:
    return Response(board.history.get(gpu), 200, {"Content-Encoding": "gzip"}, "application/json")


@data_routes.get("/usage.json", response_class=Response)
def usage(board: BoardDep, caller: CallerDep) -> Response:
    return _json(_usage(board.jobs_of(caller).waste()))


@data_routes.get("/advice.json", response_class=Response)
def advice(board: BoardDep, caller: CallerDep, job: Annotated[str, Query(max_length=_MOST_NAME)]) -> Response:
    """Return what earlier runs of a job's program used, and what its next run needs by them, on each model of GPU."""
    try:
        calls = board.jobs_of(caller).history(job)
    except RequestError:  # it never ended, or the job is not the caller's
        calls = ()
    rows = [
        [printable(call.gpu_name), len(call.runs), max(run.peak_bytes for run in call.runs), call.estimate.memory_bytes]
        for call in calls
    ]
    return _json(rows)


@data_routes.get("/functions.json", response_class=Response)
async def functions(request: Request, board: BoardDep, caller: CallerDep) -> Response:
    host = board.functions
    if host is None:
        return _json([])
    # Shared by all requests of a caller: each takes a thread for as long as its replicas take to answer.
    flights: SingleFlight = request.app.state.flights
    loads = partial(board.loads, FunctionService(host, caller))
    return _json(await flights.answer(("function loads", caller.sees_uid), loads))


@data_routes.get("/log.json", response_class=Response)
def log(
    board: BoardDep,
    caller: CallerDep,
    job: Annotated[str, Query(max_length=_MOST_NAME)],
    after: Annotated[int, Query(ge=0, lt=1 << 62)] = 0,
    within: Annotated[int, Query(ge=0, lt=1 << 62)] = 0,
) -> Response:
    return _json(output_of(board.jobs_of(caller).output_since(job, after), after, within))


def _columns(series: GpuSeries) -> dict[str, object]:
    minutes = [at // 60 for at in series.at_seconds]
    return {
        "first": minutes[0] if minutes else 0,
        "steps": [now - before for before, now in itertools.pairwise(minutes)],
        "reserved": [amount // _MIB for amount in series.reserved_bytes],
        "used": [amount // _MIB for amount in series.used_bytes],
        "busy": series.busy_percent,
    }


def _usage(found: Sequence[Waste]) -> dict[str, object]:
    """Return reserved and used memory over time of each user, and what would have been enough for the programs that wasted most."""
    users: dict[int, list[float]] = {}
    programs: dict[tuple[int, str], list[Any]] = {}
    for each in found:
        if each.duration_seconds is None:
            continue
        gib_hours = each.duration_seconds / 3600 / (1 << 30)
        user = users.setdefault(each.owner_uid, [0, 0.0, 0.0])
        user[0] += 1
        user[1] += each.reserved_bytes * gib_hours
        user[2] += each.peak_bytes * gib_hours
        if each.should_ask_bytes is not None and each.should_ask_bytes < each.reserved_bytes:
            program = programs.setdefault((each.owner_uid, each.signature), [0.0, 0, 0, 0])
            program[0] += (each.reserved_bytes - each.should_ask_bytes) * gib_hours
            program[1] = max(program[1], each.should_ask_bytes)
            program[2], program[3] = max(program[2], each.reserved_bytes), max(program[3], each.peak_bytes)
    worst = sorted(programs.items(), key=lambda item: item[1][0], reverse=True)[:_MOST_ADVICE]
    return {
        "users": [[user_name(uid), *row] for uid, row in sorted(users.items(), key=lambda item: -item[1][1])],
        "advice": [[user_name(uid), printable(signature), *row] for (uid, signature), row in worst],
    }


def _json(content: object) -> Response:
    return Response(encode_json(content), media_type="application/json")


@cache
def _files() -> dict[str, bytes]:
    found = {each.name: each.read_bytes() for each in files("pgpu.server.dashboard").joinpath("page").iterdir()}
    light, dark = css_variables(LIGHT), css_variables(DARK)
    found["palette.css"] = (
        f":root{{color-scheme:light;{light}}}:root[data-theme=dark]{{color-scheme:dark;{dark}}}"
        f"@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
    ).encode()
    return found


def _file(name: str) -> Response:
    content = _files().get(name)
    if content is None:
        return Response(status_code=404)
    kind = _TYPES.get(f".{name.rpartition('.')[2]}", "application/octet-stream")
    return Response(content, media_type=kind)
