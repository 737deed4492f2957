"""The dashboard's routes and feed in this process: who is let in, and who sees what."""

import asyncio
import itertools
import json
import re
import socket
import threading
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.requests import HTTPConnection
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp
from tests.contract.in_process import AsPeer, answer_of, asked, make_app
from tests.fakes.machine import make_machine
from tests.waiting import DEADLINE_SECONDS
from uvicorn.server import ServerState

from pgpu.engine.agent.agents import Agents
from pgpu.engine.streams.log import log_bytes
from pgpu.engine.streams.records import Record, encode
from pgpu.engine.submitter import Submitter
from pgpu.errors import UnauthenticatedError
from pgpu.model import JobSpec, Request, Submission
from pgpu.server.application import add_error_handlers
from pgpu.server.browser_boundary import BrowserBoundary
from pgpu.server.dashboard.feed import ALIVE_SECONDS, MOST_QUEUED, Feed
from pgpu.server.dashboard.function_loads import function_loads, quantile
from pgpu.server.dashboard.job_output import MOST_LINE_BYTES, log_text, output_of
from pgpu.server.dashboard.picture import Picture, PictureReader, command_text, printable
from pgpu.server.dashboard.routes import page_routes
from pgpu.server.dashboard.sign_in import CODE_SECONDS, COOKIE, CodeSignIn, LoginCodes, SessionKey, until_signed_out
from pgpu.server.metrics import _job_metrics
from pgpu.server.peer_credentials import PeerCredentials, PeerHttpProtocol
from pgpu.services.access import Caller, Identity
from pgpu.services.administration import AdministrationService
from pgpu.services.engine_pool import EnginePool
from pgpu.services.function_service import FunctionService
from pgpu.services.job_service import JobService
from pgpu.services.messages import QueueReport
from pgpu.services.output_log import MOST_PART_BYTES, last_lines, read_part
from pgpu.structs import encode_json, replace
from pgpu.units import GIB

ALICE = 1  # who is in every machine's database, as `daemon`
DATA = ("events", "history.json", "usage.json", "functions.json", "log.json?job=x", "advice.json?job=x")
GZIP_HEAD = bytes((31, 139, 8, 0, 0, 0, 0, 0, 0, 255))
NOW_NS = 1_800_000_000_000_000_000
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e</script>"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_app(tmp_path_factory.mktemp("dashboard"))


@pytest.fixture(scope="module")
def token(app: Any) -> str:
    engine = app.state.engines.own
    return AdministrationService(engine, Caller.this_process()).create_token(ALICE).text


