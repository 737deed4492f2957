"""A user's GPU function in a sealed container on root's server: its slice goes and comes, and its container stays."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.system.docker.function_world import as_user, ask, asked, ends, is_ready, started
from tests.system.user_world import UserWorld, opened_world
from tests.waiting import until

from pgpu.app.client_factory import open_client, open_functions
from pgpu.app.settings import Settings
from pgpu.services.messages import ReplicaAsk

pytestmark = pytest.mark.docker

APP = (Path(__file__).parents[1] / "functions" / "handlers.py").read_text()


@pytest.fixture(scope="module")
def world() -> Iterator[UserWorld]:
    with opened_world("--gateway", "none") as made:
        yield made


def as_the_machine_knows(pid: int, uid: int) -> int:
    """Return the PID that a user's process in a container has outside of it."""
    for each in psutil.process_iter(["uids"]):
        with suppress(OSError):
            words = Path(f"/proc/{each.pid}/status").read_text().split("NSpid:")[1].splitlines()[0].split()
            if each.info["uids"].real == uid and len(words) > 1 and int(words[-1]) == pid:
                return each.pid
    raise AssertionError(f"no process of user {uid} is {pid} in a container")


def test_a_worker_is_frozen_in_its_container_and_one_that_dies_there_is_replaced_by_its_zygote(
    world: UserWorld, images: str, tmp_path: Path
) -> None:
    settings, alice = Settings(host=f"unix://{world.socket}"), world.user()
    root, client = open_functions(settings), open_client(settings)
    words: dict[str, Any] = {"declaration": '{"memory": "1GiB", "arguments": {"mib": 64}}', "app": "app.py:OnGpu"}
    deployment, bundle = asked(f"{images}:latest", "parked", tmp_path, APP, **words)
    as_user(alice, lambda functions: functions.deploy(deployment, bundle))
    replica = started(root, client, ReplicaAsk("parked", 1))

    def said() -> dict[str, int]:
        status, found = ask(replica, "POST", "/", b'{"x": 1}')
        assert status == 200, found
        return dict(found)

    def go_away() -> None:
        client.park(replica.job_id)
        until(lambda: client.job(replica.job_id).job.parked_at_seconds is not None)
        assert not is_ready(replica)

    def come_back() -> None:
        client.claim(replica.job_id)
        until(lambda: is_ready(replica))

    before = said()
    go_away()
    come_back()
    assert said() == {**before, "calls": 2, "seen": 2}

    go_away()
    os.kill(as_the_machine_knows(before["pid"], alice.uid), signal.SIGKILL)
    come_back()
    after = said()
    assert (after["calls"], after["pid"] != before["pid"]) == (1, True)
    ends(client, root, alice, replica)
