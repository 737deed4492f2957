"""A queue with the goal to end soonest: its agent plans it, and every round follows the plan; on a machine of files."""

from collections.abc import Sequence

import pytest
from tests.system.engine_worlds import World, world
from tests.waiting import until

from pgpu.engine.admission.queue_plan import read_plan
from pgpu.engine.settings import agent_paths
from pgpu.model import Job, JobState
from pgpu.scheduling.order import NO_PLAN, BatchPlan

SIZES_GIB = (3.0, 4.0, 6.0, 7.0)
"""Smallest first, three of them run one after the other; in pairs all of them run in two steps."""


def test_jobs_that_should_all_end_soonest_start_in_the_pairs_that_fill_the_gpu() -> None:
    with world((10,), objective="makespan") as machine:
        holder, jobs = waiting_behind_one(machine)
        until(lambda: len(plan_of(machine).order) == len(jobs))
        machine.client.stop(holder.id, grace_seconds=1)
        until(lambda: len(running(machine, jobs)) == 2)
        assert sum(size for size, job in zip(SIZES_GIB, jobs, strict=True) if job in running(machine, jobs)) == 10


def test_jobs_that_should_each_end_soon_have_no_plan_even_if_one_lies_there() -> None:
    with world((10,)) as machine:
        path = agent_paths(machine.engine.settings, "fake").plan
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('[["nobody"], 1, {}]', "utf-8")
        holder, jobs = waiting_behind_one(machine)
        machine.until_looked_at(jobs[0])
        until(lambda: not path.exists())
        machine.client.stop(holder.id, grace_seconds=1)
        machine.until_running(jobs[0])
        machine.until_running(jobs[1])


@pytest.mark.parametrize("text", ["", "{", "[]", '["a"]', "[1, 2, 3]", "null"])
def test_a_plan_that_cannot_be_read_is_none(text: str) -> None:
    with world((10,)) as machine:
        path = agent_paths(machine.engine.settings, "fake").plan
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        assert plan_of(machine) == NO_PLAN


def waiting_behind_one(machine: World) -> tuple[Job, list[Job]]:
    holder = machine.submit(gib=10)
    machine.until_running(holder)
    return holder, [machine.submit(gib=size) for size in SIZES_GIB]


def running(machine: World, jobs: Sequence[Job]) -> list[Job]:
    return [job for job in jobs if machine.state(job) is JobState.RUNNING]


def plan_of(machine: World) -> BatchPlan:
    return read_plan(agent_paths(machine.engine.settings, "fake").plan)


def test_history_has_how_many_jobs_a_gpu_had_while_each_ran() -> None:
    with world((10,)) as machine:
        command = ("sh", "-c", f"while [ ! -e {machine.root}/go ]; do sleep 0.05; done")
        jobs = [machine.submit(command) for _ in range(2)]
        for job in jobs:
            machine.until_running(job)
        (machine.root / "go").touch()
        ended = [machine.until_free(job) for job in jobs]
        machine.until_free(machine.submit(command))
        with machine.engine.ledger.view() as view:
            alone, *beside = view.history.colocated_runs(
                (ended[0].signature, ended[0].owner_uid), ["simulated Fake"], 10
            )
    assert alone[1] == pytest.approx(1)
    assert all(1 < together <= 2 for _, together in beside)
    assert len(beside) == len(jobs)