class OverTcp:
    """An application whose callers are no users of this machine's sockets."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {"peer": None}
        await self._app(scope, receive, send)


async def nothing_comes() -> Any:
    """Take no message, ever."""
    await asyncio.Event().wait()


def cookie_of(app: ASGIApp, token: str) -> str:
    status, headers, _ = asked(OverTcp(app), "POST", "/dashboard/session", token.encode(), host="gpu.example.org")
    assert status == 204
    assert re.fullmatch(
        rf"{COOKIE}_[0-9a-f]{{8}}=[^;]+; HttpOnly; Max-Age=43200; Path=/dashboard; SameSite=strict",
        headers["set-cookie"],
    )
    return headers["set-cookie"].partition(";")[0]


@pytest.mark.parametrize("route", DATA)
def test_without_a_cookie_no_data_is_sent(app: ASGIApp, route: str) -> None:
    status, _, text = asked(OverTcp(app), "GET", f"/dashboard/{route}", host="127.0.0.1")
    assert status == 401, text


def test_a_token_is_exchanged_for_a_cookie_that_opens_the_page_and_not_the_api(app: ASGIApp, token: str) -> None:
    cookie = cookie_of(app, token)
    for route in ("history.json", "usage.json", "functions.json"):
        assert asked(OverTcp(app), "GET", f"/dashboard/{route}", host="gpu.example.org", cookie=cookie)[0] == 200
    _, _, text = asked(OverTcp(app), "GET", "/dashboard/session", host="gpu.example.org", cookie=cookie)
    session = json.loads(text)
    assert re.fullmatch("[0-9a-f]{16}", session.pop("session"))
    assert session == {"user": "daemon", "secret": "token"}
    assert asked(OverTcp(app), "GET", "/v1/jobs", host="gpu.example.org", cookie=cookie)[0] == 401


def test_a_forged_or_revoked_or_old_cookie_opens_nothing(app: Any, tmp_path: Path) -> None:
    engine = app.state.engines.own
    made = AdministrationService(engine, Caller.this_process()).create_token(ALICE)
    cookie = cookie_of(app, made.text)
    other = "1" if cookie.endswith("0") else "0"
    name = cookie.partition("=")[0]
    for forged in ("", "x", ".", "é.é", f"{name}=é.é", f"{cookie[:-1]}{other}", f"{name}=e30.00"):
        assert asked(OverTcp(app), "GET", "/dashboard/usage.json", cookie=forged.encode().decode("latin-1"))[0] == 401
    AdministrationService(engine, Caller.this_process()).revoke_token(made.id)
    assert asked(OverTcp(app), "GET", "/dashboard/usage.json", cookie=cookie)[0] == 401
    key = SessionKey.of_directory(tmp_path, session_seconds=-1)
    with pytest.raises(UnauthenticatedError):
        key.read(key.seal(0, ""))


def test_the_key_survives_a_restart_in_a_file_of_the_server_alone(tmp_path: Path) -> None:
    sealed = SessionKey.of_directory(tmp_path).seal(5, "id")
    assert SessionKey.of_directory(tmp_path).read(sealed) == (5, "id")
    assert (tmp_path / "dashboard.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "dashboard.key").write_bytes(b"damaged")
    with pytest.raises(UnauthenticatedError):
        SessionKey.of_directory(tmp_path).read(sealed)


def test_a_code_is_valid_once_for_a_minute() -> None:
    now = [0.0]
    codes = LoginCodes(lambda: now[0])
    first, second = codes.make(), codes.make()
    assert codes.take(first)
    assert not codes.take(first)
    now[0] += CODE_SECONDS + 1
    assert not codes.take(second)
    assert not codes.take("")


def test_signing_out_deletes_the_cookie_and_other_sites_cannot_do_it(app: ASGIApp, token: str) -> None:
    cookie = cookie_of(app, token)
    name = cookie.partition("=")[0]
    assert asked(OverTcp(app), "DELETE", "/dashboard/session", cookie=cookie, origin="https://evil.example")[0] == 403
    assert asked(OverTcp(app), "GET", "/dashboard/usage.json", cookie=cookie)[0] == 200
    for _ in range(2):
        status, headers, _ = asked(OverTcp(app), "DELETE", "/dashboard/session", cookie=cookie)
        assert status == 204
        assert headers["set-cookie"].startswith(f'{name}=""; expires=')
        assert "Max-Age=0; Path=/dashboard" in headers["set-cookie"]


def test_a_copy_of_the_cookie_opens_nothing_after_signing_out_and_another_session_stays(app: Any, token: str) -> None:
    cookie, other = cookie_of(app, token), cookie_of(app, token)
    assert cookie != other  # of the same token in the same second
    assert asked(OverTcp(app), "DELETE", "/dashboard/session", cookie=cookie)[0] == 204
    for route in DATA:
        assert asked(OverTcp(app), "GET", f"/dashboard/{route}", cookie=cookie)[0] == 401
    assert json.loads(asked(OverTcp(app), "GET", "/dashboard/session", cookie=cookie)[2])["user"] is None
    assert asked(OverTcp(app), "GET", "/dashboard/usage.json", cookie=other)[0] == 200


def test_a_session_that_was_signed_out_stays_so_after_a_restart_and_in_a_damaged_file(tmp_path: Path) -> None:
    key = SessionKey.of_directory(tmp_path)
    ended, other = key.seal(5, "id"), key.seal(5, "id")
    key.end(ended)
    again = SessionKey.of_directory(tmp_path)
    assert again.read(other) == (5, "id")
    with pytest.raises(UnauthenticatedError):
        again.read(ended)
    path = tmp_path / "dashboard.ended"
    assert path.stat().st_mode & 0o777 == 0o600
    assert ended not in path.read_text()
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(UnauthenticatedError):
        SessionKey.of_directory(tmp_path).read(ended)


def test_sessions_that_are_over_are_forgotten_and_only_signed_cookies_are_noted(tmp_path: Path) -> None:
    key = SessionKey.of_directory(tmp_path)
    with pytest.raises(UnauthenticatedError):
        key.end("forged.0")
    assert not (tmp_path / "dashboard.ended").exists()
    (tmp_path / "dashboard.ended").write_text("of-yesterday 1\n")
    key = SessionKey.of_directory(tmp_path)
    key.end(key.seal(5, "id"))
    assert "of-yesterday" not in (tmp_path / "dashboard.ended").read_text()


def test_signing_out_appends_to_the_file_and_writes_it_anew_only_now_and_then(tmp_path: Path) -> None:
    key = SessionKey.of_directory(tmp_path)
    cookies = [key.seal(5, "id") for _ in range(80)]
    files = set()
    for cookie in cookies:
        key.end(cookie)
        files.add((tmp_path / "dashboard.ended").stat().st_ino)
    assert len(files) <= 2
    again = SessionKey.of_directory(tmp_path)
    assert all(again.is_ended(cookie) for cookie in cookies)
    with (tmp_path / "dashboard.ended").open("ab") as file:
        file.write(b"0" * 64 + b" 17")  # of a machine that lost its power
    assert not SessionKey.of_directory(tmp_path).is_ended(cookies[0])  # begun anew: no cookie is valid any more
    assert not (tmp_path / "dashboard.ended").exists()


def test_a_stream_ends_when_its_session_is_signed_out(app: Any, token: str) -> None:
    cookie = cookie_of(app, token)
    sign_in = app.state.sign_in
    connection = HTTPConnection({"type": "http", "headers": [(b"cookie", cookie.encode())]})

    async def parts() -> AsyncGenerator[bytes]:
        yield b"first"
        sign_in.key.end(connection.cookies[sign_in.key.cookie])
        yield b"second"

    async def watch() -> list[bytes]:
        return [part async for part in until_signed_out(sign_in, connection, parts())]

    assert asyncio.run(watch()) == [b"first"]


def test_servers_behind_one_host_name_have_cookies_of_different_names(tmp_path: Path) -> None:
    key = SessionKey.of_directory(tmp_path)
    assert key.cookie == SessionKey.of_directory(tmp_path).cookie
    assert key.cookie != SessionKey(b"another").cookie


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "localhost", "sec_fetch_site": "cross-site"},
        {"host": "localhost", "sec_fetch_site": "same-site"},
        {"host": "localhost:1", "origin": "http://localhost:2"},
        {"host": "localhost", "origin": "null"},
        {"host": "localhost", "origin": "http://["},
        {"host": "["},
        {"host": ""},
        {"host": "pgpu:9000"},
        {"host": "pgpu", "origin": "http://pgpu"},
        {"host": "pgpu", "sec_fetch_site": "same-origin"},
    ],
)
def test_requests_of_other_sites_are_refused_where_the_kernel_names_the_user(
    app: ASGIApp, headers: Mapping[str, str]
) -> None:
    peer = AsPeer(app, PeerCredentials(1, ALICE, ALICE, frozenset()))
    assert asked(peer, "GET", "/dashboard/usage.json", host="localhost:9000", sec_fetch_site="same-origin")[0] == 200
    assert asked(peer, "GET", "/dashboard/usage.json", host="pgpu")[0] == 200  # of `pgpu dashboard`, which forwards
    assert asked(peer, "GET", "/dashboard/usage.json", b"", **headers)[0] == 403
    assert asked(peer, "GET", "/v1/jobs", b"", **headers)[0] == 403


@pytest.mark.parametrize("page", [{"origin": "http://127.0.0.1:9000"}, {"sec_fetch_site": "same-origin"}, {}])
@pytest.mark.parametrize("target", ["POST /v1/jobs", "GET /v1/gpus", "GET /metrics", "GET /openapi.json"])
def test_no_page_asks_the_api_where_the_kernel_names_the_user(
    app: ASGIApp, token: str, target: str, page: Mapping[str, str]
) -> None:
    peer = AsPeer(app, PeerCredentials(1, ALICE, ALICE, frozenset()))
    method, _, path = target.partition(" ")
    for host in ("127.0.0.1:9000", "localhost", "[::1]:9000", "pgpu"):
        assert (asked(peer, method, path, b"", host=host, **page)[0] == 403) == bool(page)
    assert asked(OverTcp(app), method, path, b"", host="a", authorization=f"Bearer {token}", **page)[0] != 403


def test_no_page_attaches_to_a_job_where_the_kernel_names_the_user(app: ASGIApp) -> None:
    async def attach(*headers: tuple[bytes, bytes]) -> int:
        sent: list[Any] = []
        scope: dict[str, Any] = {
            "type": "websocket",
            "path": "/v1/jobs/x/attach",
            "headers": headers,
            "query_string": b"",
        }
        scope |= {"state": {"peer": PeerCredentials(1, ALICE, ALICE, frozenset())}}
        scope |= {"extensions": {"websocket.http.response": {}}}

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, send)
        [status] = [int(message["status"]) for message in sent if "status" in message]
        return status

    assert asyncio.run(attach((b"host", b"127.0.0.1"), (b"origin", b"https://evil.example"))) == 403
    assert asyncio.run(attach((b"host", b"evil.example"))) == 403
    assert asyncio.run(attach((b"host", b"pgpu"))) == 404


def test_errors_have_the_headers_of_the_page_as_well(app: ASGIApp) -> None:
    for path in ("/dashboard", "/dashboard/", "/dashboard/usage.json", "/dashboard/none", "/dashboard/log.json"):
        _, headers, _ = asked(OverTcp(app), "GET", path, host="x")
        assert headers["cache-control"] == "no-store", path
        assert headers["content-security-policy"].startswith("default-src 'none'")
    assert "content-security-policy" not in asked(OverTcp(app), "GET", "/v1/jobs", host="x")[1]


def test_a_bug_is_answered_with_the_headers_of_the_page_and_raised_for_the_log() -> None:
    app = FastAPI()
    app.add_middleware(BrowserBoundary)
    add_error_handlers(app)

    @app.get("/dashboard/broken")
    def broken() -> None:
        raise ZeroDivisionError

    @app.get("/dashboard/late")
    def late() -> StreamingResponse:
        def parts() -> Iterator[bytes]:
            yield b"begun"
            raise ZeroDivisionError

        return StreamingResponse(parts())

    for path, expected in (("broken", [500]), ("late", [200])):
        sent: list[Any] = []

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": f"/dashboard/{path}", "query_string": b"", "headers": []}
        with pytest.raises(ZeroDivisionError):
            asyncio.run(app({**scope, "http_version": "1.1", "scheme": "http"}, nothing_comes, send))
        starts = [message for message in sent if message["type"] == "http.response.start"]
        assert [message["status"] for message in starts] == expected
        assert dict(starts[0]["headers"])[b"content-security-policy"].startswith(b"default-src 'none'")
        assert b"/dashboard/broken failed" in sent[1]["body"] or path == "late"


def test_another_site_cannot_sign_a_browser_in(app: ASGIApp, token: str) -> None:
    headers = {"host": "gpu.example.org", "origin": "https://evil.example"}
    assert asked(OverTcp(app), "POST", "/dashboard/session", token.encode(), **headers)[0] == 403
    assert asked(OverTcp(app), "POST", "/dashboard/session", b"x" * 5000, host="gpu.example.org")[0] == 400


def test_a_secret_that_does_not_come_is_not_waited_for() -> None:
    app = FastAPI()
    app.state.sign_in = CodeSignIn(LoginCodes(), secret_seconds=0.01)
    app.include_router(page_routes)
    add_error_handlers(app)

    async def without_body(scope: Any, _receive: Any, send: Any) -> None:
        await app(scope, nothing_comes, send)

    status, _, text = asked(without_body, "POST", "/dashboard/session", host="x")
    assert (status, json.loads(text)["error"]["message"]) == (400, "the code or token did not come in time")


def test_the_connection_of_a_viewer_that_reads_nothing_is_aborted() -> None:
    async def watch() -> str:
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def endless(_scope: Any, receive: Any, send: Any) -> None:
            async def write() -> None:
                await send({"type": "http.response.start", "status": 200, "headers": []})
                while not ended.done():
                    await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})

            writing = asyncio.create_task(write())
            await receive()
            ended.set_result((await receive())["type"])
            await writing

        configuration = uvicorn.Config(BrowserBoundary(endless, 0.01), ws="none", lifespan="off")
        configuration.load()
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours:
            await loop.connect_accepted_socket(lambda: PeerHttpProtocol(configuration, ServerState(), {}), theirs)
            await loop.run_in_executor(None, ours.sendall, b"GET /dashboard/x HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(DEADLINE_SECONDS):
                return await ended

    assert asyncio.run(watch()) == "http.disconnect"


def test_the_page_loads_nothing_from_elsewhere_and_has_no_inline_code(app: ASGIApp) -> None:
    status, headers, page = asked(OverTcp(app), "GET", "/dashboard/", host="x")
    assert status == 200
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in headers["content-security-policy"]
    names = re.findall(rb'(?:href|src)="([^"#]+)"', page)
    assert names
    for name in names:
        status, headers, content = asked(OverTcp(app), "GET", f"/dashboard/{name.decode()}", host="x")
        assert status == 200
        assert content
        assert headers["content-type"].startswith(("text/css", "text/javascript", "image/svg"))
    assert not re.search(rb"style=|\son\w+=|<script(?! type=\"module\"| src)|https?:", page)
    assert asked(OverTcp(app), "GET", "/dashboard/page/__init__.py", host="x")[0] == 404
    assert asked(OverTcp(app), "GET", "/dashboard/page/..%2fsign_in.py", host="x")[0] == 404


def test_what_steers_a_page_or_a_terminal_is_escaped_and_names_stay_names() -> None:
    assert printable("한국어 <b>") == "한국어 <b>"
    assert printable("a\x1b[2J\u202e\ud800\n") == "a\\x1b[2J\\u202e\\ud800\\n"
    assert (
        log_text(b"10%\r50%\r100%\r\n\x1b[32mdone\x1b[0m\tok\x07\xff\x1b]0;title\x07")
        == "100%\ndone\tok\\x07�\\x1b]0;title\\x07"
    )


class Reading:
    """A page that reads a job's log again after each piece of output."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = self.tail = ""
        self.skips = 0
        self._position = {"after": 0, "within": 0}
        path.write_bytes(log_bytes(Record("stdout", b"", NOW_NS)))

    def add(self, *pieces: bytes) -> dict[str, Any]:
        with self.path.open("ab") as file:
            file.writelines(encode(Record("stdout", piece, NOW_NS)) for piece in pieces)
        found: dict[str, Any] = output_of(read_part(self.path, self._position["after"]), **self._position)
        self._position = {name: found[name] for name in self._position}
        self.text, self.tail, self.skips = self.text + found["text"], found["tail"], self.skips + found["skipped"]
        return found


