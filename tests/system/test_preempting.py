"""A job of a higher priority takes the place of running ones, which stand still until it has ended, whoever is killed."""

import os
import signal
from collections.abc import Iterator

import pytest
from tests.system.engine_worlds import LONG, World, kill, world
from tests.system.test_paging_turns import is_held, runs, start, until_it_runs_again
from tests.waiting import until

from pgpu.enforcement.compute_word import Hold
from pgpu.engine.leases.recovery import recover
from pgpu.errors import RequestError
from pgpu.model import Job, JobState, ProcessHolder, Request, SharingWish
from pgpu.units import GIB


@pytest.fixture
def machine() -> Iterator[World]:
    with world([2]) as made:
        (made.root / "ran").mkdir()
        yield made


def preempt(machine: World, gib: float = 0.9, priority: int = 50) -> Job:
    return machine.submit(LONG, gib=gib, priority=priority, preempts=True)


def until_suspended(machine: World, job: Job, by: Job) -> None:
    until(lambda: machine.entry(job).job.suspended_by == by.id)
    until(lambda: is_held(machine, job))


def end(machine: World, job: Job) -> None:
    machine.client.stop(job.id, grace_seconds=1.0)
    machine.until_free(job)


def test_the_youngest_of_the_lowest_makes_room_and_goes_on_afterwards(machine: World) -> None:
    old, young = start(machine, gib=1.4), start(machine, gib=1.4)
    urgent = preempt(machine)
    machine.until_running(urgent)
    assert is_held(machine, young)
    until_suspended(machine, young, by=urgent)
    before = len(runs(machine, young))
    until_it_runs_again(machine, old)
    assert machine.entry(old).job.suspended_by is None
    assert machine.state(young) is JobState.RUNNING
    assert len(runs(machine, young)) <= before + 1
    end(machine, urgent)
    until_it_runs_again(machine, young)
    resumed = machine.entry(young).job
    assert resumed.suspended_by is None
    assert resumed.resumed_at_seconds is not None


def test_nobody_else_gets_what_was_left_to_the_preemptor(machine: World) -> None:
    victim, urgent = start(machine, gib=1.9), preempt(machine, gib=1.5)
    machine.until_running(urgent)
    until_suspended(machine, victim, by=urgent)
    late = machine.submit(LONG, gib=0.6)
    until(lambda: machine.reason(late) is not None)
    assert machine.state(late) is JobState.WAITING
    end(machine, urgent)
    until_it_runs_again(machine, victim)
    machine.until_running(late)


def test_a_job_whose_memory_cannot_be_moved_makes_no_room(machine: World) -> None:
    machine.until_running(machine.submit(LONG, gib=1.9))
    urgent = preempt(machine)
    until(lambda: machine.reason(urgent) is not None)
    assert machine.state(urgent) is JobState.WAITING


def test_who_did_not_ask_for_that_waits(machine: World) -> None:
    victim = start(machine, gib=1.9)
    waiting = machine.submit(LONG, gib=0.9, priority=50)
    until(lambda: machine.reason(waiting) is not None)
    assert machine.entry(victim).job.suspended_by is None


def test_a_suspended_job_whose_supervisor_is_killed_stays_suspended_and_goes_on_in_the_end(machine: World) -> None:
    victim, urgent = start(machine, gib=1.9), preempt(machine, gib=1.5)
    until_suspended(machine, victim, by=machine.until_running(urgent))
    kill(machine.until_supervised(victim))
    recover(machine.engine)
    machine.until_supervised(victim)
    assert is_held(machine, victim)
    end(machine, urgent)
    until_it_runs_again(machine, victim)
    until(lambda: not is_held(machine, victim))


def test_a_suspended_job_goes_on_where_turns_are_switched_off() -> None:
    with world([2], has_turns=False) as machine:
        (machine.root / "ran").mkdir()
        victim, urgent = start(machine, gib=1.9), preempt(machine, gib=1.5)
        machine.until_running(urgent)
        until_suspended(machine, victim, by=urgent)
        end(machine, urgent)
        until(lambda: not is_held(machine, victim))
        until_it_runs_again(machine, victim)


def test_who_was_held_by_turns_goes_on_once_they_are_switched_off() -> None:
    with world([2], has_turns=False) as machine:
        (machine.root / "ran").mkdir()
        job = start(machine, gib=1.0)
        lease = machine.entry(job).job.lease
        assert lease is not None
        machine.engine.enforcer.hold(lease, "GPU-0", Hold.TURNS, is_held=True)
        until(lambda: not is_held(machine, job))


def test_everybody_killed_at_once_leaves_nobody_suspended(machine: World) -> None:
    victim, urgent = start(machine, gib=1.9), preempt(machine, gib=1.5)
    until_suspended(machine, victim, by=machine.until_running(urgent))
    holder = machine.entry(urgent).job.holder
    assert isinstance(holder, ProcessHolder)
    supervisors = [machine.until_supervised(job) for job in (victim, urgent)]
    for each in supervisors:
        os.kill(each.pid, signal.SIGSTOP)  # so that none begins to replace another and is killed over it
    for each in (*supervisors, holder):
        kill(each)
    recover(machine.engine)
    until_it_runs_again(machine, victim)


@pytest.mark.parametrize(
    "request_", [Request(GIB, 2, preempts=True), Request(GIB, sharing=SharingWish.EXCLUSIVE, preempts=True)]
)
def test_who_could_suspend_nobody_is_told(machine: World, request_: Request) -> None:
    with pytest.raises(RequestError, match="--preempt"):
        machine.engine.check_amount([*machine.engine.gpus.gpus()] * 2, request_)
