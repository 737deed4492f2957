"""A real `pgpu serve`: what is different where one process answers for all, and what is not although it dies."""

import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_server_submissions import with_value
from tests.served import ServerProcess, serving
from tests.system.conftest import PGPU, Place, opened_place
from tests.waiting import DEADLINE_SECONDS, until

from pgpu.client.channel import Channel
from pgpu.engine.streams.frames import Kind, encode_frame

Eventually = Callable[[Callable[[], Any]], Any]
LONG = ["sleep", "600"]


class Served(Place):
    """A place and the server that answers in it."""

    server: ServerProcess


@pytest.fixture
def place() -> Iterator[Served]:
    with opened_place() as made, serving(made.path / "run", state_dir=made.path / "state") as server:
        served = Served(made.path, {**made.environment, "PGPU_HOST": server.host}, made.started)
        served.server = server
        yield served
        if server.process.poll() is not None:
            server.start()
        served.close()


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("pgpu", timeout=DEADLINE_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(self._path))


def get(place: Served, path: str) -> tuple[int, bytes]:
    connection = _Connection(place.server.socket)
    connection.request("GET", path)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, data


def checks(place: Served) -> dict[str, Any]:
    return {check["name"]: check for check in json.loads(get(place, "/readyz")[1])["checks"]}


def test_a_server_that_is_down_is_an_error_with_a_hint_and_nothing_else_answers(place: Served) -> None:
    place.server.end()
    for words in (["ps"], ["run", "--memory", "2GiB", "--", "true"], ["gpus"]):
        done = place.run(*words)
        assert done.returncode == 125
        assert str(place.server.socket) in done.stderr
        assert "pgpu serve" in done.stderr
        assert len(done.stderr.splitlines()) == 2


def test_a_server_takes_its_socket_away_and_what_a_killed_one_left_is_told_apart(place: Served) -> None:
    place.server.end(signal.SIGKILL)
    done = place.run("ps")
    assert (done.returncode, place.server.socket.is_socket()) == (125, True)
    assert "its socket is left" in done.stderr
    assert f"remove {place.server.socket}" in done.stderr
    place.server.start()
    assert place.run("ps").returncode == 0
    place.server.end()
    assert not place.server.socket.exists()


def test_a_command_that_starts_while_a_server_restarts_waits_where_systemd_holds_the_socket(place: Served) -> None:
    place.server.end()
    with socket.socket(socket.AF_UNIX) as listener:
        path = place.path / "held.sock"
        listener.bind(str(path))
        listener.listen()
        place.environment["PGPU_HOST"] = f"unix://{path}"
        command = ["sh", "-c", 'LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" serve 3<&0 </dev/null', str(PGPU)]
        for _ in range(2):
            early = place.start("gpus", "--json")
            with subprocess.Popen(command, env=place.environment, stdin=listener.fileno()) as server:
                said, errors = early.communicate(timeout=DEADLINE_SECONDS)
                assert early.returncode == 0, errors
                assert json.loads(said)
                server.terminate()
            assert server.returncode == 0
        assert path.is_socket()


def test_a_second_server_of_one_ledger_is_refused(place: Served) -> None:
    second = place.run("serve", "--host", f"unix://{place.path}/other.sock")
    assert second.returncode == 125
    assert "another server" in second.stderr
    assert place.run("ps").returncode == 0


def test_a_killed_server_leaves_its_jobs_alone_and_the_next_one_has_them(place: Served, eventually: Eventually) -> None:
    job_id = place.detach("runs", "4GiB", LONG)
    place.detach("waits", "22GiB", ["true"])
    eventually(lambda: place.job("runs")["state"] == "running")
    holder = place.job("runs")["holder"]
    place.server.end(signal.SIGKILL)
    os.kill(holder["pid"], 0)
    place.server.start()
    assert place.job("runs")["holder"] == holder
    assert place.job("waits")["state"] == "waiting"
    assert place.run("stop", "--time", "0", job_id).returncode == 0
    assert place.run("wait", "waits").stdout == "0\n"