def test_a_line_and_a_character_in_pieces_are_shown_once_and_whole(tmp_path: Path) -> None:
    reading = Reading(tmp_path / "log")
    shown = []
    for piece in (b"a\nepoch 1", b"\r50%", b"\r", b"100%\r", b"\ncaf", b"\xc3", b"\xa9\n", b"end\n"):
        reading.add(piece)
        shown.append((reading.text, reading.tail))
    lines = "a\n100%\n"
    assert shown[:5] == [("a\n", each) for each in ("epoch 1", "50%", "50%", "100%")] + [(lines, "caf")]
    assert shown[6:] == [(f"{lines}caf\u00e9\n", ""), (f"{lines}caf\u00e9\nend\n", "")]
    assert reading.skips == 0


def test_a_long_log_is_begun_near_its_end_at_a_whole_line(tmp_path: Path) -> None:
    reading = Reading(tmp_path / "log")
    line = b"x" * 98 + b"\n"
    found = reading.add(*[line] * 50_000)
    assert MOST_PART_BYTES // 2 < len(found["text"]) < MOST_PART_BYTES
    assert set(found["text"].splitlines()) == {"x" * 98}
    assert reading.skips == 1
    assert reading.add(b"next\n")["text"] == "next\n"
    assert reading.skips == 1


