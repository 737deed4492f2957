"""The order of the queue: waits that expire, and memory that is promised to another job; on a machine of files."""

import sqlite3
import time
from collections.abc import Iterator

import pytest
from tests.system.engine_worlds import World, world
from tests.waiting import until

from pgpu.errors import CapacityError
from pgpu.model import Job, JobState
from pgpu.scheduling import OverdueReservation
from pgpu.units import GIB


@pytest.fixture
def machine() -> Iterator[World]:
    with world() as made:
        yield made


def test_a_clock_that_is_set_forward_cancels_no_waiting_job(machine: World) -> None:
    holder = machine.submit(gib=10)
    waiting = machine.submit(("true",), gib=10, timeout=600)
    machine.until_looked_at(waiting)
    _write_deadline(machine, waiting, time.time() - 3600)
    machine.engine.admissions.step()
    assert machine.state(waiting) is JobState.WAITING
    machine.until_running(holder)
    machine.client.stop(holder.id, grace_seconds=1)
    assert machine.until_state(waiting, JobState.EXITED).exit_code == 0


def test_a_clock_that_is_set_back_makes_no_wait_longer(machine: World) -> None:
    machine.submit(gib=10)
    waiting = machine.submit(("true",), gib=10, timeout=2)
    until(lambda: machine.state(waiting).is_final or machine.client.still_waits(waiting.id, timeout_seconds=0.1))
    _write_deadline(machine, waiting, time.time() + 3600)
    assert machine.until_state(waiting, JobState.CANCELLED).wait_timed_out


def test_a_job_that_grows_takes_nothing_from_one_that_waits(machine: World) -> None:
    running = machine.submit(gib=4)
    machine.until_running(running)
    waiting = machine.submit(gib=8)
    with pytest.raises(CapacityError, match=f"job {waiting.id} waits for the memory"):
        machine.client.resize(running.id, 5 * GIB)
    assert machine.entry(running).job.request.memory_bytes == 4 * GIB
    machine.client.stop(waiting.id, grace_seconds=1)
    assert machine.client.resize(running.id, 5 * GIB).request.memory_bytes == 5 * GIB


def test_a_job_grows_on_a_gpu_that_no_waiting_job_could_use() -> None:
    with world((10, 20)) as machine:
        large, small = machine.submit(gib=20), machine.submit(gib=4)
        machine.until_running(small)
        machine.until_running(large)
        machine.submit(gib=15)
        assert machine.client.resize(small.id, 5 * GIB).request.memory_bytes == 5 * GIB


def test_a_waiting_job_that_asks_for_more_starts_once_that_fits(machine: World) -> None:
    running = machine.submit(gib=8)
    waiting = machine.submit(("true",), gib=4)
    assert machine.client.resize(waiting.id, 9 * GIB).request.memory_bytes == 9 * GIB
    machine.until_running(running)
    machine.client.stop(running.id, grace_seconds=1)
    lease = machine.until_state(waiting, JobState.EXITED).lease
    assert lease is not None
    assert lease.slices[0].memory_bytes == 9 * GIB


def _write_deadline(machine: World, job: Job, at_seconds: float) -> None:
    """Change a job's deadline as if the wall clock had been set."""
    _write(machine, job, "wait_deadline", at_seconds)


def _write(machine: World, job: Job, column: str, at_seconds: float) -> None:
    with sqlite3.connect(machine.engine.ledger.path) as connection:
        connection.execute(f"UPDATE jobs SET {column} = ? WHERE id = ?", (at_seconds, job.id))
    connection.close()


def _reservation(machine: World) -> OverdueReservation | None:
    with machine.engine.ledger.view() as view:
        return view.precedence("fake").reservation


def _gpu_of(machine: World, job: Job) -> str:
    lease = machine.entry(job).job.lease
    assert lease is not None
    return lease.slices[0].gpu_uuid


def test_gpus_that_are_kept_for_an_overdue_job_outlive_the_agent() -> None:
    with world((10, 10)) as machine:
        holders = [machine.submit(gib=6), machine.submit(gib=6)]
        for holder in holders:
            machine.until_running(holder)
        large = machine.submit(gib=9)
        _write(machine, large, "created_at", time.time() - 3600)
        machine.engine.admissions.step()
        small = machine.submit(gib=3)  # Fits on the GPU that is not reserved, and not on the other one.
        machine.until_running(small)
        waiting = machine.submit(gib=3)
        machine.until_looked_at(waiting)
        claim = _reservation(machine)
        assert claim is not None
        assert claim.job_id == large.id
        assert _gpu_of(machine, small) not in claim.gpu_uuids
        machine.kill_agent()
        machine.engine.admissions.step()
        assert _reservation(machine) == claim
        on_gpu = f" on GPU {claim.gpu_uuids[0][-1]}"
        assert (
            machine.reason(waiting)
            == f"waits its turn: the memory that is free{on_gpu} is kept for job {large.id}; 1 job ahead"
        )
        assert (machine.reason(large) or "").endswith(f"; what becomes free{on_gpu} is kept for it")
