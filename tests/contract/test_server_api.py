"""The server's HTTP API, asked in this process: what it describes is what it does, whatever is asked."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.fakes.machine import make_machine

from pgpu.engine.keeper.calling import Keepers
from pgpu.server.access import Access
from pgpu.server.app import create_app
from pgpu.server.care import Caretaker
from pgpu.server.desk import Desk
from pgpu.server.peers import STATE_KEY, Peer
from pgpu.units import GIB

PAGE = Path(__file__).parent.parent.parent / "docs" / "server.md"


class AsPeer:
    """An application whose every caller is one user, as the kernel would have said."""

    def __init__(self, app: ASGIApp, peer: Peer) -> None:
        self._app = app
        self._peer = peer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = {**scope.get("state", {}), STATE_KEY: self._peer}
        await self._app(scope, receive, send)


def make_app(root: Path) -> FastAPI:
    """Serve a machine on whose full GPU nothing that is submitted ever starts."""
    engine = make_machine(root, [10 * GIB])
    engine.gpus.set_outsiders("GPU-0", 10 * GIB)  # type: ignore[attr-defined] # a fake
    engine.keepers = Keepers(engine.settings, ("true",))
    return create_app(Desk(engine, Access()), Caretaker(engine))


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pgpu-api-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def api(root: Path) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", AsPeer(make_app(root), Peer(1, 0, 0, frozenset())))


def test_nothing_that_is_asked_breaks_the_server(api: Any) -> None:
    operations = [found.ok() for found in api.exclude(path="/v1/events").get_all_operations()]
    assert len(operations) > 20
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
        def ask(case: Any) -> None:
            if "timeout_seconds" in (case.query or {}):
                case.query["timeout_seconds"] = 0
            answer = case.call()
            assert answer.status_code < 500, f"{case.as_curl_command()}\n{answer.text}"

        ask()


def test_every_route_is_on_the_server_s_page(tmp_path: Path) -> None:
    page = PAGE.read_text("utf-8")
    paths = make_app(tmp_path).openapi()["paths"]
    assert len(paths) > 20
    for path in paths:
        last = [part for part in path.split("/") if part and "{" not in part][-1]
        assert re.search(rf"/{re.escape(last)}\b", page), f"docs/server.md says nothing of {path}"
