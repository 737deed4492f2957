"""Whose turn it is: waits that run out, and memory that is somebody's already; on a machine of files."""

import sqlite3
import time
from collections.abc import Iterator

import pytest
from tests.system.engine_worlds import World, world

from pgpu.model import Job, JobState


@pytest.fixture
def machine() -> Iterator[World]:
    with world() as made:
        yield made


def test_a_clock_that_is_set_forward_cancels_no_waiting_job(machine: World) -> None:
    holder = machine.submit(gib=10)
    waiting = machine.submit(("true",), gib=10, timeout=600)
    machine.until_supervised(waiting)
    _write_deadline(machine, waiting, time.time() - 3600)
    machine.engine.step()
    assert machine.state(waiting) is JobState.WAITING
    machine.until_running(holder)
    machine.client.stop(holder.id, grace_seconds=1)
    assert machine.until_state(waiting, JobState.EXITED).exit_code == 0


def test_a_clock_that_is_set_back_makes_no_wait_longer(machine: World) -> None:
    machine.submit(gib=10)
    waiting = machine.submit(("true",), gib=10, timeout=2)
    machine.until_supervised(waiting)
    _write_deadline(machine, waiting, time.time() + 3600)
    assert machine.until_state(waiting, JobState.CANCELLED).wait_timed_out


def _write_deadline(machine: World, job: Job, at_seconds: float) -> None:
    """Make a job's deadline look as it would once somebody had set the clock."""
    with sqlite3.connect(machine.engine.ledger.path) as connection:
        connection.execute("UPDATE jobs SET wait_deadline = ? WHERE id = ?", (at_seconds, job.id))
    connection.close()
