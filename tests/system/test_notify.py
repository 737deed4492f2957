"""`--notify COMMAND`: what runs once a job has ended, as its owner, once, and without harm to anything."""

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system.conftest import Place
from tests.system.user_world import User, UserWorld, opened_world
from tests.waiting import until

Eventually = Callable[[Callable[[], Any]], Any]
TELL = 'echo "$PGPU_JOB $PGPU_JOB_NAME $PGPU_STATE ${PGPU_EXIT_CODE:-none}" >> told'


def told(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def live_ids(place: Place) -> list[str]:
    return place.run("ps", "-q").stdout.split()


def test_a_command_is_told_how_each_job_ended(place: Place, eventually: Eventually) -> None:
    done = place.run("run", "--memory", "1GiB", "--name", "fails", "--notify", TELL, "--", "sh", "-c", "exit 7")
    assert done.returncode == 7
    eventually(lambda: len(told(place.path / "told")) == 1)
    array = place.run("submit", "--gpus", "0", "--array", "0-1", "--name", "two", "--notify", TELL, "true").stdout
    place.run("wait", array.strip())
    eventually(lambda: len(told(place.path / "told")) == 3)
    assert {(name, state, code) for _, name, state, code in told(place.path / "told")} == {
        ("fails", "exited", "7"),
        ("two-0", "exited", "0"),
        ("two-1", "exited", "0"),
    }
    eventually(lambda: not live_ids(place))
    assert len(told(place.path / "told")) == 3


def test_a_job_that_never_ran_is_told_as_cancelled(place: Place, eventually: Eventually) -> None:
    place.detach("holder", "20GiB", ["sleep", "600"])
    waiting = place.run("submit", "--memory", "20GiB", "--notify", TELL, "true").stdout.strip()
    assert place.run("cancel", waiting).returncode == 0
    assert place.run("run", "--no-wait", "--memory", "20GiB", "--notify", TELL, "true").returncode == 124
    eventually(lambda: len(told(place.path / "told")) == 2)
    assert [
        (line[0] == waiting, line[-2:]) for line in sorted(told(place.path / "told"), key=lambda x: x[0] != waiting)
    ] == [
        (True, ["cancelled", "none"]),
        (False, ["cancelled", "none"]),
    ]


def test_a_command_that_fails_changes_nothing_of_its_job(place: Place, eventually: Eventually) -> None:
    done = place.run("run", "--memory", "1GiB", "--name", "good", "--notify", "exit 9", "--", "true")
    assert done.returncode == 0
    done = place.run("run", "--memory", "1GiB", "--notify", "/nowhere/at/all", "--", "true")
    assert done.returncode == 0
    eventually(lambda: len([job for job in place.json("ps", "-a")["jobs"] if job["state"] == "exited"]) == 4)
    assert sorted(job["exit_code"] for job in place.json("ps", "-a")["jobs"]) == [0, 0, 9, 127]


def test_a_command_that_hangs_holds_no_gpu_and_keeps_nothing_waiting(place: Place, eventually: Eventually) -> None:
    assert place.run("run", "--memory", "20GiB", "--notify", "sleep 600", "--", "true").returncode == 0
    [hanging] = eventually(lambda: [job for job in place.json("ps")["jobs"] if job["state"] == "running"])
    assert hanging["request"]["gpu_count"] == 0
    assert hanging["command"][-1] == "sleep 600"
    assert "-k 5 60" in hanging["command"][2]
    [ended] = [job for job in place.json("ps", "-a")["jobs"] if job["state"] == "exited"]
    assert hanging["notifies"] == ended["id"]
    assert f"notify of {ended['id']}" in place.run("ps").stdout
    assert place.run("run", "--no-wait", "--memory", "20GiB", "--", "true").returncode == 0
    place.run("stop", "--time", "0", hanging["id"])


def test_a_command_runs_although_the_job_removed_its_directory(place: Place, eventually: Eventually) -> None:
    path = place.path / "told"
    submitted = ("--memory", "1GiB", "-w", str(place.path / "gone"), "--notify", f"pwd > {path}")
    (place.path / "gone").mkdir()
    assert place.run("run", *submitted, "sh", "-c", "rmdir $PWD").returncode == 0
    eventually(lambda: told(path) == [["/"]])


def test_a_command_runs_where_the_path_of_the_job_is_of_no_use(place: Place, eventually: Eventually) -> None:
    path = place.path / "told"
    notify = f"echo told > {path}"
    done = place.run("run", "--memory", "1GiB", "--notify", notify, "/bin/true", PATH="/nowhere")
    assert done.returncode == 0
    eventually(lambda: told(path) == [["told"]])


def agent_of(place: Place) -> int:
    with sqlite3.connect(Path(place.environment["PGPU_STATE_DIR"]) / "ledger.db") as ledger:
        row = ledger.execute("SELECT json_extract(supervisor, '$.pid') FROM jobs WHERE state = 'running'").fetchone()
    return int(row[0]) if row and row[0] else 0


def test_a_command_runs_once_although_the_agent_is_killed(place: Place, eventually: Eventually) -> None:
    job_id = place.run(
        "run", "-d", "--memory", "1GiB", "--notify", TELL, "--", "sh", "-c", "until [ -e go ]; do sleep 0.05; done"
    ).stdout.strip()
    killed = {0}
    for _ in range(3):
        agent = eventually(lambda: agent_of(place) if agent_of(place) not in killed else 0)
        killed.add(agent)
        os.kill(agent, signal.SIGKILL)
    agent = eventually(lambda: agent_of(place) if agent_of(place) not in killed else 0)
    (place.path / "go").touch()
    os.kill(agent, signal.SIGKILL)
    eventually(lambda: place.run("ps", "-q") and told(place.path / "told"))
    eventually(lambda: not live_ids(place))
    assert told(place.path / "told") == [[job_id, "exited", "0"]]


def test_an_empty_command_is_refused(place: Place) -> None:
    done = place.run("run", "--memory", "1GiB", "--notify", " ", "true")
    assert done.returncode == 125
    assert "--notify names no command" in done.stderr


# Two users, through a server of root.


@pytest.fixture(scope="module")
def world() -> Iterator[UserWorld]:
    with opened_world() as made:
        yield made


def notice_of(user: User, job_id: str) -> Any:
    """Return the job that ran the command about a job of a user, as this user sees it once it has ended."""

    def found() -> Any:
        jobs = [each["job"] for each in user.ask("GET", "/v1/jobs?include_final=true").value]
        return next((each for each in jobs if each["id"] != job_id and each["state"] == "exited"), None)

    return until(found, lambda: user.ask("GET", "/v1/jobs?include_final=true").text)


WHO = "id; env; grep CapBnd /proc/self/status"


@pytest.mark.parametrize("ends", ["itself", "stopped by root", "cancelled by root"])
def test_a_command_runs_as_the_owner_whoever_ends_the_job(world: UserWorld, ends: str) -> None:
    alice, bob = world.user(), world.user()
    memory = 1 << 30
    holder = bob.started("sleep", "600", memory=20 << 30) if ends == "cancelled by root" else None
    if holder is not None:
        bob.until(holder, "running")
        memory = 20 << 30
    command = ("true",) if ends == "itself" else ("sleep", "600")
    job_id = alice.started(*command, memory=memory, notify=WHO)
    if ends != "itself":
        alice.until(job_id, "running" if holder is None else "waiting")
        assert world.root.ask("POST", f"/v1/jobs/{job_id}/stop", {"grace_seconds": 0}).status == 200
    if holder is not None:
        bob.ask("POST", f"/v1/jobs/{holder}/stop", {"grace_seconds": 0})
    notice = notice_of(alice, job_id)
    assert notice["owner_uid"] == alice.uid
    said = alice.logs(notice["id"]).text
    for text in (
        str(alice.uid),
        alice.secret,
        "CapBnd:\t0000000000000000",
        "exited" if ends != "cancelled by root" else "cancelled",
    ):
        assert text in said
    assert "hidden" not in said
    assert "uid=0" not in said
    assert "gid=0" not in said
    assert bob.ask("GET", f"/v1/jobs/{notice['id']}").status == 404
    assert bob.ask("GET", f"/v1/jobs/{notice['id']}/logs").status == 404


def test_what_a_client_says_of_itself_does_not_change_who_runs_the_command(world: UserWorld) -> None:
    alice = world.user()
    claimed = '{"umask": 0, "limits": {}, "account": {"uid": 0, "gid": 0, "groups": [0]}, "starter": {"pid": 1}}'
    job_id = alice.started("true", notify="id -u; id -g", inherited=claimed)
    notice = notice_of(alice, job_id)
    assert notice["owner_uid"] == alice.uid
    assert alice.logs(notice["id"]).text.count(str(alice.uid)) >= 2
