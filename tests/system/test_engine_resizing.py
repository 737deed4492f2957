"""A resize that fails at any step leaves limit and ledger as they were, and never a job with more than its ledger entry."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest
from tests.fakes.machine import FileEnforcer
from tests.system.engine_worlds import LONG, World, world

from pgpu.enforcement.compute_word import ComputeWord
from pgpu.engine.leases.lease_resize import follow_compute, resize
from pgpu.errors import EnforcementError, LedgerError
from pgpu.ledger import Decision, Ledger
from pgpu.model import Job, JobSpec, Lease, Request, Resize
from pgpu.units import GIB


@pytest.fixture
def machine() -> Iterator[World]:
    with world((10,)) as made:
        yield made


@pytest.fixture
def job(machine: World) -> Job:
    """A running job with 2 GiB and half of the time."""
    spec = JobSpec(LONG, "process", working_directory="/")
    made = machine.client.submit(spec, Request(2 * GIB, 1, 0.5), wait_timeout_seconds=None)
    return machine.until_running(made)


def bound(machine: World, job: Job) -> tuple[int, float]:
    """Return memory and share of the limit file."""
    lease = machine.entry(job).job.lease
    assert lease is not None
    words = FileEnforcer(machine.root).words(lease)
    return int((machine.root / "slices" / job.id / "limit").read_text()), words[0].share


def in_ledger(machine: World, job: Job) -> tuple[int, float | None]:
    """Return memory and share of the ledger, which are equal in request and slice."""
    now = machine.entry(job).job
    assert now.lease is not None
    [part] = now.lease.slices
    assert (part.memory_bytes, part.compute_share) == (now.request.memory_bytes, now.request.compute_share)
    return part.memory_bytes, part.compute_share


class FullDisk:
    """A ledger that rolls back each transaction."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    @contextmanager
    def decision(self) -> Iterator[Decision]:
        with self._ledger.decision() as decision:
            yield decision
            raise LedgerError("the disk is full")


@pytest.mark.parametrize("change", [Resize(GIB, 0.5), Resize(2 * GIB, 0.2), Resize(4 * GIB, 0.2), Resize(GIB, 0.8)])
def test_a_resize_that_the_ledger_does_not_commit_binds_no_limit(machine: World, job: Job, change: Resize) -> None:
    ledger = machine.engine.ledger
    machine.engine.ledger = cast("Ledger", FullDisk(ledger))
    try:
        with pytest.raises(LedgerError, match="full"):
            resize(machine.engine, job.id, change)
    finally:
        machine.engine.ledger = ledger
    assert bound(machine, job) == in_ledger(machine, job) == (2 * GIB, 0.5)


class Watching(FileEnforcer):
    """Records the ledger at each write of a limit, and refuses slices of 5 GiB; before larger ones another resize runs."""

    def __init__(self, machine: World, job: Job) -> None:
        super().__init__(machine.root)
        self.machine, self.job = machine, job
        self.seen: list[tuple[object, object]] = []
        self.rival: Resize | None = None

    def resize(self, lease: Lease, memory_bytes: int) -> None:
        self.seen.append((memory_bytes, in_ledger(self.machine, self.job)[0]))
        if memory_bytes < 4 * GIB:
            super().resize(lease, memory_bytes)
            return
        if self.rival is not None:
            rival, self.rival = self.rival, None
            self.machine.client.resize(self.job.id, rival.memory_bytes, compute_share=rival.compute_share)
        if memory_bytes == 5 * GIB:
            raise EnforcementError("the limit cannot be written")
        super().resize(lease, memory_bytes)

    def set_compute(self, lease: Lease, words: Sequence[ComputeWord]) -> None:
        self.seen.append((words[0].share, in_ledger(self.machine, self.job)[1]))
        super().set_compute(lease, words)


def test_more_of_one_thing_and_less_of_the_other_bind_on_either_side_of_the_ledger(machine: World, job: Job) -> None:
    machine.engine.enforcer = watching = Watching(machine, job)
    resize(machine.engine, job.id, Resize(4 * GIB, 0.2))
    assert watching.seen == [(0.2, 0.5), (4 * GIB, 4 * GIB)]
    resize(machine.engine, job.id, Resize(GIB, 0.6))
    assert watching.seen[2:] == [(GIB, 4 * GIB), (0.6, 0.6)]
    assert bound(machine, job) == in_ledger(machine, job) == (GIB, 0.6)


def test_where_more_memory_does_not_bind_the_time_that_was_taken_comes_back(machine: World, job: Job) -> None:
    machine.engine.enforcer = Watching(machine, job)
    with pytest.raises(EnforcementError):
        resize(machine.engine, job.id, Resize(5 * GIB, 0.2))
    assert bound(machine, job) == in_ledger(machine, job) == (2 * GIB, 0.5)


def test_a_resize_that_fails_keeps_what_another_one_wrote_meanwhile(machine: World, job: Job) -> None:
    machine.engine.enforcer = watching = Watching(machine, job)
    watching.rival = Resize(3 * GIB, 0.7)
    with pytest.raises(EnforcementError):
        resize(machine.engine, job.id, Resize(5 * GIB, 0.5))
    assert bound(machine, job) == in_ledger(machine, job) == (3 * GIB, 0.7)


def test_a_word_that_another_process_wrote_is_corrected_at_the_next_check(machine: World, job: Job) -> None:
    now = machine.entry(job).job
    assert now.lease is not None
    enforcer = FileEnforcer(machine.root)
    follow_compute(enforcer, now, [], by_user=True)
    enforcer.set_compute(now.lease, [ComputeWord(0.1)])
    follow_compute(enforcer, now, [], by_user=True)
    assert bound(machine, job)[1] == 0.5
