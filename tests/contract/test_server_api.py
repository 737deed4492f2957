"""The server's HTTP API, asked in this process: what it describes is what it does, whatever is asked."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given
from tests.clearing import clear
from tests.contract.in_process import AsPeer, asked, make_app
from tests.examples import examples

from pgpu.server.peer_credentials import PeerCredentials

PAGE = Path(__file__).parent.parent.parent / "docs" / "server.md"
HOST = {"Host": "pgpu"}


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pgpu-api-", dir="/dev/shm"))
    yield path
    clear(path)


@pytest.fixture(scope="module")
def api(root: Path) -> Any:
    return schemathesis.openapi.from_asgi(
        "/openapi.json", AsPeer(make_app(root), PeerCredentials(1, 0, 0, frozenset())), headers=HOST
    )


@pytest.mark.examples
def test_nothing_that_is_asked_breaks_the_server(api: Any) -> None:
    operations = [found.ok() for found in api.exclude(path="/v1/events").get_all_operations()]
    assert len(operations) > 20
    for operation in operations:

        @given(case=operation.as_strategy())
        @examples(4, 10, database=None, suppress_health_check=[*HealthCheck])
        def ask(case: Any) -> None:
            if "timeout_seconds" in (case.query or {}):
                case.query["timeout_seconds"] = 0
            answer = case.call(headers=HOST)
            assert answer.status_code < 500, f"{case.as_curl_command()}\n{answer.text}"

        ask()


def test_a_number_that_nothing_can_have_is_refused(tmp_path: Path) -> None:
    app = AsPeer(make_app(tmp_path), PeerCredentials(1, 0, 0, frozenset()))
    targets = ["DELETE /v1/admin/quotas/", "POST /v1/admin/tokens?uid=", "GET /v1/jobs?after="]
    for target in [*targets, "GET /v1/jobs/x/logs?tail_lines=", "GET /v1/jobs/x/wait?timeout_seconds="]:
        method, _, path = target.partition(" ")
        for number in (1 << 63, -1, 10**400):
            status, _, text = asked(app, method, f"{path}{number}")
            assert status in {400, 404}, (target, number, text)


def test_every_route_is_on_the_server_s_page(tmp_path: Path) -> None:
    page = PAGE.read_text("utf-8")
    paths = make_app(tmp_path).openapi()["paths"]
    assert len(paths) > 20
    for path in paths:
        last = [part for part in path.split("/") if part and "{" not in part][-1]
        assert re.search(rf"/{re.escape(last)}\b", page), f"docs/server.md says nothing of {path}"
