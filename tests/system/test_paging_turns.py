"""Jobs that hold more than their GPU has take turns, whoever of their supervisors is killed, on a machine of files."""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.engine_worlds import World, kill, world
from tests.waiting import until

from pgpu.engine.leases.recovery import recover
from pgpu.engine.watch.turn_arbiter import load_turns, turn_paths
from pgpu.errors import RequestError
from pgpu.model import Job, JobState, ProcessHolder, Request
from pgpu.scheduling.gpu_turns import TurnState
from pgpu.units import GIB

GPU = "GPU-0"
WORKS = """
import json, os, sys, time
home = os.environ["FAKE_SLICE"]
with open(f"{home}/used", "w") as file:
    file.write(sys.argv[1])
held, ran = f"{home}/held-GPU-0", open(sys.argv[2] + "/" + os.path.basename(home), "a", buffering=1)
while True:
    is_held = os.path.exists(held) and open(held).read() != "0"
    now = time.monotonic_ns()
    with open(f"{home}/board.new", "w") as file:
        json.dump([now, 0 if is_held else now], file)
    os.rename(f"{home}/board.new", f"{home}/board")
    if not is_held:
        ran.write(f"{now}\\n")
    time.sleep(0.005)
"""
"""Uses the GPU whenever it may."""


@pytest.fixture
def machine() -> Iterator[World]:
    rules = {"least_seconds": 0.3, "most_seconds": 0.5, "drain_seconds": 2.0}
    with world([2], turns=rules) as made:
        (made.root / "ran").mkdir()
        yield made


def start(machine: World, gib: float = 1.5, priority: int = 0, **words: object) -> Job:
    command = (sys.executable, "-c", WORKS, str(int(gib * GIB)), str(machine.root / "ran"))
    job = machine.submit(command, gib=gib, oversubscribes=True, priority=priority, **words)  # type: ignore[arg-type]
    return machine.until_running(job)


def runs(machine: World, job: Job) -> list[int]:
    """When the job used the GPU, in nanoseconds."""
    path = machine.root / "ran" / job.id
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def until_it_runs_again(machine: World, job: Job) -> None:
    before = len(runs(machine, job))
    until(lambda: len(runs(machine, job)) > before)


def turn(machine: World) -> TurnState | None:
    turns = load_turns(turn_paths(machine.engine.settings, GPU).state)
    return turns if turns.is_on else None


def until_turn_of(machine: World, job: Job) -> None:
    until(lambda: (now := turn(machine)) is not None and now.holders == (job.id,), lambda: turn(machine))


def is_held(machine: World, job: Job) -> bool:
    path: Path = machine.root / "slices" / job.id / f"held-{GPU}"
    return path.exists() and path.read_text() != "0"


def test_jobs_that_fit_run_without_turns(machine: World) -> None:
    first, second = start(machine, gib=1.0), start(machine, gib=1.0)
    for job in (first, second, first, second):
        until_it_runs_again(machine, job)
    assert turn(machine) is None
    assert not is_held(machine, first)


def test_jobs_that_do_not_fit_run_one_after_the_other(machine: World) -> None:
    first, second = start(machine), start(machine)
    for job in (first, second, first, second):
        until_turn_of(machine, job)
        until_it_runs_again(machine, job)
    now = turn(machine)
    assert now is not None
    assert not now.holders or now.until_seconds - now.since_seconds <= 0.51
    times = sorted([(at, "a") for at in runs(machine, first)] + [(at, "b") for at in runs(machine, second)])
    begun = min(at for at, who in times if who == "b")
    stretches = [len(list(group)) for _, group in itertools.groupby(who for at, who in times if at > begun + 1e9)]
    assert len(stretches) >= 3
    assert sum(stretches) / len(stretches) > 5  # Who runs without turns uses the GPU in between each time.


