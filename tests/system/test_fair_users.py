"""Two users of a real server queue for one GPU: they start in turn, and each is told by which figure."""

import contextlib
from collections.abc import Iterator

import pytest
from tests.system.user_world import User, UserWorld, opened_world

EACH = 8


@pytest.fixture(scope="module")
def world() -> Iterator[UserWorld]:
    with opened_world() as made:
        yield made


@pytest.fixture(scope="module")
def whole(world: UserWorld) -> int:
    (gpu,) = world.root.ask("GET", "/v1/gpus").value
    return int(gpu["capacity_bytes"])


@contextlib.contextmanager
def holding(user: User, whole: int) -> Iterator[None]:
    """Hold the GPU as this user while the block runs."""
    job_id = user.started("sleep", "600", memory=whole)
    user.until(job_id, "running")
    try:
        yield
    finally:
        user.ask("POST", f"/v1/jobs/{job_id}/stop", {"grace_seconds": 0})


def test_a_user_who_comes_later_starts_every_other_job(world: UserWorld, whole: int) -> None:
    alice, bob = world.user(), world.user()
    with holding(world.root, whole):
        ids = {alice.started("sleep", "0.3", memory=whole): "a" for _ in range(EACH)}
        ids |= {bob.started("sleep", "0.3", memory=whole): "b" for _ in range(EACH)}
        line = bob.ask("GET", "/v1/queue").value
        assert [(each["place_rule"], each["place_seconds"]) for each in line[1:]] == [("size", None)] * (EACH - 1)
        assert line[0]["place_rule"] in {"shares", "reserved", "first"}
        first, second, roots = bob.ask("GET", "/v1/shares").value
        assert {first["uid"], second["uid"]} == {bob.uid, -1}
        assert [(each["waiting"], each["behind_seconds"]) for each in (first, second)] == [(EACH, 0), (EACH, 0)]
        assert (roots["uid"], roots["behind_seconds"]) == (-1, None)
        assert roots["held_share"] == pytest.approx(1.0, abs=0.05)
    users = {"a": alice, "b": bob}
    ended = {job_id: users[user].until(job_id, "exited", "failed") for job_id, user in ids.items()}
    assert {job["exit_code"] for job in ended.values()} == {0}
    order = "".join(ids[job_id] for job_id in sorted(ended, key=lambda job_id: ended[job_id]["started_at_seconds"]))
    # Jobs last 0.3 s give or take some milliseconds: the user whose jobs were shorter may start two in a row.
    assert order.startswith("a")
    assert "aaa" not in order, order
    assert "bbb" not in order[: order.rindex("a")], order


def test_a_user_who_had_the_gpu_is_behind_one_who_had_not(world: UserWorld, whole: int) -> None:
    alice, bob = world.user(), world.user()
    with holding(alice, whole):
        later = alice.started("true", memory=whole)
        sooner = bob.started("true", memory=whole)
        (row,) = [each for each in alice.ask("GET", "/v1/queue").value if each["job"]["id"] == later]
        assert row["place_rule"] == "shares"
        assert row["place_seconds"] > 0
    started = [user.until(job_id, "exited")["started_at_seconds"] for user, job_id in ((bob, sooner), (alice, later))]
    assert started == sorted(started)
