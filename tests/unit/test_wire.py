"""Values and errors travel between server and client unchanged; what is no value is refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from pgpu import errors
from pgpu.client.address import TcpAddress, UnixAddress, address_of, installed_server
from pgpu.enforcement import SliceUse
from pgpu.errors import PgpuError, RequestError
from pgpu.model import (
    Array,
    ContainerHolder,
    Gpu,
    Job,
    JobSpec,
    JobState,
    Lease,
    Mount,
    Place,
    ProcessHolder,
    Request,
    Slice,
    Submission,
)
from pgpu.services import wire
from pgpu.services.messages import Ask, GpuReport, JobReport
from pgpu.structs import replace

UUID = "GPU-0"
SPEC = JobSpec(("sh", "-c", "a\nb"), "docker", "img", (("A", "b=c"),), (Mount("/a", "/b", "ro"),), "/", "1:2", "name")
LEASE = Lease("0123456789ab", (Slice(UUID, 7), Slice("GPU-1", 8)), 1.5, "shim", is_advisory=True)
PROCESS = Job("0123456789ab", SPEC, Request(5, 2, 0.5, -3), JobState.RUNNING, 1.25, 2.5, lease=LEASE)
VALUES = (
    replace(PROCESS, holder=ProcessHolder(1, 2, "boot")),
    replace(PROCESS, holder=ContainerHolder("c", "unix:///x"), state=JobState.EXITED, exit_code=3, error="é\x00"),
    JobReport(replace(PROCESS, place=Place(("a", "b"), "c", 1, 2)), (SliceUse(UUID, 1, 2, 3),)),
    GpuReport(Gpu(UUID, "X", 0, (1 << 63) - 1, "1.0", is_simulated=False), 1, 2, 3, "shim", "x", None, ("a",)),
    Ask((Submission(SPEC, Request(5), ("x",), Array((1, 2), 1), 0.5),), "key", (("A", "b"),), "{}", "RTX 3090"),
)


def classes(root: type[PgpuError]) -> list[type[PgpuError]]:
    """The tree of errors; a class of some other room never leaves it, and is there only if somebody imported it."""
    tree = [root, *(kind for child in root.__subclasses__() for kind in classes(child))]
    return [kind for kind in tree if kind.__module__ == PgpuError.__module__]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_arrives_as_it_was_sent(value: Any) -> None:
    assert wire.decode(type(value), wire.parse(wire.encode(value))) == value


def test_bytes_that_are_no_utf_8_survive() -> None:
    spec = JobSpec(("printf", b"\xff\xfe".decode(errors="surrogateescape")), "process")
    assert wire.decode(JobSpec, wire.parse(wire.encode(spec))) == spec


def test_a_field_of_a_newer_version_is_skipped_and_one_of_an_older_takes_its_default() -> None:
    told = {"command": ["true"], "runtime": "process", "invented_tomorrow": 1}
    assert wire.decode(JobSpec, told) == JobSpec(("true",), "process")


@pytest.mark.parametrize(
    ("told", "place"),
    [
        ({}, "command"),
        ({"command": "true", "runtime": "process"}, "command"),
        ({"command": [1], "runtime": "process"}, "command[0]"),
        ({"command": [], "runtime": "magic"}, "runtime"),
        ({"command": [], "runtime": "process", "wants_tty": 1}, "wants_tty"),
        ([], "the message"),
    ],
)
def test_what_is_no_value_is_refused_and_says_where(told: Any, place: str) -> None:
    with pytest.raises(RequestError, match=place.replace("[", r"\[")):
        wire.decode(JobSpec, told)


@pytest.mark.parametrize("text", [b"", b"{", b"NaN", b"[1e999" + b"0" * 10, b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(RequestError):
        wire.parse(text)


def test_a_number_that_the_ledger_cannot_hold_is_refused() -> None:
    for number in (1 << 63, -(1 << 63), 10**400):
        with pytest.raises(RequestError):
            wire.decode(int, number)


@pytest.mark.parametrize("kind", classes(PgpuError), ids=lambda kind: kind.__name__)
def test_an_error_arrives_as_the_same_class_with_the_same_words(kind: type[PgpuError]) -> None:
    arrived = wire.decode_error(json.loads(wire.encode(wire.encode_error(kind("what", hint="do this")))))
    assert type(arrived) is kind
    assert (str(arrived), arrived.hint) == ("what", "do this")


def test_an_error_of_a_newer_version_becomes_its_nearest_relative() -> None:
    told = {"error": {"kinds": ["InventedError", "LedgerError", "PgpuError"], "message": "what", "hint": None}}
    assert type(wire.decode_error(told)) is errors.LedgerError
    assert type(wire.decode_error("nonsense")) is errors.PgpuBug


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("unix:///run/x.sock", UnixAddress),
        ("https://gpu.example.org:7878", TcpAddress),
        ("http://[::1]:80/", TcpAddress),
        ("embedded", type(None)),
    ],
)
def test_an_address_is_read(text: str, found: type[Any]) -> None:
    assert isinstance(address_of(text), found)


@pytest.mark.parametrize(
    "text", ["", "x", "unix:/", "unix://host/path", "ftp://x", "https://x:99999", "https://x/path"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="no address"):
        address_of(text)


def test_a_server_is_installed_where_its_socket_or_its_marker_is(tmp_path: Path) -> None:
    place, marker = tmp_path / "pgpu.sock", tmp_path / "server"
    assert installed_server(place, marker) is None
    marker.touch()
    assert installed_server(place, marker) == UnixAddress(place)
    marker.unlink()
    place.touch()
    assert installed_server(place, marker) == UnixAddress(place)
    assert installed_server(place / "below" / "a" / "file", marker) is None


def test_a_large_message_is_read_as_a_small_one_is() -> None:
    value = [{"a": [1, 2.5, None, True, "\udcff€"], "b": {}, "c": -1e300}]
    large = wire.encode(value * 10_000)
    assert len(large) > 1 << 18
    assert wire.parse(large) == value * 10_000
    for wrong in (b"[NaN," + large[1:], large[:-1], large + b"]", large[:-1] + b",\xff]", b"[" * (1 << 19)):
        with pytest.raises(RequestError, match="no JSON"):
            wire.parse(wrong)