def test_who_is_alone_again_is_let_go_on(machine: World) -> None:
    first, second = start(machine), start(machine)
    until_turn_of(machine, second)
    machine.client.stop(second.id, grace_seconds=1.0)
    machine.until_free(second)
    until(lambda: not is_held(machine, first))
    until_it_runs_again(machine, first)
    until(lambda: turn(machine) is None)


@pytest.mark.soak
@pytest.mark.parametrize("killed", [0, 1])
def test_turns_go_on_when_a_supervisor_is_killed(machine: World, killed: int) -> None:
    jobs = [start(machine), start(machine)]
    for job in jobs:
        until_turn_of(machine, job)
    kill(machine.until_supervised(jobs[killed]))
    for job in (*jobs, *jobs):
        until_turn_of(machine, job)
        until_it_runs_again(machine, job)


def test_whom_a_killed_holder_kept_waiting_goes_on(machine: World) -> None:
    first, second = start(machine), start(machine)
    until_turn_of(machine, first)
    holder = machine.entry(first).job.holder
    assert isinstance(holder, ProcessHolder)
    machine.kill_supervisor(first)
    kill(holder)
    recover(machine.engine)
    until_it_runs_again(machine, second)
    until(lambda: not is_held(machine, second))


def test_nobody_stays_held_when_every_supervisor_was_killed(machine: World) -> None:
    jobs = [start(machine), start(machine)]
    until_turn_of(machine, jobs[0])
    for job in jobs:
        machine.kill_supervisor(job)
    until(lambda: any(is_held(machine, job) for job in jobs))
    recover(machine.engine)
    for job in (*jobs, *jobs):
        until_it_runs_again(machine, job)


def test_a_job_that_does_not_oversubscribe_keeps_all_of_its_slice(machine: World) -> None:
    start(machine, gib=1.5)
    waiting = machine.submit(gib=1.5)
    until(lambda: machine.reason(waiting) is not None)
    assert machine.state(waiting) is JobState.WAITING
    granted = machine.until_running(machine.submit(gib=0.9))
    assert granted.lease is not None
    assert granted.lease.slices[0].resident_bytes is None


def test_a_slice_that_oversubscribes_says_what_is_surely_the_device_s(machine: World) -> None:
    job = start(machine, gib=1.5)
    assert job.lease is not None
    assert [(part.memory_bytes, part.device_bytes) for part in job.lease.slices] == [(1.5 * GIB, GIB)]
    assert job.request.memory_bytes == 1.5 * GIB


def test_a_third_that_fits_by_no_factor_waits_for_the_gpu(machine: World) -> None:
    start(machine), start(machine)
    third = machine.submit(gib=1.5, oversubscribes=True)
    until(lambda: machine.reason(third) is not None)
    assert machine.state(third) is JobState.WAITING


def test_its_size_stays_what_the_host_was_asked_for(machine: World) -> None:
    job = start(machine, gib=1.0)
    with pytest.raises(RequestError, match="keeps the size"):
        machine.client.resize(job.id, 2 * GIB)
    machine.client.resize(job.id, GIB)


def test_oversubscription_can_be_switched_off() -> None:
    with world([2], oversubscription=1.0) as made, pytest.raises(RequestError, match="switched off"):
        made.engine.check_amount(made.engine.gpus.gpus(), Request(GIB, oversubscribes=True))


def test_who_needs_more_of_the_host_than_it_has_waits_and_says_so(machine: World) -> None:
    with machine.engine.deciding() as decision:
        decision.close_gpu(GPU, 0.0)
    job = machine.submit(gib=1.5, oversubscribes=True)
    machine.engine.rounds.host_memory = lambda: GIB // 4
    assert (
        machine.engine.admissions.outlook().reason(job.id)
        == "waits for host memory: 512 MiB of it may have to lie there, and 256 MiB are left"
    )
    machine.engine.rounds.host_memory = lambda: GIB
    assert "host memory" not in (machine.engine.admissions.outlook().reason(job.id) or "")
