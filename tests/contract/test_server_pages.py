"""The list of jobs in pages: together they are the list, whatever their size, and none of it is another user's."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp
from tests.contract.in_process import AsPeer, asked, make_app

from pgpu.server.peer_credentials import PeerCredentials
from pgpu.units import GIB

ROOT = PeerCredentials(1, 0, 0, frozenset())


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> ASGIApp:
    root: Path = tmp_path_factory.mktemp("pages")
    made = make_app(root)
    array = {"indices": list(range(10))}
    submission = {
        "spec": {"command": ["true"], "runtime": "process", "working_directory": "/"},
        "request": {"memory_bytes": GIB},
        "array": array,
    }
    status, _, text = asked(AsPeer(made, ROOT), "POST", "/v1/jobs", json.dumps({"submissions": [submission]}).encode())
    assert status == 201
    ended = [job["id"] for job in json.loads(text)[::3]]
    body = json.dumps({"jobs": ended, "grace_seconds": 0}).encode()
    assert asked(AsPeer(made, ROOT), "POST", "/v1/jobs/cancel", body)[0] == 200
    return made


def pages(app: ASGIApp, target: str, peer: PeerCredentials = ROOT) -> Iterator[list[dict[str, Any]]]:
    """Follow the links from page to page."""
    while target:
        status, headers, text = asked(AsPeer(app, peer), "GET", target)
        assert status == 200, text
        yield json.loads(text)
        found = re.fullmatch(r'<(.*)>; rel="next"', headers.get("link", ""))
        target = found[1] if found else ""


@pytest.mark.parametrize("final", ["true", "false"])
@pytest.mark.parametrize("limit", [1, 3, 5, 7, 10, 1000])
def test_pages_together_are_the_list(app: ASGIApp, final: str, limit: int) -> None:
    [whole] = pages(app, f"/v1/jobs?include_final={final}")
    assert len(whole) == (10 if final == "true" else 6)
    found = list(pages(app, f"/v1/jobs?include_final={final}&limit={limit}"))
    assert [report for page in found for report in page] == whole
    assert all(len(page) == limit for page in found[:-1])
    assert found[-1]


def test_another_user_gets_the_number_of_those_that_wait_and_no_ended_jobs_of_others(app: ASGIApp) -> None:
    [page] = pages(app, "/v1/jobs?include_final=true&limit=2", PeerCredentials(1, 61001, 61001, frozenset()))
    assert [(report["job"]["id"], report["count"]) for report in page] == [("-", 6)]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=-1", "limit=100000000", "limit=x", "after=x", "after=-1", "after=1e400"]
)
def test_a_page_that_is_none_is_refused(app: ASGIApp, query: str) -> None:
    assert asked(AsPeer(app, ROOT), "GET", f"/v1/jobs?{query}")[0] == 400


def test_behind_the_last_job_there_is_an_empty_page(app: ASGIApp) -> None:
    assert list(pages(app, f"/v1/jobs?limit=5&after={2**62}")) == [[]]