def test_an_attached_command_outlives_its_server(place: Served) -> None:
    script = "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 3"
    asker = place.start("run", "--name", "talks", "--memory", "2GiB", "--", "sh", "-c", script)
    assert asker.stdout is not None
    assert asker.stdout.readline() == "one\n"
    place.server.end(signal.SIGKILL)
    (place.path / "go").touch()
    place.server.start()
    rest, _ = asker.communicate(timeout=DEADLINE_SECONDS)
    assert rest == "two\n"
    assert asker.returncode == 3


@pytest.mark.soak
def test_a_server_that_is_killed_again_and_again_loses_no_line_and_starts_nothing_twice(place: Served) -> None:
    script = 'echo started >>"$0"; for i in $(seq 40); do echo $i; sleep 0.1; done'
    words = ["run", "--memory", "2GiB", "--", "sh", "-c", script]
    askers = [place.start(*words, str(place.path / f"starts-{number}")) for number in range(3)]
    for asker in askers:
        assert asker.stdout is not None
        assert asker.stdout.readline() == "1\n"
    for _ in range(3):
        place.server.end(signal.SIGKILL)
        place.server.start()
    for number, asker in enumerate(askers):
        assert asker.stdout is not None
        rest = asker.stdout.read()  # `communicate` would pass by what was read together with the first line
        _, said = asker.communicate(timeout=DEADLINE_SECONDS)
        assert asker.returncode == 0, said
        assert rest.split() == [str(line) for line in range(2, 41)]
        assert (place.path / f"starts-{number}").read_text() == "started\n"


def test_what_happens_is_told_as_it_happens(place: Served) -> None:
    connection = _Connection(place.server.socket)
    connection.request("GET", "/v1/events")
    answer = connection.getresponse()
    assert answer.getheader("Content-Type", "").startswith("text/event-stream")
    answer.readline()
    place.run("run", "--memory", "2GiB", "--", "true")
    states: list[str] = []
    while "exited" not in states:
        line = answer.readline()
        if line.startswith(b"data: "):
            states.append(json.loads(line[6:])["state"])
    assert [state for state in states if state != "starting"] == ["waiting", "running", "exited"]
    connection.close()


def test_events_that_were_missed_are_asked_for(place: Served) -> None:
    place.run("run", "--memory", "2GiB", "--", "true")
    connection = _Connection(place.server.socket)
    connection.request("GET", "/v1/events", headers={"Last-Event-ID": "1"})
    answer = connection.getresponse()
    lines = [answer.readline() for _ in range(3)]
    assert b"id: 2\n" in lines
    connection.close()


def test_metrics_have_gpus_jobs_and_slices(place: Served, eventually: Eventually) -> None:
    words = ("--detach", "--name", "one", "--memory", "4GiB", "--compute", "30%")
    assert place.run("run", *words, "--", *LONG).returncode == 0
    eventually(lambda: place.job("one")["state"] == "running")
    status, text = get(place, "/metrics")
    assert status == 200
    lines = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#"))
    [granted] = [value for name, value in lines.items() if name.startswith("pgpu_gpu_memory_granted_bytes{")]
    assert float(granted) == 4 * 2**30
    assert lines['pgpu_jobs{state="running"}'] == "1.0"
    assert lines["pgpu_jobs_over_slice"] == "0.0"
    [outsiders] = [value for name, value in lines.items() if name.startswith("pgpu_gpu_outsiders{")]
    assert outsiders == "0.0"
    [limit] = [value for name, value in lines.items() if name.startswith("pgpu_slice_memory_limit_bytes{")]
    assert float(limit) == 4 * 2**30
    [share] = [value for name, value in lines.items() if name.startswith("pgpu_slice_compute_share{")]
    [granted] = [value for name, value in lines.items() if name.startswith("pgpu_gpu_compute_granted_ratio{")]
    assert share == granted == "0.3"
    assert any(name.startswith("pgpu_gpu_sharing{") and 'mode="time-slice"' in name for name in lines)
    assert any(name.startswith("pgpu_http_requests_total{") for name in lines)


