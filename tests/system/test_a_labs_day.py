"""A day of a lab with one GPU: five users, quotas, a notebook that somebody left open, and a drain before the evening."""

import json
from collections.abc import Callable, Iterator

import pytest
from tests.system.user_world import User, UserWorld, opened_world

GIB = 1 << 30


@pytest.fixture
def world() -> Iterator[UserWorld]:
    with opened_world("--idle-timeout", "20s", PGPU_ON_IDLE="stop") as made:
        yield made


@pytest.fixture
def admin(world: UserWorld) -> Callable[..., str]:
    def run(*words: str) -> str:
        done = world.place.run("admin", *words, PGPU_HOST=f"unix://{world.socket}")
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def ended_well(user: User, job_id: str) -> None:
    job = user.until(job_id, "exited", "failed", "cancelled")
    assert (job["state"], job["exit_code"]) == ("exited", 0), job


def test_everybody_gets_their_turn_and_nobody_fails_for_memory(world: UserWorld, admin: Callable[..., str]) -> None:
    notebook, trainer, student, guest, night = (world.user() for _ in range(5))
    admin("quota", str(student.uid), "--memory", "4GiB")

    left_open = notebook.started("sleep", "600", memory=14 * GIB)
    notebook.until(left_open, "running")
    training = trainer.started("sh", "-c", "sleep 1", memory=16 * GIB)
    first, second = (student.started("sleep", "3", memory=3 * GIB) for _ in range(2))
    small = guest.started("true", memory=GIB)

    ended_well(guest, small)  # it fits beside the notebook, and keeps nobody waiting
    ended_well(student, first)
    ended_well(student, second)  # never beside the first: that would be 6 of 4 GiB
    assert student.job(second)["started_at_seconds"] >= student.job(first)["finished_at_seconds"]
    ended_well(trainer, training)  # once the notebook was ended for doing nothing
    assert "nothing on its GPUs" in notebook.job(left_open)["warning"]

    running = trainer.started("sleep", "5", memory=8 * GIB)
    trainer.until(running, "running")
    admin("drain")
    tonight = night.started("true", memory=GIB)
    ended_well(trainer, running)
    assert night.job(tonight)["state"] == "waiting"
    admin("drain", "--end")
    ended_well(night, tonight)
    assert json.loads(admin("exclude", "--json")) == {"is_drained": False, "excluded": []}
    assert world.server.poll() is None
