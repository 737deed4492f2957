"""Jobs that live on without their leases: what they hear, when they have a place again, and what outlives a crash."""

import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import pytest
from tests.system.engine_worlds import LONG, World, kill, world
from tests.system.test_paging_turns import start
from tests.waiting import until

from pgpu.engine.leases.departure import Departure
from pgpu.engine.supervisor.aside import CAME_BACK, Aside
from pgpu.errors import CapacityError, RequestError
from pgpu.model import Job, JobState
from pgpu.structs import replace

HEARS = """
import pathlib, signal, sys
told = pathlib.Path(sys.argv[1])
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP, signal.SIGCONT})
told.write_text("")
while True:
    number = signal.sigwait({signal.SIGTSTP, signal.SIGCONT})
    told.write_text(told.read_text() + signal.Signals(number).name + " ")
"""

STAYS = "import fcntl, os; held = open(os.environ['FAKE_SLICE'] + '/held'); fcntl.flock(held, fcntl.LOCK_SH)" + HEARS

COMES_BACK = """
import json, os, pathlib, signal, sys
told = pathlib.Path(sys.argv[1])
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP, signal.SIGUSR1})
told.write_text("")
signal.sigwait({signal.SIGUSR1})
while True:
    child = os.fork()
    if not child:
        signal.pause()
    written = told.with_suffix(".new")
    written.write_text(json.dumps([[child, 1 << 30]]))
    written.rename(pathlib.Path(os.environ["FAKE_SLICE"]).parent.parent / "processes-GPU-0.json")
    os.waitpid(child, 0)
"""


@pytest.fixture
def machine() -> Iterator[World]:
    with world((10,)) as made:
        yield made


def heard(made: World, job: Job) -> str:
    """Return the signals; the first supervisor's word to go on may have come before the job listened."""
    return (made.root / f"heard-{job.spec.name}").read_text().removeprefix("SIGCONT ")


def replica(made: World, name: str, gib: float = 8, program: str = HEARS, **words: object) -> Job:
    told = made.root / f"heard-{name}"
    command = (sys.executable, "-c", program, str(told))
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
    assert machine.client.gpus()[0].jobs == (new.id,)
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


def test_its_own_gpu_alone_will_do_and_where_another_has_room_it_ends_to_begin_anew_there() -> None:
    with world((8, 8)) as made:
        idle = replica(made, "idle")
        made.client.park(idle.id)
        until_parked(made, idle)
        jobs = {gpu_of(made, job): job for job in [made.submit(gib=8) for _ in range(2)]}
        own = gpu_of(made, idle)
        made.client.claim(idle.id)
        made.client.cancel([jobs.pop(own).id], grace_seconds=0)
        until_back(made, idle)
        assert gpu_of(made, idle) == own
        made.client.park(idle.id)
        until_parked(made, idle)
        made.until_running(made.submit(gib=8))
        made.client.claim(idle.id)
        assert made.entry(idle).stop_grace_seconds is None
        made.client.cancel([job.id for job in jobs.values()], grace_seconds=0)
        assert made.until_free(idle).state is JobState.EXITED
        made.until_running(made.submit(gib=8))  # where it would have begun anew


def gpu_of(made: World, job: Job) -> str:
    """Return the one that a job has, once it has one."""
    until(lambda: made.entry(job).job.lease is not None)
    lease = made.entry(job).job.lease
    assert lease is not None
    return lease.slices[0].gpu_uuid


def test_who_cannot_park_says_so(machine: World) -> None:
    plain = machine.submit(LONG, gib=4, serves="detector")
    machine.until_running(plain)
    with pytest.raises(RequestError, match="cannot be parked"):
        machine.client.park(plain.id)


def test_who_is_suspended_is_not_parked_too() -> None:
    with world([2]) as made:
        (made.root / "ran").mkdir()
        victim = start(made, gib=1.9, serves="detector", parks=True)
        urgent = made.submit(gib=1.5, priority=50, preempts=True)
        until(lambda: made.entry(victim).job.suspended_by == urgent.id)
        with pytest.raises(CapacityError, match="suspended"):
            made.client.park(victim.id)
        made.until_running(urgent)


