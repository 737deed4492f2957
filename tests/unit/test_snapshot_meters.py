"""Which meters a snapshot of the GPUs reads: those that may count anything."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.fakes.machine import FileEnforcer, make_machine

from pgpu.enforcement import SliceUse
from pgpu.engine.admission.snapshot import take_snapshot
from pgpu.ledger import Entry
from pgpu.model import Job, JobSpec, JobState, Lease, ProcessHolder, Request, Slice
from pgpu.structs import replace

_PROGRAM = Job(
    "0123456789ab",
    JobSpec(("true",), "process"),
    Request(5),
    JobState.STARTING,
    1.0,
    lease=Lease("0123456789ab", (Slice("GPU-0", 5),), 1.0),
)


class _Counting(FileEnforcer):
    """Counts the readings of meters."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.readings = 0

    def use(self, lease: Lease) -> Sequence[SliceUse]:
        self.readings += 1
        return super().use(lease)


@pytest.mark.parametrize(
    ("entry", "is_read"),
    [
        (Entry(_PROGRAM), False),
        (Entry(replace(_PROGRAM, holder=ProcessHolder(1, 1, ""))), True),
        (Entry(replace(_PROGRAM, state=JobState.RUNNING)), True),
        (Entry(replace(_PROGRAM, spec=JobSpec((), "claim"))), True),
        (Entry(replace(_PROGRAM, state=JobState.RUNNING), lease_released_at_seconds=2.0), False),
    ],
    ids=["unstarted", "announced", "running", "claim", "released"],
)
def test_meters_are_read_of_jobs_that_may_use_their_gpu(tmp_path: Path, entry: Entry, is_read: bool) -> None:
    engine, enforcer = make_machine(tmp_path / "machine", [10]), _Counting(tmp_path / "machine")
    take_snapshot(engine.gpus, enforcer, [entry])
    assert bool(enforcer.readings) is is_read