def test_a_locked_ledger_makes_a_server_unready_until_it_is_let_go(place: Served, eventually: Eventually) -> None:
    place.detach("one", "4GiB", LONG)
    with contextlib.closing(sqlite3.connect(place.path / "state" / "ledger.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        eventually(lambda: get(place, "/readyz")[0] == 503)
        assert "locked" in checks(place)["ledger"]["message"]
        assert get(place, "/healthz")[0] == 200
        assert place.run("ps", "--quiet").returncode == 0
        writer.execute("ROLLBACK")
    eventually(lambda: get(place, "/readyz")[0] == 200)


def test_a_broken_ledger_is_said_to_be_one_and_a_mended_one_is_used(place: Served, eventually: Eventually) -> None:
    place.detach("one", "4GiB", LONG)
    eventually(lambda: place.job("one")["state"] == "running")
    state, kept = place.path / "state", place.path / "kept"
    kept.mkdir()
    for part in state.glob("ledger.db*"):
        part.rename(kept / part.name)
    (state / "ledger.db").write_bytes(b"no database at all" * 100)
    eventually(lambda: get(place, "/readyz")[0] == 503)
    assert "not a database" in checks(place)["ledger"]["message"]
    refused = place.run("run", "--memory", "2GiB", "--", "true")
    assert refused.returncode == 125
    assert "Traceback" not in refused.stderr
    for part in kept.iterdir():
        part.rename(state / part.name)
    eventually(lambda: get(place, "/readyz")[0] == 200)
    assert place.job("one")["state"] == "running"


def test_a_server_takes_away_what_a_killed_process_left_of_volumes(place: Served) -> None:
    volumes = next((place.path / "run").glob("*/simulated")).with_name("volumes")
    left = volumes / "4194305-1-ff"  # No PID is so high.
    left.mkdir(parents=True)
    until(lambda: not left.exists())


def test_a_request_asked_twice_is_one_job(place: Served) -> None:
    ask = {
        "key": "abc",
        "submissions": [
            {
                "spec": {"command": LONG, "runtime": "process", "working_directory": "/"},
                "request": {"memory_bytes": 2**31},
            }
        ],
        "environment": [["PATH", os.environ["PATH"]]],
    }
    seen = []
    for _ in range(2):
        connection = _Connection(place.server.socket)
        connection.request("POST", "/v1/jobs", json.dumps(ask))
        answer = connection.getresponse()
        assert answer.status == 201
        seen.append([job["id"] for job in json.loads(answer.read())])
        connection.close()
    assert seen[0] == seen[1]
    assert place.run("ps", "--quiet").stdout.split() == seen[0]


def test_a_graceful_stop_ends_nothing_and_who_stays_goes_on_with_the_next_server(place: Served) -> None:
    place.detach("one", "4GiB", ["sh", "-c", "echo ready; exec sleep 600"])
    follower = place.start("logs", "--follow", "one")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "ready\n"
    connection = _Connection(place.server.socket)
    connection.request("GET", "/v1/events")
    events = connection.getresponse()
    assert events.readline()
    assert place.server.end(signal.SIGTERM) == 0
    assert b"event" not in events.read()
    connection.close()
    assert "Traceback" not in place.server.said()
    place.server.start()
    assert place.job("one")["state"] == "running"
    place.run("stop", "--time", "0", "one")
    assert follower.communicate(timeout=DEADLINE_SECONDS)[0] == ""
    assert follower.returncode == 0


def test_tcp_off_loopback_needs_tls(place: Served) -> None:
    with tempfile.TemporaryDirectory() as other:
        done = place.run("serve", "--host", f"unix://{other}/s.sock", "--tcp", "0.0.0.0:0", PGPU_STATE_DIR=other)
    assert done.returncode == 125
    assert "TLS" in done.stderr


@pytest.mark.parametrize("bad", ["missing", "no PEM", "another key"])
def test_a_certificate_that_cannot_be_used_is_refused_before_anybody_is_told(place: Served, bad: str) -> None:
    with tempfile.TemporaryDirectory() as other:
        certificate, key = f"{other}/certificate.pem", f"{other}/key.pem"
        make_certificate(certificate, key)
        if bad == "missing":
            Path(certificate).unlink()
        elif bad == "no PEM":
            Path(certificate).write_text("nonsense\n")
        else:
            make_certificate(f"{other}/other.pem", key)
        done = place.run(
            *("serve", "--host", f"unix://{other}/s.sock", "--tcp", "127.0.0.1:0"),
            *("--tls-certificate", certificate, "--tls-key", key),
            PGPU_STATE_DIR=other,
        )
    assert done.returncode == 125
    assert certificate in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert "listening" not in done.stdout + done.stderr


def make_certificate(certificate: str, key: str) -> None:
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        ["openssl", *words, "-keyout", key, "-out", certificate, "-days", "1", "-subj", "/CN=localhost"],
        check=True,
        capture_output=True,
    )


@pytest.mark.parametrize("words", [["--host", "https://x"], ["--host", "nonsense"], ["--tcp", "7878"]])
def test_an_address_that_is_none_is_refused_in_one_line(place: Served, words: list[str]) -> None:
    done = place.run("serve", *words)
    assert done.returncode == 125
    assert len(done.stderr.splitlines()) == 2


def test_an_attach_that_greets_with_nonsense_is_closed_without_a_trace(place: Served) -> None:
    job_id = place.detach("one", "2GiB", LONG)
    for greeting in (None, b'{"offset": Infinity, "holds_back": false, "owns_stdin": false}', b"[" * 200_000, b"[]"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(place.server.socket))
        with contextlib.closing(Channel(connection, f"/v1/jobs/{job_id}/attach", {})) as channel:
            if greeting is not None:
                channel.sendall(encode_frame(Kind.HELLO, greeting))
                select.select([channel], [], [], 60)
                assert channel.receive() is None
    assert get(place, "/healthz")[0] == 200
    assert place.job("one")["state"] in {"starting", "running"}
    assert place.server.end() == 0
    assert "Traceback" not in place.server.said()


def test_what_callers_do_wrong_is_told_to_them_and_not_to_the_log(place: Served) -> None:
    for garbage in (
        b"\0\1\2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"GET ",
    ):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(place.server.socket))
            connection.sendall(garbage)
            if garbage.endswith(b"\n"):
                assert connection.recv(65536).startswith(b"HTTP/1.1 4")
    assert get(place, "/v1/nothing")[0] == 404
    assert place.server.end() == 0
    assert not re.search("WARNING|ERROR|Traceback", place.server.said())


