"""Two users on one machine, through a server of root: what is one's is not the other's. Each attempt is a test."""

import contextlib
import json
import os
import re
import signal
import sqlite3
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.system.user_world import SUBMITTERS, Answer, User, UserWorld, opened_world

from pgpu.engine.streams.frames import Hello, encode_hello


@pytest.fixture(scope="module")
def world() -> Iterator[UserWorld]:
    with opened_world() as made:
        yield made


@dataclass
class Pair:
    """Alice, who runs a job that tells nobody anything, and Bob, who wants to know."""

    alice: User
    bob: User
    job: str
    pid: int


@pytest.fixture(scope="module")
def pair(world: UserWorld) -> Iterator[Pair]:
    alice, bob = world.user(), world.user()
    job_id = alice.started("sh", "-c", "echo $SECRET; exec sleep 600 # of-alice", name="alices-name")
    job = alice.until(job_id, "running")
    yield Pair(alice, bob, job_id, job["holder"]["pid"])
    with contextlib.suppress(AssertionError):
        alice.ask("POST", f"/v1/jobs/{job_id}/stop", {"grace_seconds": 0})


def assert_tells_nothing(pair: Pair, answer: Answer) -> None:
    for secret in (pair.alice.secret, "of-alice", "alices-name", pair.job, "sleep 600"):
        assert secret not in answer.text


def test_a_job_runs_as_its_asker_with_the_askers_groups_and_environment_alone(world: UserWorld) -> None:
    alice = world.user()
    job_id = alice.started("sh", "-c", "id -u; id -G; pwd; env; ulimit -Hn", working_directory="/tmp")
    assert alice.until(job_id, "exited", "failed")["exit_code"] == 0
    logs = alice.logs(job_id).text
    assert str(alice.uid) in logs
    assert f"{alice.uid} {SUBMITTERS.gr_gid}" in logs
    assert f"SECRET={alice.secret}" in logs
    assert "ROOTS_SECRET" not in logs


def test_a_job_without_a_gpu_runs_as_its_asker_too(world: UserWorld) -> None:
    alice = world.user()
    script = "id -u; grep CapBnd /proc/self/status; kill -0 $PPID; ls /.pgpu; printenv CUDA_VISIBLE_DEVICES"
    job_id = alice.started("sh", "-c", script, gpus=0)
    assert alice.until(job_id, "exited", "failed")["exit_code"] == 0
    said = alice.logs(job_id).text
    assert str(alice.uid) in said
    assert "0000000000000000" in said
    assert "not permitted" in said


def test_a_users_slice_binds_and_is_counted(world: UserWorld) -> None:
    alice = world.user()
    probe = "/.pgpu/pgpu-probe"
    job_id = alice.started("sh", "-c", f"{probe} allocate $((512 << 20)); {probe} allocate $((2 << 30))")
    job = alice.until(job_id, "exited", "failed")
    assert re.findall(r"allocate (\d+)", alice.logs(job_id).text) == ["0", "2"]
    assert job["peak_bytes"] >= 512 << 20


def test_the_owner_sees_all_of_their_own_job(pair: Pair) -> None:
    assert pair.alice.job(pair.job)["spec"]["name"] == "alices-name"
    assert pair.alice.secret in pair.alice.logs(pair.job).text


@pytest.mark.parametrize("word", ["id", "name", "beginning"])
def test_another_users_job_is_not_there(pair: Pair, word: str) -> None:
    named = {"id": pair.job, "name": "alices-name", "beginning": pair.job[:5]}[word]
    answer = pair.bob.ask("GET", f"/v1/jobs/{named}")
    assert answer.status == 404
    assert pair.alice.secret not in answer.text
    nobody = pair.bob.ask("GET", "/v1/jobs/ffffffffffff")
    assert answer.text.replace(named, "") == nobody.text.replace("ffffffffffff", "")


def test_no_route_of_a_job_answers_for_another_user(world: UserWorld, pair: Pair) -> None:
    bodies: dict[str, Any] = {
        "stop": {"grace_seconds": 0},
        "signal": {"number": 9},
        "window": {"columns": 80, "rows": 24},
        "resize": {"memory_bytes": 2 << 30},
    }
    paths = world.root.ask("GET", "/openapi.json").value["paths"]
    tried = 0
    for path, methods in paths.items():
        if "{job}" not in path:
            continue
        for method in methods:
            answer = pair.bob.ask(method.upper(), path.replace("{job}", pair.job), bodies.get(path.rpartition("/")[2]))
            assert 400 <= answer.status < 500, (method, path, answer)
            assert_tells_nothing(pair, Answer(answer.status, answer.text.replace(pair.job, "")))
            tried += 1
    assert tried >= 6
    assert pair.alice.job(pair.job)["state"] == "running"
    assert pair.alice.job(pair.job)["request"]["memory_bytes"] == 1 << 30


