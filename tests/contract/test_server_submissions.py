"""Whatever is asked of the submit route, the answer is a job or one clear line: nothing breaks, nothing is accepted that cannot be stored."""

import asyncio
import json
import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message
from tests.contract.in_process import AsPeer, asked, make_app, make_engine

from pgpu.engine.submitter import Submitter
from pgpu.errors import CapacityError, RequestError
from pgpu.model import JobSpec, Submission
from pgpu.model import Request as Amount
from pgpu.model.job import MOST_ELEMENTS
from pgpu.server.peer_credentials import PeerCredentials
from pgpu.server.responses import parse_body
from pgpu.structs import Struct
from pgpu.units import GIB

GOOD: dict[str, Any] = {
    "submissions": [
        {
            "spec": {
                "command": ["true", "x"],
                "runtime": "process",
                "working_directory": "/",
                "environment": [["A", "b"]],
                "volumes": [],
                "name": None,
            },
            "request": {"memory_bytes": GIB},
            "after": [],
            "array": {"indices": [0, 1], "most_at_once": 1},
        }
    ],
    "environment": [["PATH", "/usr/bin:/bin"]],
}

TEXTS = (
    "\0",
    "\ud800",
    "\udcff",
    "\udfff\ud800",
    "a\0b",
    "",
    "=",
    "a=b",
    " ",
    "\n",
    "\x1b[2J",
    "-1",
    "../../etc",
    "/" * 5000,
    "x" * (128 << 10),
    "\u20ac" * (64 << 10),
    "docker",
    "oci",
    "process",
    "NaN",
    "RTX 3090",
    "RTX 3090x999999999999",
    "0",
)
NUMBERS = (0, -1, 1, 2, 1 << 31, (1 << 63) - 1, -(1 << 63), 1 << 64, 10**400, 0.5, -0.5, 1e308, 5e-324, 1e30)

texts = st.sampled_from(TEXTS) | st.text(st.characters(codec=None, exclude_categories=()), max_size=8)
leaves = texts | st.sampled_from(NUMBERS) | st.none() | st.booleans()
values = leaves | st.lists(leaves, max_size=3) | st.lists(st.lists(texts, max_size=3), max_size=3)

FIELDS = (
    *((("submissions", 0, "spec", name)) for name in ("command", "runtime", "image", "environment", "volumes", "name")),
    *((("submissions", 0, "spec", name)) for name in ("working_directory", "user", "wants_tty", "wants_stdin")),
    *((("submissions", 0, "spec", name)) for name in ("remove", "wait_for_memory_seconds")),
    ("submissions", 0, "spec", "command", 1),
    ("submissions", 0, "spec", "command", 0),
    ("submissions", 0, "spec", "environment", 0, 0),
    ("submissions", 0, "spec", "environment", 0, 1),
    *((("submissions", 0, "request", name)) for name in ("memory_bytes", "gpu_count", "compute_share", "priority")),
    *((("submissions", 0, "request", name)) for name in ("is_estimated", "retries_out_of_memory", "basis")),
    *((("submissions", 0, name)) for name in ("after", "array", "wait_timeout_seconds", "signature")),
    ("submissions", 0, "array", "indices"),
    ("submissions", 0, "array", "indices", 1),
    ("submissions", 0, "array", "most_at_once"),
    ("submissions",),
    ("environment",),
    ("environment", 0, 0),
    ("environment", 0, 1),
    ("inherited",),
    ("key",),
    ("simulate",),
)


def with_value(place: tuple[str | int, ...], value: object) -> dict[str, Any]:
    ask: dict[str, Any] = json.loads(json.dumps(GOOD))
    part: Any = ask
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    return ask


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> AsPeer:
    root: Path = tmp_path_factory.mktemp("submissions")
    return AsPeer(make_app(root), PeerCredentials(1, 0, 0, frozenset()))


def check(app: AsPeer, ask: object) -> None:
    status, _, text = asked(app, "POST", "/v1/jobs", json.dumps(ask).encode())
    assert status in {201, 400, 403, 404, 409}, text
    said = json.loads(text)
    if status != 201:
        assert len(said["error"]["message"].splitlines()) == 1, said
        assert len(said["error"]["message"]) < 2000, said
        assert "bug" not in said["error"]["message"]


def test_a_good_submission_is_taken(app: AsPeer) -> None:
    assert asked(app, "POST", "/v1/jobs", json.dumps(GOOD).encode())[0] == 201


