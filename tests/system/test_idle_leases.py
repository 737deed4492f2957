"""Leases that idle jobs offer: whom they make room for, how soon, what a claim is worth, and what outlives a crash."""

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.system.engine_worlds import LONG, World, another, world
from tests.waiting import until

from pgpu.errors import CapacityError
from pgpu.model import Job, JobState
from pgpu.structs import replace

STUBBORN = ("bash", "-c", 'trap "" TERM; while :; do read -t 600 <> <(:); done')
"""A program that does not go when it is asked."""


@pytest.fixture
def machine() -> Iterator[World]:
    with world((10,)) as made:
        yield made


def replica(made: World, value: float | None, command: tuple[str, ...] = LONG, **words: object) -> Job:
    job = made.submit(command, serves="detector", **words)  # type: ignore[arg-type]
    made.until_running(job)
    return job if value is None else made.client.offer(job.id, value)


def test_the_cheapest_for_each_byte_makes_room_and_the_job_starts_once_it_is_free(machine: World) -> None:
    dear, cheap = replica(machine, 8.0), replica(machine, 1.0)
    new = machine.submit(gib=5)
    machine.until_running(new)
    ended = machine.until_free(cheap)
    assert (ended.state, ended.exit_code) == (JobState.EXITED, 143)
    released_at_seconds = machine.entry(cheap).lease_released_at_seconds
    started_at_seconds = machine.entry(new).job.started_at_seconds
    assert released_at_seconds is not None
    assert started_at_seconds is not None
    assert released_at_seconds <= started_at_seconds
    assert machine.entry(dear).job.is_offered


def test_who_does_not_go_when_asked_is_ended_all_the_same(machine: World) -> None:
    idle = replica(machine, 0.0, STUBBORN, gib=8)
    new = machine.submit(gib=8)
    until(lambda: idle.id in (machine.entry(new).job.reason or ""))
    machine.until_running(new)
    assert machine.until_free(idle).exit_code == 137


def test_an_offer_makes_room_for_who_waits_already_and_one_at_a_time(machine: World) -> None:
    idle = [replica(machine, None) for _ in range(2)]
    jobs = [machine.submit(gib=5) for _ in range(2)]
    until(lambda: all("waits for" in (machine.reason(job) or "") for job in jobs))
    machine.client.offer(idle[0].id, 5.0)
    first = machine.until_one_of(jobs, JobState.RUNNING)
    assert machine.state(idle[1]) is JobState.RUNNING
    machine.client.offer(idle[1].id, 5.0)
    for job in jobs:
        machine.until_running(job)
    assert first.id in {job.id for job in jobs}


def test_a_lower_priority_waits_and_a_claimed_lease_stays(machine: World) -> None:
    idle = replica(machine, 0.0, gib=8)
    low = machine.submit(gib=8, priority=-1)
    until(lambda: "waits for" in (machine.reason(low) or ""))
    [queued] = machine.client.queue()
    assert "1 lease is idle (offered) and would not help" in (queued.job.reason or "")
    machine.client.claim(idle.id)
    equal = machine.submit(gib=8)
    until(lambda: "waits for" in (machine.reason(equal) or ""))
    assert machine.state(idle) is JobState.RUNNING
    machine.client.offer(idle.id, 0.0)
    machine.until_running(equal)
    assert machine.state(low) is JobState.WAITING


def test_of_claim_and_taking_exactly_one_comes_first(machine: World) -> None:
    """Again and again, from two processes' engines at one moment."""
    beside, outcomes = another(machine), set()
    for _ in range(8):
        idle = replica(machine, 1.0, gib=8)
        gate, kept = threading.Barrier(2), threading.Event()

        def claim(job_id: str = idle.id, gate: threading.Barrier = gate, kept: threading.Event = kept) -> None:
            gate.wait()
            with suppress(CapacityError):
                beside.claim(job_id)
                kept.set()

        thread = threading.Thread(target=claim)
        thread.start()
        gate.wait()
        new = machine.submit(gib=8)
        thread.join()
        outcomes.add(kept.is_set())
        if kept.is_set():
            until(lambda job=new: "waits for" in (machine.reason(job) or ""))  # type: ignore[misc]
            assert machine.entry(idle).job.reclaimed_at_seconds is None
            assert machine.state(idle) is JobState.RUNNING
        else:
            machine.until_running(new)
            assert machine.state(idle) is JobState.EXITED
        machine.client.cancel([new.id, idle.id], grace_seconds=0)
    assert outcomes  # either may come first; both do on a machine with two cores


def test_a_supervisor_that_dies_over_it_is_replaced_and_the_room_is_made(machine: World) -> None:
    idle = replica(machine, 0.0, STUBBORN, gib=8)
    new = machine.submit(gib=8)
    machine.kill_supervisor(idle)
    machine.until_running(new)
    assert not machine.entry(idle).is_live


def test_who_never_leaves_gets_its_memory_back_and_the_other_waits_again(machine: World) -> None:
    """A process that the kernel cannot end, told by a supervisor that stands still."""
    idle = replica(machine, 0.0, gib=8)
    with machine.engine.ledger.decision() as decision:  # taken long ago, and still there
        entry = decision.entry(idle.id)
        decision.put(replace(entry, job=replace(entry.job, reclaimed_at_seconds=1.0)))
    new = machine.submit(gib=8)
    until(lambda: "waits for" in (machine.reason(new) or ""))
    small = machine.submit(gib=1)
    machine.until_running(small)
    with pytest.raises(CapacityError):
        machine.client.claim(idle.id)


def test_a_replica_without_a_gpu_makes_room_for_a_job_without_one() -> None:
    with world((), jobs_without_gpu=2) as made:
        kept, given = replica(made, 2.0, gib=0, count=0), replica(made, 1.0, gib=0, count=0)
        assert made.client.wait(made.submit(("true",), gib=0, count=0).id).exit_code == 0
        assert made.until_free(given).reclaimed_at_seconds is not None
        assert made.state(kept) is JobState.RUNNING