_TO_WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def test_nobody_attaches_to_anothers_job(pair: Pair) -> None:
    route = f"/v1/jobs/{pair.job}/attach"
    assert pair.alice.ask("GET", route, seconds=2, **_TO_WEBSOCKET).status == 101
    answer = pair.bob.ask("GET", route, seconds=2, **_TO_WEBSOCKET)
    assert answer.status == 404
    assert pair.alice.secret not in answer.text


def test_no_list_tells_of_another_users_job(world: UserWorld, pair: Pair) -> None:
    paths = world.root.ask("GET", "/openapi.json").value["paths"]
    lists = [path for path, methods in paths.items() if "get" in methods and "{" not in path]
    assert "/v1/jobs" in lists
    for path in lists:
        if path == "/openapi.json":
            continue
        assert_tells_nothing(pair, pair.bob.ask("GET", f"{path}?include_final=true&after=0", seconds=2))


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/events?after=0", "/metrics"])
def test_the_same_lists_do_tell_the_owner(pair: Pair, path: str) -> None:
    assert pair.job in pair.alice.ask("GET", path, seconds=2).text


def test_anothers_running_job_is_a_nameless_row_with_its_memory(pair: Pair) -> None:
    rows = pair.bob.ask("GET", "/v1/jobs").value
    row = next(row for row in rows if row["job"]["id"] == "-")
    assert row["job"]["request"]["memory_bytes"] == 1 << 30
    assert not row["job"]["spec"]["command"]
    assert {name for name, value in row["job"].items() if value} <= {
        "id",
        "spec",
        "request",
        "state",
        "lease",
        "owner_uid",
        "place",
        "attempt",
        "gpu_model",
    }


@pytest.mark.parametrize("path", ["environ", "root/.pgpu/usage", "root/.pgpu/limit", "fd/1", "mem", "cwd/."])
def test_the_kernel_keeps_a_job_from_others(pair: Pair, path: str) -> None:
    assert pair.bob.run("cat", f"/proc/{pair.pid}/{path}").returncode != 0


def ancestors_of(pid: int) -> dict[str, int]:
    """Return the processes of root above a job's main process."""
    monitor = parent_of(pid)
    agent = parent_of(monitor)
    return {"monitor": monitor, "agent": agent, "guard": parent_of(agent)}


def test_no_user_kills_another_s_job_or_a_process_of_root(world: UserWorld, pair: Pair) -> None:
    for pid in (pair.pid, world.server.pid, *ancestors_of(pair.pid).values()):
        assert pair.bob.run("kill", "-9", str(pid)).returncode != 0
    for pid in (world.server.pid, *ancestors_of(pair.pid).values()):
        assert pair.alice.run("kill", "-9", str(pid)).returncode != 0


@pytest.mark.parametrize("path", ["environ", "maps", "mem", "fd/0", "cwd/."])
def test_no_user_reads_the_monitor_of_a_job_not_even_its_owner(pair: Pair, path: str) -> None:
    for user in (pair.alice, pair.bob):
        assert user.run("cat", f"/proc/{ancestors_of(pair.pid)['monitor']}/{path}").returncode != 0


_ATTACH = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
sys.exit(libc.ptrace(16, int(sys.argv[1]), 0, 0) == 0)
"""
"""PTRACE_ATTACH; exits with 1 where it worked."""


def test_no_user_traces_the_processes_above_a_job(pair: Pair) -> None:
    for pid in ancestors_of(pair.pid).values():
        for user in (pair.alice, pair.bob):
            assert user.run("/usr/bin/python3", "-c", _ATTACH, str(pid)).returncode == 0


def test_a_monitor_of_root_can_do_nothing_but_kill(pair: Pair) -> None:
    status = Path(f"/proc/{ancestors_of(pair.pid)['monitor']}/status").read_text("utf-8")
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert (fields["CapEff"], fields["CapPrm"]) == ("0000000000000020", "0000000000000020")  # CAP_KILL
    assert (fields["Seccomp"], fields["NoNewPrivs"]) == ("2", "1")


_SEND = """
import socket, sys
kind, path, data = sys.argv[1:4]
with socket.socket(socket.AF_UNIX, getattr(socket, kind)) as end:
    end.connect(path)
    end.sendall(bytes.fromhex(data))
