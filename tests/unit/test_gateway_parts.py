"""What a path means, under which id a call is kept, and who may call what: without a socket."""

import asyncio
import json
import os
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.errors import CapacityError, NodeError
from pgpu.functions.gateway.async_call_database import event_call_id, named_call_id, new_call_id
from pgpu.functions.gateway.gateway_access import (
    BAD_TOKEN,
    NO_TOKEN,
    NOT_ADMIN,
    NOT_YOURS,
    Credentials,
    GatewayAccess,
    TokenCache,
)
from pgpu.functions.gateway.gateway_app import BodyBudget, GatewayApp
from pgpu.functions.gateway.gateway_handler import GatewayRequestHandler
from pgpu.functions.gateway.gateway_routes import GatewayRoute, RouteKind, parse_route
from pgpu.functions.requests.prometheus_metrics import GatewayMetrics
from pgpu.functions.router.function_router import FunctionRouter, RouterEvents, RouterTable
from pgpu.model import Function, Share, Version, VersionState
from pgpu.services.messages import Bearer
from pgpu.structs import replace

OWNER = os.geteuid() + 1000


def hall(*, is_public: bool = False) -> FunctionRouter:
    declaration = json.dumps({"public": is_public})
    version = Version("it", 1, OWNER, "app:It", "0", declaration, "process", None, None, VersionState.READY, None, 0.0)
    return FunctionRouter(Function("it", OWNER, 0.0, (version,), (Share(1, 100),)), GatewayMetrics(), RouterEvents())