@given(place=st.sampled_from(FIELDS), value=values)
@settings(max_examples=200, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
@example(("submissions", 0, "spec", "runtime"), "oci")
def test_a_field_with_any_value_is_taken_or_refused_in_a_line(
    app: AsPeer, place: tuple[str, ...], value: object
) -> None:
    check(app, with_value(place, value))


def test_bytes_that_are_no_text_are_taken_as_arguments_and_come_back_as_they_were(app: AsPeer) -> None:
    status, _, text = asked(
        app, "POST", "/v1/jobs", json.dumps(with_value(("submissions", 0, "spec", "command", 1), "\udcff")).encode()
    )
    assert status == 201
    assert json.loads(text)[0]["spec"]["command"][1] == "\udcff"


def test_more_jobs_than_one_request_may_be_for_are_refused_by_their_number(app: AsPeer) -> None:
    ask = with_value(("submissions", 0, "array"), None)
    ask["submissions"] *= MOST_ELEMENTS + 1
    status, _, text = asked(app, "POST", "/v1/jobs", json.dumps(ask).encode())
    assert status == 400
    assert f"at most {MOST_ELEMENTS} jobs" in json.loads(text)["error"]["message"]


class Noted(Struct):
    """A body that says who read it."""

    reader: str = ""

    def __post_init__(self) -> None:
        self.reader = threading.current_thread().name


def test_a_body_is_read_where_it_keeps_nobody_waiting() -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def read() -> Noted:
        return await parse_body(Noted)(Request({"type": "http", "method": "POST", "headers": []}, receive))

    noted = asyncio.run(read())
    assert noted.reader
    assert noted.reader != threading.main_thread().name


def test_a_working_directory_with_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    spec = JobSpec(("true",), "process", working_directory="/" + "x" * 300)
    with pytest.raises(RequestError, match="does not exist"):
        make_engine(tmp_path).submit_all([Submission(spec, Amount(GIB))])


@pytest.mark.parametrize("uid", [4242, 0])
def test_a_user_has_so_many_jobs_waiting_and_no_more_and_root_any_number(tmp_path: Path, uid: int) -> None:
    engine = make_engine(tmp_path, most_waiting=3)
    asker = Submitter(uid, (), None)
    one = Submission(JobSpec(("true",), "process", working_directory="/"), Amount(GIB))
    engine.submit_all([one, one], asker)
    if uid == 0:
        assert len(engine.submit_all([one, one], asker)) == 2
        return
    with pytest.raises(
        CapacityError, match=f"^2 jobs of user {uid} wait, and 2 more would pass 3; nothing was submitted$"
    ):
        engine.submit_all([one, one], asker)
    assert len(engine.submit_all([one], asker)) == 1
    with pytest.raises(CapacityError, match="1 more would pass 3"):
        engine.submit_all([one], asker)
    assert len(engine.submit_all([one], Submitter(uid + 1, (), None))) == 1
    assert len(engine.ledger.entries(include_final=False)) == 4


def test_a_key_gives_nobody_the_job_of_another_user_whose_id_is_the_same(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    root = AsPeer(app, PeerCredentials(1, 0, 0, frozenset()))
    ask = json.dumps({**GOOD, "key": "k"}).encode()
    accepted = asked(root, "POST", "/v1/jobs", ask)
    assert asked(root, "POST", "/v1/jobs", ask) == accepted
    with closing(sqlite3.connect(app.state.engines.own.ledger.path)) as ledger, ledger:
        ledger.execute("UPDATE jobs SET owner_uid = 4242")
    status, _, text = asked(root, "POST", "/v1/jobs", ask)
    assert status == 400, text


def test_waits_are_no_part_of_how_long_answers_take(app: AsPeer) -> None:
    job_id = json.loads(asked(app, "POST", "/v1/jobs", json.dumps(GOOD).encode())[2])[0]["id"]
    for verb in ("wait", "granted"):
        assert asked(app, "GET", f"/v1/jobs/{job_id}/{verb}?timeout_seconds=0")[0] == 200
    text = asked(app, "GET", "/metrics")[2].decode()
    timed = set(re.findall(r'request_duration_seconds_count\{route="([^"]*)"\}', text))
    assert "/v1/jobs" in timed
    assert not {route for route in timed if route.endswith(("/wait", "/granted"))}
    assert re.search(r'http_requests_total\{code="200",method="GET",route="/v1/jobs/\{job\}/granted"\}', text)