"""


@pytest.mark.parametrize(
    ("kind", "name", "data"),
    [("SOCK_DGRAM", "control.sock", b"signal 9"), ("SOCK_STREAM", "attach.sock", b"\x01\x00\x00\x00\x02{}")],
)
def test_no_user_reaches_the_sockets_of_a_monitor_not_even_of_their_own_job(
    world: UserWorld, pair: Pair, kind: str, name: str, data: bytes
) -> None:
    found = [path for path in (world.place.path / "run").rglob(name) if path.parent.name == pair.job]
    assert len(found) == 1
    for user in (pair.alice, pair.bob):
        done = user.run("/usr/bin/python3", "-c", _SEND, kind, str(found[0]), data.hex())
        assert "PermissionError" in done.stderr
    assert pair.alice.job(pair.job)["state"] == "running"


_SEND_FRAMES = """
import socket, sys
path, route, data = sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3])
lines = [f"GET {route} HTTP/1.1", "Host: pgpu", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
lines += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", ""]
with socket.socket(socket.AF_UNIX) as end:
    end.connect(path)
    end.sendall("\\r\\n".join(lines).encode())
    while b"\\r\\n\\r\\n" not in end.recv(4096):
        pass
    # One masked binary message, with zeroes as its mask.
    end.sendall(bytes([0x82, 0xFE]) + len(data).to_bytes(2, "big") + bytes(4) + data)
    while end.recv(65536):
        pass
"""
"""Sends bytes as a client of a job's streams, and returns once the server has closed the connection."""


@pytest.mark.parametrize(
    "frames",
    [
        b"\x09" + b"\xff" * 200,
        b"\x02\xff\xff\xff\xff" + b"x" * 200,
        b"\x03\x00\x00\x00\x01x" + b"\x00" * 200,
        encode_hello(Hello(0, holds_back=True, owns_stdin=True)) + b"\x05" * 200,
    ],
)
def test_bad_frames_of_its_owner_stop_neither_a_job_nor_its_monitor(pair: Pair, frames: bytes) -> None:
    before = ancestors_of(pair.pid)["monitor"]
    data = encode_hello(Hello(0, holds_back=False, owns_stdin=False)) + frames
    words = (str(pair.alice.socket), f"/v1/jobs/{pair.job}/attach", data.hex())
    done = pair.alice.run("/usr/bin/python3", "-c", _SEND_FRAMES, *words)
    assert done.returncode == 0, done.stderr
    assert pair.alice.job(pair.job)["state"] == "running"
    assert ancestors_of(pair.pid)["monitor"] == before
    assert pair.alice.secret in pair.alice.logs(pair.job).text


def test_a_job_cannot_forge_the_record_of_its_end(world: UserWorld, pair: Pair) -> None:
    spool, live = world.place.path / "state" / "spool", world.place.path / "run"
    script = (
        f"touch {spool}/ended-$PGPU_JOB_ID.1 {spool}/reaped-$$; echo open:$(ls /proc/self/fd | wc -l); "
        f"find {live} -name control.sock 2>&1; kill -9 $PPID; exit 5"
    )
    job_id = pair.alice.started("sh", "-c", script)
    assert pair.alice.until(job_id, "exited", "failed")["exit_code"] == 5
    logs = pair.alice.logs(job_id).text
    assert logs.count("Permission denied") >= 2
    assert "control.sock" not in logs.replace("-name control.sock", "")
    assert "not permitted" in logs
    assert "open:4\n" in logs  # three streams and the directory that `ls` reads


def test_state_and_runtime_directory_are_roots_alone(world: UserWorld, pair: Pair) -> None:
    state = world.place.path / "state"
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "ledger.db").stat().st_mode) == 0o600
    assert stat.S_IMODE((state / "spool").stat().st_mode) == 0o700
    for path in (state / "spool", state / "ledger.db", state / "jobs" / pair.job / "log", world.place.path / "run"):
        assert pair.bob.run("ls", str(path)).returncode != 0


def test_who_is_not_in_the_group_cannot_even_connect(world: UserWorld) -> None:
    stranger = world.user(groups=())
    with pytest.raises(AssertionError, match="Permission denied"):
        stranger.ask("GET", "/v1/jobs")


def test_nobody_claims_to_be_root(world: UserWorld) -> None:
    mallory = world.user()
    claim = (
        '{"umask": 18, "limits": {"RLIMIT_NOFILE": [999999, 999999]}, "account": {"uid": 0, "gid": 0, "groups": [0]}}'
    )
    job_id = mallory.started("sh", "-c", "id -u; ulimit -Hn", inherited=claim)
    mallory.until(job_id, "exited", "failed")
    logs = mallory.logs(job_id).text
    assert str(mallory.uid) in logs
    assert "999999" not in logs


