"""Bursts of jobs whose sizes pgpu chooses, in simulated time: `benchmarks.chosen_sizes` with few jobs."""

import pytest
from benchmarks.chosen_sizes.families import TUNING_SEEDS, burst, families, mixed
from benchmarks.chosen_sizes.machine import Machine

FAMILIES = ("late", "sweep", "bimodal 15 %", "fragments 8 %", "names")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_burst_of_a_new_family_ends_without_great_loss_or_waste(name: str) -> None:
    jobs = burst(families()[name], TUNING_SEEDS[0], 24)
    found = Machine(2, can_park=False, is_restarted=True).play(jobs)
    assert found.lost_old <= 1
    assert found.most_attempts <= 3
    assert found.waste <= 0.75


def test_nothing_is_lost_where_jobs_can_be_parked() -> None:
    jobs = mixed([families()[name] for name in FAMILIES], TUNING_SEEDS[0], each=5)
    found = Machine(2, can_park=True, is_restarted=True).play(jobs)
    assert (found.lost, found.failed) == (0, 0)


def test_a_job_that_is_not_queued_again_fails_once_and_leaves_its_memory_to_others() -> None:
    jobs = burst(families()["bimodal 15 %"], TUNING_SEEDS[0], 24)
    found = Machine(1, can_park=False, is_restarted=False).play(jobs)
    assert found.failed == found.lost
    assert found.most_attempts == 1
