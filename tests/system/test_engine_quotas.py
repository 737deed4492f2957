"""Requests that a user's quota refuses, and jobs that wait for it; on a machine of files."""

import os
from collections.abc import Iterator

import pytest
from tests.system.engine_worlds import LONG, World, world

from pgpu.errors import CapacityError, RequestError
from pgpu.model import JobSpec, JobState, Request, Submission
from pgpu.scheduling import Quota
from pgpu.units import GIB


@pytest.fixture
def machine() -> Iterator[World]:
    with world((10, 10)) as made:
        set_quota(made, 6)
        yield made


def set_quota(machine: World, gib: int) -> None:
    """Limit the memory that this user's jobs hold together."""
    with machine.engine.deciding() as decision:
        decision.put_quota(os.getuid(), Quota(gib * GIB))


@pytest.mark.parametrize(("gib", "count", "asked"), [(7, 1, "7 GiB"), (4, 2, "4 GiB on each of 2 GPUs")])
def test_more_than_the_user_s_quota_could_ever_grant_is_refused_at_submission(
    machine: World, gib: int, count: int, asked: str
) -> None:
    with pytest.raises(RequestError, match=f"^{asked} can never be granted: the quota of user .* is 6 GiB$") as caught:
        machine.submit(gib=gib, count=count)
    assert caught.value.nearest_bytes == 6 * GIB // count
    assert "ask for at most" in str(caught.value.hint)
    assert not machine.client.jobs(include_final=True)


def test_one_of_many_that_is_past_the_quota_refuses_all(machine: World) -> None:
    spec = JobSpec(LONG, "process", working_directory="/")
    with pytest.raises(RequestError, match="7 GiB can never be granted"):
        machine.client.submit_all([Submission(spec, Request(GIB)), Submission(spec, Request(7 * GIB))])
    assert not machine.client.jobs(include_final=True)


def test_what_fills_the_quota_is_granted(machine: World) -> None:
    machine.until_running(machine.submit(gib=6))


def test_a_waiting_job_is_not_resized_past_its_owner_s_quota(machine: World) -> None:
    machine.until_running(machine.submit(gib=4))
    waiting = machine.submit(gib=4)
    with pytest.raises(RequestError, match=r"7 GiB can never be granted: the quota of user .* is 6 GiB"):
        machine.client.resize(waiting.id, 7 * GIB)
    assert machine.entry(waiting).job.request.memory_bytes == 4 * GIB
    assert machine.client.resize(waiting.id, 6 * GIB).request.memory_bytes == 6 * GIB


def test_a_running_job_of_a_quota_that_was_lowered_can_be_made_smaller_and_no_larger(machine: World) -> None:
    running = machine.submit(gib=6)
    machine.until_running(running)
    set_quota(machine, 3)
    assert machine.client.resize(running.id, 5 * GIB).request.memory_bytes == 5 * GIB
    with pytest.raises(CapacityError, match="would pass the quota"):
        machine.client.resize(running.id, 6 * GIB)


def test_a_waiting_job_has_the_reason_that_its_owner_s_quota_was_lowered_below_it(machine: World) -> None:
    machine.until_running(machine.submit(gib=4))
    waiting = machine.submit(("true",), gib=4)
    set_quota(machine, 3)
    assert (
        machine.reason(waiting) == "waits for a larger quota of its owner: 4 GiB were asked for, and the quota is 3 GiB"
    )
    machine.client.resize(waiting.id, 3 * GIB)
    assert "3 GiB" in (machine.reason(waiting) or "")
    set_quota(machine, 8)
    machine.until_state(waiting, JobState.EXITED)