def _asked(place: Served, place_in_ask: Any, value: Any) -> tuple[int, Any]:
    ask = with_value(place_in_ask, value)
    del ask["submissions"][0]["array"]
    connection = _Connection(place.server.socket)
    connection.request("POST", "/v1/jobs", json.dumps(ask))
    answer = connection.getresponse()
    said = answer.status, json.loads(answer.read())
    connection.close()
    return said


def test_what_no_process_can_have_is_refused_and_nothing_that_is_taken_fails_by_our_fault(place: Served) -> None:
    spec: tuple[str | int, ...] = ("submissions", 0, "spec")
    name, value = ("environment", 0, 0), ("environment", 0, 1)
    refused = [
        ((*spec, "runtime"), "oci"),
        (("submissions", 0, "request", "compute_share"), 2.0),
        (("submissions", 0, "request", "priority"), -1000),
        ((*spec, "command"), ["true", *["x" * 100_000] * 30]),
        (("environment",), [[f"A{number}", "x" * 100_000] for number in range(30)]),
        *(((*spec, "command", 1), word) for word in ("\0", "\ud800", "x" * (128 << 10))),
        *((where, word) for where in (name, value) for word in ("\0", "\ud800", "x" * (128 << 10))),
        (name, "a=b"),
    ]
    for where, what in refused:
        status, said = _asked(place, where, what)
        assert status == 400, (where, str(what)[:40], said)
        assert len(said["error"]["message"]) < 500
    taken = [((*spec, "command", 1), "\udcff"), (name, "\udcff"), (value, "/bin:/usr/bin:\udcff"), (name, " ")]
    for where, what in taken:
        status, said = _asked(place, where, what)
        assert status == 201, said
        ended = json.loads(get(place, f"/v1/jobs/{said[0]['id']}/wait?timeout_seconds=60")[1])
        assert (ended["state"], ended["exit_code"]) == ("exited", 0), ended
    assert "Traceback" not in place.server.said()
