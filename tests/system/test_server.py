"""A real `pgpu serve`: what is different where one process answers for all, and what is not although it dies."""

import contextlib
import http.client
import json
import os
import pty
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forked_commands import PGPU
from tests.served import ServerProcess, serving
from tests.system.conftest import Place, opened_place
from tests.system.storm_victims import agent, guard, kill
from tests.waiting import DEADLINE_SECONDS, until

from pgpu.host.process_identity import is_alive
from pgpu.model import ProcessHolder

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


class Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("pgpu", timeout=DEADLINE_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(self._path))


def get(place: Served, path: str) -> tuple[int, bytes]:
    connection = Connection(place.server.socket)
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


def test_the_next_server_has_an_agent_of_its_own_environment_and_the_jobs_continue(
    place: Served, eventually: Eventually
) -> None:
    place.detach("runs", "4GiB", ["sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; echo out; exit 3"])
    eventually(lambda: place.job("runs")["state"] == "running")
    old = agent(place.path / "run")
    assert old is not None
    place.server.end(signal.SIGTERM)
    place.server.start()
    until(lambda: not is_alive(old))
    (place.path / "go").touch()
    assert place.run("wait", "runs").stdout == "3\n"
    assert place.run("logs", "runs").stdout == "out\n"
    new = agent(place.path / "run")
    assert new not in {None, old}


def test_an_idle_server_has_an_agent_which_stays_and_is_replaced_when_it_is_killed(place: Served) -> None:
    def alive() -> ProcessHolder | None:
        found = agent(place.path / "run")
        return found if found is not None and is_alive(found) else None

    until(lambda: alive() is not None)
    old = alive()
    assert old is not None
    above = guard(place.path / "run")
    assert above is not None
    for each in (above, old):  # the guard first: it would start the next agent, and not the server
        os.kill(each.pid, signal.SIGKILL)
    until(lambda: alive() not in {None, old})


def test_a_server_starts_an_agent_for_waiting_jobs_after_agent_and_guard_were_killed(place: Served) -> None:
    place.detach("runs", "20GiB", ["sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"])
    array = place.run(
        "submit", "--memory", "5GiB", "--array", "0-19", "--", "sh", "-c", "echo $PGPU_ARRAY_INDEX >> ran"
    )
    assert array.returncode == 0, array.stderr
    until(lambda: place.job("runs")["state"] == "running")
    guard_process, agent_process = guard(place.path / "run"), agent(place.path / "run")
    assert guard_process is not None
    assert agent_process is not None
    os.kill(guard_process.pid, signal.SIGSTOP)  # it starts no other agent
    kill(agent_process)
    kill(guard_process)
    (place.path / "go").touch()
    # No command from here on: the file and the ledger are read.
    ran = place.path / "ran"
    until(lambda: ran.exists() and len(ran.read_text().split()) == 20)
    assert sorted(ran.read_text().split(), key=int) == [str(number) for number in range(20)]
    new = agent(place.path / "run")
    assert new not in {None, agent_process}


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


def test_a_server_that_nohup_started_outlives_its_terminal() -> None:
    with opened_place() as place:
        terminal, end = pty.openpty()
        command = ("serve", "--gateway", "none", "--host", f"unix://{place.path}/pgpu.sock")
        server = subprocess.Popen(
            ["setsid", "--ctty", "nohup", PGPU, *command],
            env=place.environment,
            stdin=end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        place.started.append(server)
        os.close(end)
        assert server.stderr is not None
        while "listening at" not in (line := server.stderr.readline()):
            assert line
        os.close(terminal)
        assert server.stderr.readline() == "pgpu: settings reloaded: none has changed\n"
        server.terminate()
        assert server.wait(DEADLINE_SECONDS) == 0


def test_what_happens_is_told_as_it_happens(place: Served) -> None:
    connection = Connection(place.server.socket)
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
    connection = Connection(place.server.socket)
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
    get(place, "/readyz")  # an idle server looks again when it is asked
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
        connection = Connection(place.server.socket)
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
    connection = Connection(place.server.socket)
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