def test_an_environment_that_makes_programs_run_anything_reaches_the_job_alone(world: UserWorld) -> None:
    mallory = world.user()
    evil = [["PYTHONPATH", "/nowhere/evil"], ["LD_PRELOAD", "/nowhere/evil.so"], ["PGPU_STATE_DIR", "/nowhere"]]
    job_id = mallory.started("/bin/true", environment=evil)
    assert mallory.until(job_id, "exited", "failed")["exit_code"] == 0
    assert world.root.job(job_id)["state"] == "exited"


def test_an_agent_that_is_killed_is_followed_by_another_of_root(
    world: UserWorld, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    alice = world.user()
    job_id = alice.started("sh", "-c", "echo before; sleep 600")
    pid = alice.until(job_id, "running")["holder"]["pid"]
    first = ancestors_of(pid)["agent"]
    os.kill(first, signal.SIGKILL)
    second = eventually(lambda: supervisor_of(world, job_id, other_than=first))
    assert alice.secret.encode() not in Path(f"/proc/{second}/environ").read_bytes()
    assert Path(f"/proc/{second}").stat().st_uid == 0
    assert alice.job(job_id)["holder"]["pid"] == pid
    assert alice.ask("POST", f"/v1/jobs/{job_id}/stop", {"grace_seconds": 0}).status == 200
    alice.until(job_id, "exited", "failed")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def supervisor_of(world: UserWorld, job_id: str, other_than: int) -> int | None:
    with sqlite3.connect(f"file:{world.place.path / 'state' / 'ledger.db'}?mode=ro", uri=True) as ledger:
        (text,) = ledger.execute("SELECT supervisor FROM jobs WHERE id = ?", (job_id,)).fetchone()
    pid = json.loads(text)["pid"] if text else other_than
    return None if pid == other_than else int(pid)


def test_nobody_waits_for_a_job_of_another(pair: Pair) -> None:
    answer = pair.bob.submit("true", after=[pair.job])
    assert answer.status != 201 or pair.job not in answer.text


def test_root_sees_and_stops_everybodys(world: UserWorld) -> None:
    alice = world.user()
    job_id = alice.started("sleep", "600")
    alice.until(job_id, "running")
    assert world.root.ask("POST", f"/v1/jobs/{job_id}/stop", {"grace_seconds": 0}).status == 200
    assert alice.until(job_id, "exited")["exit_code"] in {137, 143}


def test_control_characters_of_a_name_never_reach_a_terminal(world: UserWorld) -> None:
    alice = world.user()
    job_id = alice.started("sh", "-c", "exec sleep 600 # \x1b[31mred\x07")
    alice.until(job_id, "running")
    for words in (["ps"], ["ps", "--all"]):
        shown = world.place.run(*words, PGPU_HOST=f"unix://{world.socket}")
        assert shown.returncode == 0, shown.stderr
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown.stdout)
    alice.ask("POST", f"/v1/jobs/{job_id}/stop", {"grace_seconds": 0})


def test_nobody_learns_what_anothers_ended_runs_held(world: UserWorld) -> None:
    alice, bob = world.user(), world.user()
    job_id = alice.started("true", "of-alice")
    alice.until(job_id, "exited")
    ours = alice.ask("GET", "/v1/history").value
    assert [call["signature"].split()[1:] for call in ours] == [["of-alice"]]
    assert [each["job_id"] for each in alice.ask("GET", "/v1/waste").value] == [job_id]
    for path in ("/v1/history", "/v1/waste"):
        assert bob.ask("GET", path).value == []
    for word in (job_id, "true", ours[0]["signature"].split()[0]):
        answer = bob.ask("GET", f"/v1/history?word={word}")
        assert (answer.status, "of-alice" in answer.text) == (400, False)


def test_a_forecast_names_the_job_whose_end_it_assumes_to_those_alone_who_see_it(world: UserWorld) -> None:
    alice, bob = world.user(), world.user()
    holder = bob.started("sleep", "600", memory=20 << 30)
    bob.until(holder, "running")
    waits = alice.started("true", memory=20 << 30)
    for user in (alice, world.root):
        [found] = [each for each in user.ask("GET", "/v1/queue").value if each["job"]["id"] == waits]
        assert found["doubt"] == "unmeasured"
        # Root gets the id of `holder`, or of a job that another test left.
        assert (found.get("doubted") is None) == (user is alice)
    alice.ask("POST", f"/v1/jobs/{waits}/stop", {"grace_seconds": 0})
    bob.ask("POST", f"/v1/jobs/{holder}/stop", {"grace_seconds": 0})