def test_a_line_without_end_is_not_read_again_as_a_whole(tmp_path: Path) -> None:
    reading = Reading(tmp_path / "log")
    text = "\u00e9" * MOST_LINE_BYTES
    data = text.encode()
    for at in range(0, len(data), 9999):
        reading.add(data[at : at + 9999])
        assert len(reading.tail) <= MOST_LINE_BYTES
    assert (reading.text + reading.tail, reading.skips) == (text, 0)
    assert len(last_lines(iter([Record("stdout", b"x" * 99, NOW_NS)] * 9), 2)[0][1]) == 9 * 99


def test_an_offset_without_a_record_is_refused(tmp_path: Path) -> None:
    reading = Reading(tmp_path / "log")
    reading.add(b"some output\n")
    with pytest.raises(ValueError, match="no record"):
        read_part(reading.path, 20)


def test_a_quantile_is_interpolated_in_its_bucket() -> None:
    buckets = {0.1: 50.0, 1.0: 100.0, float("inf"): 100.0}
    assert quantile(buckets, 0.5) == pytest.approx(0.1)
    assert quantile(buckets, 0.75) == pytest.approx(0.55)
    assert quantile({0.1: 0.0, float("inf"): 2.0}, 0.5) == pytest.approx(0.1)
    assert quantile({}, 0.5) is None


