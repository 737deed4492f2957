"""Which jobs of a batch start together: the rule in one round of admission, beside limits, reservations and other jobs."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.model import Batch, Gpu, Objective, Request, SharingMode, Slice
from pgpu.scheduling import Admission, Candidate, Cause, GpuRoom, Held, Quota, admit
from pgpu.scheduling.capacity import IDLE
from pgpu.scheduling.even_waves import HALF, Waves, may_join
from pgpu.scheduling.start_rule import HOLD_SECONDS, HOLD_UNKNOWN_SECONDS
from pgpu.structs import replace
from pgpu.units import GIB

BATCH = Batch("job0", 25)


def room(index: int = 0, taken_gib: int = 0, gib: int = 20) -> GpuRoom:
    return GpuRoom(Gpu(f"GPU-{index}", "Test", index, gib * GIB, "1.0", is_simulated=True), 0, 0, taken_gib * GIB)


def jobs(count: int = 25, batch: Batch | None = BATCH, first: int = 0) -> list[Candidate]:
    return [Candidate(f"job{number}", Request(GIB), batch=batch) for number in range(first, first + count)]


def running(count: int, demand: float | None = None, batch: Batch | None = BATCH) -> list[Held]:
    return [
        Held(f"running{number}", 0, (Slice("GPU-0", GIB),), 0.0, batch=batch, demand=demand) for number in range(count)
    ]


def per_gpu(admission: Admission) -> Counter[str]:
    return Counter(part.gpu_uuid for grant in admission.grants for part in grant.slices)


def test_of_25_jobs_of_which_20_fit_13_start_and_the_others_wait_with_the_reason() -> None:
    admission = admit([room()], jobs(), 0.0)
    assert len(admission.grants) == 13
    assert {wait.cause for wait in admission.waits} == {Cause.WAVE}
    assert admission.holds_back
    assert admission.waits[0].reason == (
        "waits for its batch's next wave: 25 jobs need 2 waves here, and 13 at once contend less for the GPU than 20"
    )


def test_jobs_that_do_not_belong_together_fill_the_gpu() -> None:
    admission = admit([room()], jobs(batch=None), 0.0)
    assert len(admission.grants) == 20
    assert not admission.holds_back


def test_a_job_of_the_batch_follows_each_that_ends_however_few_are_left() -> None:
    admission = admit([room(taken_gib=12)], jobs(3, first=22), 0.0, held=running(12))
    assert len(admission.grants) == 1


@pytest.mark.parametrize(("demand", "count"), [(None, 0), (HALF / 12, 0), (HALF / 13, 1), (0.01, 5)])
def test_a_wave_is_topped_up_while_what_was_measured_leaves_half_of_the_gpu(demand: float | None, count: int) -> None:
    """Each that starts counts as a thirteenth of the GPU until it is measured."""
    admission = admit([room(taken_gib=13)], jobs(12, first=13), 0.0, held=running(13, demand))
    assert len(admission.grants) == count


def test_two_gpus_share_a_wave_evenly_although_one_would_take_most_of_it() -> None:
    admission = admit([room(), room(1)], jobs(50, Batch("job0", 50)), 0.0)
    assert per_gpu(admission) == {"GPU-0": 13, "GPU-1": 13}


def test_a_small_gpu_gets_the_smaller_part_of_a_wave() -> None:
    admission = admit([room(), room(1, gib=4)], jobs(30, Batch("job0", 30)), 0.0)
    assert per_gpu(admission) == {"GPU-0": 13, "GPU-1": 3}


def test_a_gpu_that_takes_no_job_in_time_slices_is_no_part_of_a_wave() -> None:
    exclusive = replace(room(1), tenancy=IDLE.with_job(SharingMode.EXCLUSIVE, 1))
    assert per_gpu(admit([room(), exclusive], jobs(), 0.0)) == {"GPU-0": 13}


def test_a_job_whose_wait_is_limited_starts_where_it_fits() -> None:
    limited = [replace(each, deadline_seconds=60.0) for each in jobs()]
    assert len(admit([room()], limited, 0.0).grants) == 20


def test_jobs_with_the_objective_soonest_fill_the_gpu() -> None:
    soonest = [replace(each, request=replace(each.request, objective=Objective.SOONEST)) for each in jobs()]
    assert len(admit([room()], soonest, 0.0).grants) == 20


@pytest.mark.parametrize(("duration", "hold"), [(None, HOLD_UNKNOWN_SECONDS), (60.0, HOLD_SECONDS)])
def test_a_job_is_held_back_no_longer_than_half_an_hour_or_ten_minutes(duration: float | None, hold: float) -> None:
    waiting = [replace(each, duration_seconds=duration) for each in jobs(12, first=13)]
    assert not admit([room(taken_gib=13)], waiting, hold - 1, held=running(13)).grants
    assert len(admit([room(taken_gib=13)], waiting, hold, held=running(13)).grants) == 7


def test_what_a_wave_leaves_free_serves_a_job_of_another_kind() -> None:
    other = Candidate("other", Request(6 * GIB))
    admission = admit([room()], [*jobs(), other], 0.0)
    assert "other" in {grant.job_id for grant in admission.grants}


def test_no_memory_is_reserved_behind_a_batch_that_waits_for_its_next_wave() -> None:
    """The large job would otherwise delay the second wave, which goes before it."""
    large = Candidate("large", Request(18 * GIB))
    waiting = [*jobs(12, first=13), large]
    admission = admit([room(taken_gib=12)], waiting, 0.0, held=running(12))
    assert [grant.job_id for grant in admission.grants] == ["job13"]


def test_a_quota_holds_within_a_wave() -> None:
    admission = admit([room()], jobs(), 0.0, quotas={0: Quota(jobs=5)})
    assert len(admission.grants) == 5
    assert admission.waits[0].cause is Cause.QUOTA


def test_a_job_of_higher_priority_goes_before_the_wave() -> None:
    urgent = Candidate("urgent", Request(18 * GIB, priority=50))
    admission = admit([room()], [*jobs(), urgent], 0.0)
    assert per_gpu(admission) == {"GPU-0": 3}
    assert admission.grants[0].job_id == "urgent"


@given(st.integers(1, 400), st.lists(st.integers(0, 60), min_size=1, max_size=8))
def test_waves_are_even_and_no_more_than_memory_needs(size: int, fitting: list[int]) -> None:
    waves = Waves(size, max(1, sum(fitting)))
    assert waves.count * waves.fitting >= size > (waves.count - 1) * waves.fitting
    assert waves.at_once * waves.count >= size
    parts = [waves.on_gpu(each) for each in fitting]
    assert all(part <= max(1, each) for part, each in zip(parts, fitting, strict=True))
    assert sum(parts) >= min(size, waves.at_once, sum(fitting))


@given(st.integers(1, 40), st.lists(st.none() | st.floats(0, 1), max_size=40))
def test_a_gpu_without_a_job_of_the_batch_always_takes_one(wave: int, demands: list[float | None]) -> None:
    assert may_join(wave, 0, demands)


@given(
    st.integers(2, 60),
    st.lists(st.integers(0, 20), min_size=1, max_size=4),
    st.lists(st.none() | st.floats(0, 1), max_size=12),
)
def test_a_round_with_waves_grants_no_more_memory_than_there_is_and_leaves_no_gpu_idle(
    size: int, taken: list[int], demands: list[float | None]
) -> None:
    rooms = [room(index, gib) for index, gib in enumerate(taken)]
    held = [
        Held(f"running{number}", 0, (Slice("GPU-0", GIB),), 0.0, demand=demand)
        for number, demand in enumerate(demands[: taken[0]])
    ]
    admission = admit(rooms, jobs(size, Batch("job0", size)), 0.0, held=held)
    granted = per_gpu(admission)
    assert all(granted[each.gpu.uuid] * GIB <= each.free_bytes for each in rooms)
    if admission.waits:
        assert all(granted[each.gpu.uuid] for each in rooms if each.free_bytes)