class Tokens:
    """Of a desk only what access asks."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def bearer(self, token: str) -> Bearer:
        self.asked.append(token)
        known = {
            "its": Bearer("it@0.0"),
            "other": Bearer("another@0.0"),
            "before": Bearer("it@-1.0"),
            "owner": Bearer(uid=OWNER),
            "root": Bearer(uid=0, is_admin=True),
        }
        return known.get(token, Bearer())


def judged(token: str | None, uid: int | None, known: FunctionRouter | None) -> object:
    access, caller = GatewayAccess(TokenCache(Tokens())), Credentials(None if token is None else f"Bearer {token}", uid)  # type: ignore[arg-type]
    asyncio.run(access.tokens.look_up(caller))
    access.tokens.close()
    return access.refusal(caller, known)


@pytest.mark.parametrize(
    ("token", "uid", "refused"),
    [
        (None, None, NO_TOKEN),
        ("made up", None, BAD_TOKEN),
        ("other", None, NOT_YOURS),
        ("before", None, NOT_YOURS),
        ("its", None, None),
        ("owner", None, None),
        ("root", None, None),
        (None, OWNER, None),
        (None, 0, None),
        (None, OWNER + 1, NOT_YOURS),
        ("its", OWNER + 1, None),
        ("made up", OWNER + 1, NOT_YOURS),
    ],
)
def test_who_may_call_and_what_the_others_are_told(token: str | None, uid: int | None, refused: object) -> None:
    assert judged(token, uid, hall()) is refused
    if refused is not None:
        assert judged(token, uid, None) is refused
        assert judged(token, uid, hall(is_public=True)) is None


def test_a_token_is_asked_about_once_in_a_while_and_metrics_are_the_administrators() -> None:
    tokens = Tokens()
    access = GatewayAccess(TokenCache(tokens))  # type: ignore[arg-type]
    for _ in range(3):
        asyncio.run(access.tokens.look_up(Credentials("Bearer its", None)))
    assert tokens.asked == ["its"]
    assert access.admin_refusal(Credentials("Bearer its", None)) is NOT_ADMIN
    assert access.admin_refusal(Credentials(None, None)) is NO_TOKEN
    assert access.admin_refusal(Credentials(None, os.geteuid())) is None
    access.tokens.close()


def test_a_function_that_was_made_public_a_moment_ago_is_so_for_a_stranger_and_asks_as_one_that_is_not_there() -> None:
    async def asking() -> None:
        metrics, asked = GatewayMetrics(), 0
        halls, access = RouterTable(metrics), GatewayAccess(TokenCache(Tokens()))  # type: ignore[arg-type]
        statuses: list[int] = []

        async def refresh() -> None:
            nonlocal asked
            asked += 1
            if asked == 2:
                halls.adopt([hall(is_public=True).function])

        async def send(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(int(str(message["status"])))

        async def ask() -> None:
            app = GatewayApp(halls, access, GatewayRequestHandler(halls, access), None, refresh, budget=BodyBudget(1))  # type: ignore[arg-type]
            scope = {"type": "http", "method": "GET", "path": "/v2/models/it/ready", "headers": [], "query_string": b""}
            await app({**scope, "state": {}}, None, send)  # type: ignore[arg-type]

        halls.adopt([replace(hall().function, created_at_seconds=-1.0)])
        for _ in range(3):
            await ask()
        access.tokens.close()
        assert (statuses, asked) == ([401, 200, 200], 2)

    asyncio.run(asking())


def test_a_caller_is_one_by_their_token_or_as_a_user_and_nobody_by_what_is_good_for_nothing() -> None:
    access = GatewayAccess(TokenCache(Tokens()))  # type: ignore[arg-type]

    def who(token: str | None, uid: int | None) -> str:
        caller = Credentials(None if token is None else f"Bearer {token}", uid)
        asyncio.run(access.tokens.look_up(caller))
        return access.principal(caller)

    assert who("owner", None) == who(None, OWNER) == who("made up", OWNER) == f"user {OWNER}"
    assert who(None, None) == who("made up", None) == ""
    assert len({who("its", None), who("before", None), who("other", 7), who(None, 7), ""}) == 5
    assert who("its", 7) == who("its", None)
    access.tokens.close()


@pytest.mark.parametrize(
    ("raised", "code"),
    [(CapacityError("too many"), b"busy"), (NodeError("away"), b"server_away"), (None, b"server_away")],
)
def test_who_cannot_be_judged_now_is_told_to_come_again(raised: Exception | None, code: bytes) -> None:
    let_go, told = threading.Event(), bytearray()

    class Silent:
        def bearer(self, _token: str) -> Bearer:
            if raised is not None:
                raise raised
            let_go.wait()
            return Bearer()

    async def send(message: dict[str, Any]) -> None:
        told.extend(message.get("body", b""))
        assert message.get("status", 503) == 503
        assert b"retry-after" in dict(message.get("headers", [(b"retry-after", b"")]))

    async def ask() -> None:
        halls = RouterTable(GatewayMetrics())
        access = GatewayAccess(TokenCache(Silent()))  # type: ignore[arg-type]
        app = GatewayApp(halls, access, GatewayRequestHandler(halls, access), None, None, budget=BodyBudget(1))  # type: ignore[arg-type]
        headers = [(b"authorization", b"Bearer x"), (b"request-timeout", b"0.01" if raised is None else b"60")]
        scope = {"type": "http", "method": "GET", "path": "/v2/models/it/ready", "headers": headers}
        await app({**scope, "query_string": b"", "state": {}}, None, send)  # type: ignore[arg-type]
        let_go.set()
        access.tokens.close()

    asyncio.run(ask())
    assert code in told


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic its", "Bearer " + "x" * 1000, None])
def test_what_is_no_token_is_none(header: str | None) -> None:
    assert Credentials(header, None).token is None


@pytest.mark.parametrize(
    ("headers", "uid"),
    [
        ({"host": "pgpu"}, OWNER),
        ({"host": "localhost"}, OWNER),
        ({"host": "[::1]:9000"}, OWNER),
        ({"host": "pgpu:9000"}, None),
        ({"host": "evil.example"}, None),
        ({"host": "["}, None),
        ({}, None),
        ({"host": "127.0.0.1:9000", "origin": "http://127.0.0.1:9000"}, None),
        ({"host": "127.0.0.1:9000", "sec-fetch-site": "none"}, None),
    ],
)
def test_a_web_page_is_not_the_user_at_the_other_end_of_the_socket(headers: dict[str, str], uid: int | None) -> None:
    given = {**headers, "authorization": "Bearer its"}
    for found, expected in ((Credentials.of_request(given, OWNER), uid), (Credentials.of_request(given, None), None)):
        assert (found.uid, found.token) == (expected, "its")


PATHS: Sequence[tuple[str, GatewayRoute]] = [
    ("/functions/it", GatewayRoute(RouteKind.CALL, "it", methods="POST")),
    ("/v2/models/it/infer", GatewayRoute(RouteKind.CALL, "it", methods="POST")),
    ("/v2/models/it/versions/7/infer", GatewayRoute(RouteKind.CALL, "it", 7, methods="POST")),
    ("/functions/it/calls/a.b", GatewayRoute(RouteKind.NAMED_CALL, "it", call="a.b", methods="GET, HEAD, PUT, DELETE")),
    ("/calls/x1", GatewayRoute(RouteKind.STORED, call="x1", methods="GET, HEAD, DELETE")),
    ("/functions/it/openapi.json", GatewayRoute(RouteKind.OPENAPI, "it")),
    ("/v2/models/it/ready", GatewayRoute(RouteKind.MODEL_READY, "it")),
    ("/healthz", GatewayRoute(RouteKind.PAGE)),
    ("/functions/It", GatewayRoute(RouteKind.NOTHING)),
    ("/functions/it/", GatewayRoute(RouteKind.PART, "it", methods="")),
    ("/functions/it/calls/x/y", GatewayRoute(RouteKind.PART, "it", methods="")),
    ("/functions/../it", GatewayRoute(RouteKind.NOTHING)),
    ("/v2/models/it/versions/0/infer", GatewayRoute(RouteKind.NOTHING)),
]


@pytest.mark.parametrize(("path", "target"), PATHS)
def test_a_path_means_one_thing(path: str, target: GatewayRoute) -> None:
    assert parse_route(path) == target


@given(st.text(), st.text(), st.text(), st.text())
def test_ids_of_one_kind_and_caller_are_never_anothers(one: str, two: str, three: str, four: str) -> None:
    assert (named_call_id("it", one, two) == named_call_id("it", three, four)) == ((one, two) == (three, four))
    event = event_call_id(one, "/", four, {"ce-id": two, "ce-source": three}, b"")
    assert event is not None
    assert event != event_call_id(one, "/", four + "x", {"ce-id": two, "ce-source": three}, b"")
    assert event != event_call_id(one, "/x", four, {"ce-id": two, "ce-source": three}, b"")
    assert len({named_call_id(one, four, two), event, new_call_id(), new_call_id()}) == 4
    whole = json.dumps({"id": two, "source": three, "specversion": "1.0", "data": four}).encode(
        "utf-8", "surrogatepass"
    )
    structured = event_call_id(one, "/", four, {"content-type": "application/cloudevents+json; charset=utf-8"}, whole)
    assert structured == event


@given(st.binary(max_size=100))
def test_what_is_no_event_has_no_id(body: bytes) -> None:
    assert event_call_id("it", "/", "", {"content-type": "application/json"}, body) is None
    assert event_call_id("it", "/", "", {"content-type": "application/cloudevents+json"}, b"[" + body) is None
