"""What the driver holds beside the meter is charged to a slice as long as it holds it, and no longer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from tests.fakes.machine import make_machine

from pgpu.engine.supervisor.watch import Watch
from pgpu.model import Job, JobSpec, JobState, Lease, Request, Slice
from pgpu.runtimes import RunningJob
from pgpu.units import GIB, MIB

_ID = "0123456789ab"
_LEASE = Lease(_ID, (Slice("GPU-0", 2 * GIB),), 0.0)
_JOB = Job(_ID, JobSpec(("true",), "process"), Request(2 * GIB), JobState.RUNNING, 0.0, lease=_LEASE)


class Everybody:
    """A job to which every process belongs."""

    def owns(self, _pid: int) -> bool:
        return True


class Machine:
    """One running job, and what meter and driver tell of it from look to look."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._slice = root / "slices" / _ID
        self._engine = make_machine(root, [10 * GIB])
        self._slice.mkdir(parents=True)
        self._watch = Watch(self._engine)

    def overhead_after(self, *looks_mib: tuple[int, int]) -> int:
        """Look once for each pair of what the meter and the driver count; return the overhead in MiB."""
        overhead = self._slice / "overhead-GPU-0"
        for metered_mib, driver_mib in looks_mib:
            (self._slice / "used").write_text(str(metered_mib * MIB))
            told = [(1, driver_mib * MIB)] if driver_mib else []
            (self._root / "processes-GPU-0.json").write_text(json.dumps(told))
            self._watch.look(_JOB, cast("RunningJob", Everybody()))
        return int(overhead.read_text()) // MIB if overhead.exists() else 0

    def close(self) -> None:
        self._engine.ledger.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.close()


def test_a_difference_that_two_looks_show_is_charged_once(machine: Machine) -> None:
    assert machine.overhead_after((500, 700)) == 0
    assert machine.overhead_after(*[(500, 700)] * 5) == 200


def test_a_difference_that_one_look_shows_is_an_allocation_under_way(machine: Machine) -> None:
    assert machine.overhead_after((500, 700), (700, 700), (700, 700)) == 0


def test_what_a_jobs_last_process_left_is_not_charged_to_its_next(machine: Machine) -> None:
    assert machine.overhead_after(*[(500, 700)] * 3) == 200
    assert machine.overhead_after((0, 0)) == 0
    assert machine.overhead_after((500, 500)) == 0


def test_overhead_that_shrinks_is_given_back(machine: Machine) -> None:
    assert machine.overhead_after(*[(500, 700)] * 3) == 200
    assert machine.overhead_after(*[(500, 550)] * 3) == 50


def test_what_is_held_past_the_meter_alone_is_charged_as_it_is(machine: Machine) -> None:
    assert machine.overhead_after(*[(500, 700)] * 3) == 200
    assert machine.overhead_after(*[(0, 100)] * 5) == 100
