"""Users of one server under MPS: each one's programs are clients of a server that runs as them, and no other's are beside them."""

from collections.abc import Iterator

import pytest
from tests.system.user_world import User, UserWorld, opened_world
from tests.waiting import until

PROBE = "/.pgpu/pgpu-probe"
HOLDING = ("sh", "-c", f"sleep 600 | {PROBE} hold")


@pytest.fixture(scope="module")
def world() -> Iterator[UserWorld]:
    with opened_world() as made:
        yield made


def start(user: User, *command: str) -> str:
    spec = {"command": command, "runtime": "process", "working_directory": "/"}
    request = {"memory_bytes": 1 << 30, "sharing": "mps"}
    ask = {"submissions": [{"spec": spec, "request": request}], "environment": [["PATH", "/usr/bin:/bin"]]}
    answer = user.ask("POST", "/v1/jobs", ask)
    assert answer.status == 201, answer.text
    return str(answer.value[0]["id"])


def stop(user: User, job_id: str) -> None:
    user.ask("POST", f"/v1/jobs/{job_id}/stop", {"grace_seconds": 0})
    user.until(job_id, "exited", "failed")


def test_a_users_job_is_a_client_of_a_server_that_runs_as_that_user(world: UserWorld) -> None:
    alice = world.user()
    job_id = start(alice, "sh", "-c", f"{PROBE} hold </dev/null")
    assert alice.until(job_id, "exited", "failed")["exit_code"] == 0, alice.job(job_id)["error"]
    assert "mps 1" in alice.logs(job_id).text
    told = [path.read_text() for path in world.place.path.glob("run/**/log/control.log")]
    assert all(f"for user {alice.uid}" in text for text in told)


def test_another_users_job_is_not_under_the_same_server(world: UserWorld) -> None:
    alice, bob = world.user(), world.user()
    hers = start(alice, *HOLDING)
    until(lambda: "ready" in alice.ask("GET", f"/v1/jobs/{hers}/logs?follow=false").text, lambda: alice.job(hers))
    his = start(bob, "sh", "-c", f"{PROBE} hold </dev/null")
    until(lambda: bob.job(his)["reason"], lambda: bob.job(his))
    assert bob.job(his)["state"] in {"waiting", "starting"}
    stop(alice, hers)
    assert bob.until(his, "exited", "failed")["exit_code"] == 0, bob.job(his)
    assert "mps 1" in bob.logs(his).text
