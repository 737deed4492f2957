"""When a queue that should end soonest is planned anew: jobs that come and end, and those that run longer than believed."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from pgpu.engine.admission.queue_plan import QueuePlanner, read_plan
from pgpu.engine.admission.situation import Situation
from pgpu.model import Gpu, Request, Slice
from pgpu.scheduling import Candidate, GpuRoom, Held, admit
from pgpu.scheduling.run_times import SlowdownCurve
from pgpu.structs import replace
from pgpu.units import GIB

NOW = 1e6
HOUR_SECONDS = 3600.0
GPU = Gpu("GPU-0", "RTX 3090", 0, 24 * GIB, "615.42.01", is_simulated=True)
SERVICE = Held("service", 1, (Slice("GPU-0", 4 * GIB),), NOW, duration_seconds=600.0)
JOB = Candidate("job", Request(4 * GIB), None, 1000, NOW, HOUR_SECONDS)
BESIDE = {"job": SlowdownCurve(HOUR_SECONDS, ((1, 1.0), (2, 2.5)), 0.1)}
"""Beside another it takes so much longer that it had better wait for one that soon ends."""


def situation(held: Sequence[Held] = (SERVICE,), queue: Sequence[Candidate] = (JOB,)) -> Situation:
    return Situation((GpuRoom(GPU, GIB, 0, 4 * GIB * len(held)),), tuple(queue), tuple(held), {}, {}, {})


@pytest.fixture
def plan_path(tmp_path: Path) -> Path:
    return tmp_path / "queue.plan"


def plans(planning: QueuePlanner, plan_path: Path, now_seconds: float, found: Situation) -> bool:
    """Whether it makes a plan now."""
    plan_path.unlink(missing_ok=True)
    planning.plan_if_changed(found, BESIDE, now_seconds)
    return plan_path.exists()


def test_a_job_that_fits_does_not_wait_for_a_day_beside_one_that_runs_longer_than_believed(plan_path: Path) -> None:
    planning = QueuePlanner(plan_path)
    started_after: list[float] = []
    for minutes in range(0, 24 * 60, 10):
        now_seconds = NOW + 60.0 * minutes
        planning.plan_if_changed(situation(), BESIDE, now_seconds)
        found = situation()
        admission = admit(found.rooms, found.queue, now_seconds, held=found.held, plan=read_plan(plan_path))
        started_after += [minutes / 60.0 for _ in admission.grants]
    assert 0.0 < started_after[0] < 12.0


def test_a_plan_is_made_again_as_often_as_a_job_s_time_past_its_expected_end_doubles(plan_path: Path) -> None:
    planning = QueuePlanner(plan_path)
    made = [minute for minute in range(170) if plans(planning, plan_path, NOW + 60.0 * minute, situation())]
    assert made == [0, 10, 20, 40, 80, 160]


def test_of_a_job_whose_length_nobody_knows_the_same_is_expected_as_by_the_order(plan_path: Path) -> None:
    planning = QueuePlanner(plan_path)
    unknown = situation([replace(SERVICE, duration_seconds=None)])
    assert [minute for minute in range(30) if plans(planning, plan_path, NOW + 60.0 * minute, unknown)] == [0, 10, 20]


def test_a_plan_is_made_again_when_a_job_comes_or_ends(plan_path: Path) -> None:
    planning = QueuePlanner(plan_path)
    assert plans(planning, plan_path, NOW, situation())
    assert not plans(planning, plan_path, NOW + 1.0, situation())
    assert plans(planning, plan_path, NOW + 2.0, situation(queue=[JOB, replace(JOB, job_id="other")]))
    assert plans(planning, plan_path, NOW + 3.0, situation([]))


def test_a_length_of_nothing_at_all_is_outlived_no_more_often_than_one_of_a_second(plan_path: Path) -> None:
    planning = QueuePlanner(plan_path)
    at_once = situation([replace(SERVICE, duration_seconds=0.0)])
    assert sum(plans(planning, plan_path, NOW + second, at_once) for second in range(64)) == 7
