"""Whatever is asked of the submit route, the answer is a job or one clear line: nothing breaks, nothing is accepted that cannot be stored."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.contract.in_process import AsPeer, asked, make_app

from pgpu.server.peers import Peer
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
    return AsPeer(make_app(root), Peer(1, 0, 0, frozenset()))


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
