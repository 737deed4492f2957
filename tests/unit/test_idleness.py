"""A job is idle when the driver saw none of its processes work for as long as the operator said."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from tests.fakes.machine import make_machine

from pgpu.engine.supervisor.idleness import LOOK_SECONDS, Idleness
from pgpu.model import Job, JobSpec, JobState, Lease, Request, Slice
from pgpu.runtimes import RunningJob
from pgpu.units import GIB

_LEASE = Lease("0123456789ab", (Slice("GPU-0", GIB), Slice("GPU-1", GIB)), 0.0)
_JOB = Job("0123456789ab", JobSpec(("true",), "process"), Request(GIB, 2), JobState.RUNNING, 0.0, lease=_LEASE)
_OURS, _ANOTHERS = 7, 8


class Ours:
    """A job of one process."""

    def owns(self, pid: int) -> bool:
        return pid == _OURS


class Watched:
    """One running job under a clock of the test's own."""

    def __init__(self, root: Path, timeout_seconds: float | None) -> None:
        self._root = root
        self._now_seconds = 0.0
        self._engine = make_machine(root, [10 * GIB, 10 * GIB])
        self._idleness = Idleness(self._engine, timeout_seconds, clock=lambda: self._now_seconds)

    def told_after(
        self, seconds: float, busy: dict[str, list[int]] | None = None, held: list[int] | None = None
    ) -> str | None:
        """Let time pass while these processes work; None where the driver does not tell who works."""
        for uuid in ("GPU-0", "GPU-1"):
            if busy is not None:
                (self._root / f"busy-{uuid}.json").write_text(json.dumps(busy.get(uuid, [])))
            (self._root / f"processes-{uuid}.json").write_text(json.dumps([(pid, GIB) for pid in held or []]))
        self._now_seconds += seconds
        return self._idleness.look(_JOB, cast("RunningJob", Ours()))

    def close(self) -> None:
        self._engine.ledger.close()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path, 60.0)
    yield made
    made.close()


def test_a_job_that_does_nothing_is_told_after_the_time(watched: Watched) -> None:
    assert watched.told_after(59, busy={}) is None
    assert watched.told_after(LOOK_SECONDS, busy={}) == "it has done nothing on its GPUs for 1m 4s"


def test_work_on_any_of_its_gpus_begins_the_time_anew(watched: Watched) -> None:
    assert watched.told_after(59, busy={"GPU-1": [_OURS]}) is None
    assert watched.told_after(59, busy={}) is None
    assert watched.told_after(LOOK_SECONDS, busy={}) is not None


def test_the_work_of_others_is_not_its_own(watched: Watched) -> None:
    assert watched.told_after(61, busy={"GPU-0": [_ANOTHERS]}) is not None


def test_where_the_driver_does_not_tell_who_is_there_counts_as_working(watched: Watched) -> None:
    assert watched.told_after(61, held=[_OURS]) is None
    assert watched.told_after(61, held=[]) is not None


def test_without_a_time_nobody_is_idle(tmp_path: Path) -> None:
    watched = Watched(tmp_path, None)
    assert watched.told_after(1e9, busy={}) is None
    watched.close()
