"""Jobs that live on without their leases: what they hear, when they have a place again, and what outlives a crash."""

import sys
from collections.abc import Iterator

import pytest
from tests.system.engine_worlds import LONG, World, world
from tests.waiting import until

from pgpu.errors import CapacityError, RequestError
from pgpu.model import Job, JobState

HEARS = """
import pathlib, signal, sys
told = pathlib.Path(sys.argv[1])
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP, signal.SIGCONT})
told.write_text("")
while True:
    number = signal.sigwait({signal.SIGTSTP, signal.SIGCONT})
    told.write_text(told.read_text() + signal.Signals(number).name + " ")
"""


@pytest.fixture
def machine() -> Iterator[World]:
    with world((10,)) as made:
        yield made


def heard(made: World, job: Job) -> str:
    """Return the signals; the first supervisor's word to go on may have come before the job listened."""
    return (made.root / f"heard-{job.spec.name}").read_text().removeprefix("SIGCONT ")


def replica(made: World, name: str, gib: float = 8, **words: object) -> Job:
    told = made.root / f"heard-{name}"
    command = (sys.executable, "-c", HEARS, str(told))
    job = made.submit(command, gib=gib, serves="detector", parks=True, name=name, **words)  # type: ignore[arg-type]
    made.until_running(job)
    until(told.exists, lambda: made.words_of(job))
    return job


def until_parked(made: World, job: Job) -> None:
    until(lambda: made.entry(job).job.parked_at_seconds is not None, lambda: made.words_of(job))


def until_back(made: World, job: Job, times: int = 1) -> None:
    until(lambda: heard(made, job).count("SIGCONT") == times, lambda: f"{made.entry(job)}\n{made.words_of(job)}")


def test_a_lease_is_taken_and_its_job_lives_on_and_has_its_place_again_once_that_is_free(machine: World) -> None:
    idle = replica(machine, "idle")
    machine.client.offer(idle.id, 1.0)
    new = machine.submit(gib=8)
    machine.until_running(new)
    assert machine.state(idle) is JobState.RUNNING
    assert heard(machine, idle) == "SIGTSTP "
    machine.client.claim(idle.id)
    assert machine.entry(idle).job.parked_at_seconds is not None
    machine.client.cancel([new.id], grace_seconds=0)
    until_back(machine, idle)
    job = machine.entry(idle).job
    assert (job.parked_at_seconds, job.wanted_at_seconds, job.offered_value) == (None, None, None)
    with pytest.raises(CapacityError):
        machine.client.claim(new.id)


def test_two_change_places_again_and_again(machine: World) -> None:
    one, other = replica(machine, "one", 6), None
    machine.client.park(one.id)
    until_parked(machine, one)
    other = replica(machine, "other", 6)
    for turn in range(1, 4):
        for idle, wanted in ((other, one), (one, other)):
            machine.client.offer(idle.id, 1.0)
            machine.client.claim(wanted.id)
            until_back(machine, wanted, turn)
            until_parked(machine, idle)


def test_a_parked_job_leaves_nothing_behind_when_it_is_stopped(machine: World) -> None:
    idle = replica(machine, "idle")
    machine.client.park(idle.id)
    until_parked(machine, idle)
    machine.client.claim(idle.id)
    machine.client.cancel([idle.id], grace_seconds=0)
    assert machine.until_free(idle).state is JobState.EXITED
    machine.until_running(machine.submit(gib=10))


def test_whoever_looks_after_it_next_parks_it_and_brings_it_back(machine: World) -> None:
    idle = replica(machine, "idle")
    machine.client.park(idle.id)
    machine.kill_supervisor(idle)
    new = machine.submit(gib=8)
    machine.until_running(new)
    until_parked(machine, idle)
    machine.client.claim(idle.id)
    machine.kill_supervisor(idle)
    machine.client.cancel([new.id], grace_seconds=0)
    until(lambda: machine.entry(idle).job.parked_at_seconds is None)
    until(lambda: heard(machine, idle).endswith("SIGCONT "))


def test_its_own_gpu_alone_will_do() -> None:
    with world((8, 8)) as made:
        idle = replica(made, "idle")
        made.client.park(idle.id)
        until_parked(made, idle)
        jobs = [made.submit(gib=8) for _ in range(2)]
        for job in jobs:
            made.until_running(job)
        uuids = {job.id: made.entry(job).job.lease.slices[0].gpu_uuid for job in (*jobs, idle)}  # type: ignore[union-attr]
        there = next(job for job in jobs if uuids[job.id] == uuids[idle.id])
        made.client.claim(idle.id)
        made.client.cancel([job.id for job in jobs if job is not there], grace_seconds=0)
        small = made.submit(gib=8)
        made.until_running(small)  # on the other one, which was free
        assert made.entry(idle).job.parked_at_seconds is not None
        made.client.cancel([there.id], grace_seconds=0)
        until_back(made, idle)


def test_who_cannot_park_says_so(machine: World) -> None:
    plain = machine.submit(LONG, gib=4, serves="detector")
    machine.until_running(plain)
    with pytest.raises(RequestError, match="cannot be parked"):
        machine.client.park(plain.id)