def test_who_could_not_be_told_is_told_again(machine: World) -> None:
    idle = replica(machine, "idle")
    told: list[int] = []

    def tell(number: int) -> bool:
        told.append(number)
        return len(told) % 2 == 0

    aside = Aside(machine.engine, nobodys(machine, idle), tell, lambda: None)
    for _ in range(3):
        assert not aside.is_coming_back(machine.entry(idle).job)
    assert told == [signal.SIGCONT] * 2
    taken = replace(machine.entry(idle).job, reclaimed_at_seconds=time.time())
    aside.leave(taken)
    assert told[2:] == [signal.SIGTSTP]
    assert machine.entry(idle).job.parked_at_seconds is None


def test_who_does_not_leave_is_stopped(machine: World) -> None:
    idle = replica(machine, "idle", program=STAYS)
    machine.client.park(idle.id)
    aside = Aside(machine.engine, nobodys(machine, idle), lambda _: True, lambda: None, patience_seconds=0)

    def is_given_up() -> bool:
        aside.leave(machine.entry(idle).job)
        return aside.stop_reason is not None

    until(is_given_up)
    assert machine.until_free(idle).state is JobState.EXITED
    machine.until_running(machine.submit(gib=10))


def nobodys(machine: World, job: Job) -> Departure:
    """Have none of the job's processes found."""
    return Departure(machine.engine, job.id, lambda _: False)


def test_who_comes_back_to_its_gpu_while_it_is_parked_is_ended_again_and_again_and_then_the_whole_job(
    machine: World,
) -> None:
    idle = replica(machine, "idle", program=COMES_BACK)
    machine.client.park(idle.id)
    until_parked(machine, idle)
    machine.client.signal(idle.id, signal.SIGUSR1)
    ended = machine.until_free(idle)
    assert (ended.state, ended.warning) == (JobState.EXITED, CAME_BACK)


def kill_its_supervisor(machine: World, job: Job) -> None:
    machine.kill_supervisor(job)
    machine.client.jobs(include_final=False)  # whoever comes by gives it another one


def kill_the_agent(machine: World, _job: Job) -> None:
    if (keeper := machine.engine.agents.process("fake")) is not None:
        kill(keeper)


ACTS: tuple[Callable[[World, Job], object], ...] = (
    lambda machine, job: machine.client.park(job.id),
    lambda machine, job: machine.client.claim(job.id),
    lambda machine, job: machine.client.offer(job.id, 1.0),
    kill_its_supervisor,
    kill_the_agent,
)


@pytest.mark.soak
def test_whatever_dies_and_whoever_asks_nobody_has_more_than_there_is_and_all_come_back(machine: World) -> None:
    chance = random.Random(5)
    jobs = [replica(machine, "0", 6)]
    for number in (1, 2):
        machine.client.park(jobs[-1].id)
        until_parked(machine, jobs[-1])
        jobs.append(replica(machine, str(number), 6))
    for _ in range(60):
        with suppress(CapacityError):
            chance.choice(ACTS)(machine, chance.choice(jobs))
        with machine.engine.ledger.view() as view:
            counted = [entry for entry in view.holding() if entry.is_counted and entry.job.reclaimed_at_seconds is None]
        assert len(counted) <= 1, counted
    for job in jobs:
        machine.client.claim(job.id)
        others = [other for other in jobs if other is not job]
        until(lambda job=job, others=others: has_its_place(machine, job, others))  # type: ignore[misc]
    assert {machine.state(job) for job in jobs} == {JobState.RUNNING}


def has_its_place(machine: World, job: Job, others: Sequence[Job]) -> bool:
    """Whether a job has a lease; whoever else got one meanwhile, as it asked before, makes room."""
    for other in others:
        with suppress(CapacityError):
            machine.client.offer(other.id, 0.0)
    machine.client.jobs(include_final=False)
    return not machine.entry(job).job.is_aside