class OneFunction:
    """A `FunctionService` with one function, whose replicas listen at one socket."""

    def __init__(self, directory: Path, replica_count: int = 1) -> None:
        self._replica = SimpleNamespace(socket_directory=directory, state=SimpleNamespace(value="hot"))
        self._count = replica_count

    def functions(self) -> list[Any]:
        return [SimpleNamespace(name="it", traffic=[])]

    def replicas(self, _name: str) -> list[Any]:
        return [self._replica] * self._count

    def cold_starts(self, _name: str) -> list[Any]:
        return []


@contextmanager
def replica_that_sends(path: Path, pieces: Iterable[bytes]) -> Iterator[None]:
    """Answer one connection with pieces, until the client closes it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path / "http.sock"))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                for piece in pieces:
                    connection.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def test_a_replica_that_trickles_is_left_out_and_so_are_the_others_after_the_time_of_all(tmp_path: Path) -> None:
    def trickle() -> Iterator[bytes]:
        while True:
            yield b"x"
            threading.Event().wait(0.01)

    service = cast("FunctionService", OneFunction(tmp_path, replica_count=1000))
    with replica_that_sends(tmp_path, trickle()):
        [load] = function_loads(service, answer_seconds=0.1, all_seconds=0.1)
    assert (load["replicas"], load["calls"]) == ({"hot": 1000}, 0)


def test_counts_that_no_replica_can_have_are_left_out(tmp_path: Path) -> None:
    name = b"pgpu_function_request_seconds_bucket"
    text = b'%b{le="0.5"} 3\n%b{le="1"} 9e307\n%b{le="+Inf"} 1e999\n' % (name, name, name)
    with replica_that_sends(tmp_path, [b"HTTP/1.0 200 OK\r\n\r\n" + text]):
        [load] = function_loads(cast("FunctionService", OneFunction(tmp_path)))
    assert load["calls"] == 3


def test_a_jobs_advice_is_what_its_program_used_before(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    peer = AsPeer(app, PeerCredentials(1, ALICE, ALICE, frozenset()))
    assert json.loads(asked(peer, "GET", "/dashboard/advice.json?job=unknown")[2]) == []
    runs = [SimpleNamespace(peak_bytes=GIB), SimpleNamespace(peak_bytes=3 * GIB)]
    call = SimpleNamespace(gpu_name="RTX 3090", runs=runs, estimate=SimpleNamespace(memory_bytes=4 * GIB))
    jobs = SimpleNamespace(history=lambda job: [call] if job == "it" else [])
    app.state.board = replace(app.state.board, jobs_of=lambda _caller: jobs)
    found = json.loads(asked(peer, "GET", "/dashboard/advice.json?job=it")[2])
    assert found == [["RTX 3090", 2, 3 * GIB, 4 * GIB]]


def test_loads_of_functions_are_computed_at_most_twice_at_a_time(tmp_path: Path) -> None:
    running: list[None] = []
    numbers: list[int] = []
    may_end = threading.Event()

    def slow(_service: object) -> list[Any]:
        running.append(None)
        numbers.append(len(running))
        may_end.wait(DEADLINE_SECONDS)
        running.pop()
        return []

    app = make_app(tmp_path)
    app.state.board = replace(app.state.board, loads=slow)

    async def ask() -> None:
        peer = AsPeer(app, PeerCredentials(1, ALICE, ALICE, frozenset()))
        asking = [asyncio.create_task(answer_of(peer, "GET", "/dashboard/functions.json")) for _ in range(10)]
        await asyncio.wait(asking, timeout=0.2)
        may_end.set()
        assert {(await each)[0] for each in asking} == {200}

    asyncio.run(ask())
    assert max(numbers) <= 2


# The feed

HEAD = {"simulated": False, "problem": ""}


def read_events(text: bytes) -> list[tuple[str, Any]]:
    """Decode the events of one message, which can be decompressed without those before it."""
    found = []
    for event in text.split(b"\n\n"):
        fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line)
        if b"data" in fields:
            found.append((fields.get(b"event", b"").decode(), json.loads(fields[b"data"])))
    return found


def unpacked(message: bytes) -> bytes:
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(message.removeprefix(GZIP_HEAD))


async def first_of(stream: AsyncIterator[bytes], count: int) -> list[bytes]:
    found = []
    async for message in stream:
        if b"data: " in (text := unpacked(message)):
            found.append(text)
            if len(found) == count:
                break
    return found


def test_five_users_see_their_own_jobs_and_of_others_memory_gpu_and_state_alone(tmp_path: Path) -> None:
    engine = make_machine(tmp_path, [10 * GIB])
    engine.agents = Agents(engine.settings, ("/bin/true",))  # ends at once, and its guard with it
    users = (1001, 1002, 1003, 1004)
    for uid in users:
        spec = JobSpec(("python", f"secret-of-{uid}", HOSTILE), "process", name=f"name-of-{uid}")
        submitter = Submitter(uid, (), '{"umask": 18, "limits": {}}')
        engine.submit_all([Submission(spec, Request(uid * 1_000_000))], submitter)
    root = Identity(0, 0, frozenset())
    reader = PictureReader(JobService(EnginePool(engine, is_server=True), Caller(0, is_admin=True, identity=root)))
    feed = Feed(reader.read, 0.01)

    async def watch() -> dict[int | None, bytes]:
        streams = {uid: feed.stream(uid) for uid in (*users, None)}
        found = await asyncio.gather(*(first_of(stream, 1) for stream in streams.values()))
        feed.close()
        return {uid: messages[0] for uid, messages in zip(streams, found, strict=True)}

    seen = asyncio.run(watch())
    for uid in users:
        events = read_events(seen[uid])
        everything, own = events[0][1], events[1][1]
        assert events[0][0] == "all"
        assert len(everything["jobs"]) == len(users)
        assert [row[1:] for row in everything["jobs"]] == [["starting", each * 1_000_000, 1, ["0"]] for each in users]
        [row] = own["own"]
        assert row[2:4] == [f"name-of-{uid}", str(uid)]
        assert "\\x1b[31m\\u202e" in row[4]
        assert "<img" in row[4]
        for other in set(users) - {uid}:
            assert f"-of-{other}".encode() not in seen[uid]
            assert str(other).encode() + b'"' not in seen[uid]
    assert [row[3] for row in read_events(seen[None])[1][1]["own"]] == [str(uid) for uid in users]


def waiting(
    tmp_path: Path, *commands: tuple[str, ...], kind: type[JobService] = JobService
) -> tuple[JobService, list[str]]:
    """Return a service for an administrator, and the ids of jobs that wait for its only GPU."""
    engine = make_machine(tmp_path, [10 * GIB])
    engine.agents = Agents(engine.settings, ("/bin/true",))  # ends at once, and its guard with it
    engine.gpus.set_outsiders("GPU-0", 10 * GIB)  # type: ignore[attr-defined] # a fake
    submitter = Submitter(ALICE, (), '{"umask": 18, "limits": {}}')
    jobs = engine.submit_all([Submission(JobSpec(command, "process"), Request(GIB)) for command in commands], submitter)
    root = Identity(0, 0, frozenset())
    return kind(EnginePool(engine, is_server=True), Caller(0, is_admin=True, identity=root)), [job.id for job in jobs]


def test_a_long_command_is_cut_before_it_is_joined() -> None:
    class LongWord(str):
        __slots__ = ()

        def isprintable(self) -> bool:
            raise AssertionError("the whole word was escaped")

    def text_of(*words: Iterable[str]) -> str:
        spec = SimpleNamespace(image=None, command=itertools.chain(("python",), *words))
        return command_text(cast("JobSpec", spec))

    assert text_of([LongWord("\x1b" * 100_000)]) == ("python " + "\\x1b" * 100)[:300]
    assert text_of(itertools.repeat("y")) == ("python " + "y " * 150)[:300]


class Forecasting(JobService):
    """A service with a forecast that a test gives it."""

    forecast: Sequence[QueueReport] = ()

    def queue(self, simulate: str | None = None) -> Sequence[QueueReport]:  # noqa: ARG002 - as called
        return self.forecast


def test_a_start_is_shown_where_it_is_known_with_the_rule_that_decides(tmp_path: Path) -> None:
    service, ids = waiting(tmp_path, ("a",), ("b",), kind=Forecasting)
    assert isinstance(service, Forecasting)
    service.forecast = [
        QueueReport(
            place,
            replace(service.find(job_id).job, expected_start_seconds=start),
            "memory",
            is_start_known=start is not None,
            by_seconds=5e9 if start is None else None,
        )
        for place, (job_id, start) in enumerate(zip(ids, (4e9, None), strict=True), 1)
    ]
    reader = PictureReader(service)
    reader.read()
    reader._forecast.join()
    rows = [row for _, row in reader.read().own.values()]
    assert [(row[12], row[14], *row[16:19]) for row in rows] == [
        (1, 4_000_000_000, "memory", None, None),
        (2, None, "memory", None, 5_000_000_000),
    ]


def test_a_held_job_is_marked_for_its_owner_and_counts_neither_as_waiting_nor_in_the_oldest_wait(
    tmp_path: Path,
) -> None:
    service, ids = waiting(tmp_path, ("a",), ("b",))
    service.hold(ids[:1])
    rows = [row for _, row in PictureReader(service).read().own.values()]
    assert [row[19] for row in rows] == [True, False]
    jobs = [service.find(job_id).job for job_id in ids]
    begins = replace(jobs[1], begin_at_seconds=4e9)
    oldest = {each.name: each for each in _job_metrics([replace(jobs[0], created_at_seconds=1.0), begins])}
    assert oldest["pgpu_queue_oldest_wait_seconds"].samples[0].value == 0.0


def test_jobs_that_ended_leave_the_reader_and_no_other_process_gives_their_numbers(tmp_path: Path) -> None:
    service, ids = waiting(tmp_path, ("a",), ("b",), ("c",))
    reader = PictureReader(service, most_ended=1)
    numbers = set(reader.read().jobs)
    assert numbers.isdisjoint(PictureReader(service).read().jobs)
    service.request_cancel(ids, 0.0)
    assert [row[1] for row in reader.read().jobs.values()] == ["cancelled"]
    assert len(reader._numbers) == 1
    assert not reader._rows


def picture(*numbers: int, state: str = "running", owner_uid: int = 7) -> Picture:
    return Picture(
        {"GPU-0": ("GPU-0", state)},
        {number: (number, state) for number in numbers},
        {number: (owner_uid, (number, "own", state)) for number in numbers},
    )


def test_a_viewer_gets_everything_once_and_then_changes_alone() -> None:
    pictures = iter([picture(1, 2), picture(1, 2), picture(2, 3), picture(2, 3, state="ended")])
    feed = Feed(lambda: next(pictures), 0.0)
    [first, second, third] = asyncio.run(first_of(feed.stream(7), 3))
    assert [kind for kind, _ in read_events(first)] == ["all", ""]
    assert read_events(second) == [
        ("", {"jobs": [[3, "running"]], "gone_jobs": [1]}),
        ("", {"own": [[3, "own", "running"]], "gone_own": [1]}),
    ]
    assert read_events(third)[0][1] == {"gpus": [["GPU-0", "ended"]], "jobs": [[2, "ended"], [3, "ended"]]}


def test_the_public_part_is_encoded_once_for_all_viewers_and_the_rest_once_for_each_user() -> None:
    encoded: list[Any] = []

    def encode(value: Any) -> bytes:
        encoded.append(value)
        return encode_json(value)

    states = iter(["a", "b", "c"])
    feed = Feed(lambda: picture(1, state=next(states, "end")), 0.02, encode=encode)

    async def watch() -> None:
        streams = [feed.stream(uid) for uid in (None, 7, 8) for _ in range(7)]
        await asyncio.gather(*(first_of(stream, 2) for stream in streams))
        feed.close()

    asyncio.run(watch())
    assert len([each for each in encoded if "gpus" in each and each["gpus"][0][1] == "a"]) == 1
    assert len([each for each in encoded if "gpus" in each and each["gpus"][0][1] == "b"]) == 1
    # User 8 has no job, so nothing changes for it.
    assert len([each for each in encoded if each.get("own", [[0, 0, ""]])[0][2] == "b"]) == 2


def test_a_failed_reading_is_shown_until_one_succeeds_and_is_no_empty_picture(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found: Iterator[Picture | OSError] = iter(
        [OSError(5, "secret"), OSError(5, "secret"), picture(1), OSError(5, "secret"), picture(2)]
    )

    def read() -> Picture:
        if isinstance(each := next(found), OSError):
            raise each
        return each

    feed = Feed(read, 0.0)
    messages = asyncio.run(first_of(feed.stream(7), 4))
    problem = {"head": {"simulated": False, "problem": "No news can be read: OSError; the server's log has more"}}
    kinds = [read_events(message) for message in messages]
    assert kinds[0] == [("", problem)]
    assert kinds[1][0] == ("all", {"gpus": [["GPU-0", "running"]], "jobs": [[1, "running"]], "head": HEAD})
    assert kinds[2] == [("", problem)]
    assert kinds[3][0] == ("", {"jobs": [[2, "running"]], "gone_jobs": [1], "head": HEAD})
    assert len(caplog.records) == 2


def test_a_viewer_that_comes_while_nothing_could_be_read_yet_sees_why() -> None:
    def read() -> Picture:
        raise OSError(5, "secret")

    async def watch() -> list[bytes]:
        feed = Feed(read, 0.0)
        first = feed.stream(7)
        found = await first_of(first, 1)
        return [*found, *await first_of(feed.stream(8), 1)]

    one, other = asyncio.run(watch())
    assert read_events(one) == read_events(other)
    assert "problem" in read_events(other)[0][1]["head"]


def test_an_error_in_sending_ends_the_streams_so_that_pages_connect_again() -> None:
    pictures = iter([picture(1), Picture({"x": (object(),)}, {}, {})])
    feed = Feed(lambda: next(pictures), 0.0)

    async def watch() -> list[bytes]:
        return [unpacked(message) async for message in feed.stream(None)]

    assert b"event: all" in asyncio.run(watch())[1]


def test_the_pause_after_a_long_reading_is_bounded_and_a_quiet_stream_tells_the_age() -> None:
    pictures, hours = iter([picture(1), picture(2)]), itertools.count(0.0, 3600.0)
    feed = Feed(
        lambda: next(pictures),
        0.0,
        alive_seconds=0.0,
        most_pause_seconds=0.01,
        thread_seconds=lambda: next(hours),
    )

    async def watch() -> list[Any]:
        seen: list[Any] = []
        async for message in feed.stream(None):
            seen += read_events(unpacked(message))
            if any("gone_jobs" in content for _, content in seen):
                break
            await asyncio.sleep(0)
        return seen

    seen = asyncio.run(watch())
    assert seen[0] == ("age", {"seconds": None})
    assert ("age", {"seconds": 0}) in seen


def test_the_page_expects_something_as_often_as_the_server_sends() -> None:
    text = files("pgpu.server.dashboard").joinpath("page", "stream.js").read_text("utf-8")
    assert f"const ALIVE_MS = {ALIVE_SECONDS * 1000:.0f};" in text


def test_a_viewer_that_does_not_read_is_ended_and_gets_everything_when_it_is_back() -> None:
    count = [0]

    def read() -> Picture:
        count[0] += 1
        return picture(count[0])

    feed = Feed(read, 0.0)

    async def watch() -> tuple[list[bytes], list[bytes]]:
        slow = feed.stream(None)
        await anext(slow)
        while count[0] < MOST_QUEUED + 5:  # noqa: ASYNC110 - each round lets the feed read once more
            await asyncio.sleep(0)
        rest = [message async for message in slow]
        again = await first_of(feed.stream(None), 1)
        feed.close()
        return rest, again

    rest, again = asyncio.run(watch())
    assert not any(b"data" in unpacked(message) for message in rest)
    assert read_events(again[0])[0][0] == "all"
