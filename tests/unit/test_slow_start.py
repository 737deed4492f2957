"""Slow start of new families in a round of admission."""

from hypothesis import given
from hypothesis import strategies as st

from pgpu.model import Gpu, Request, Slice
from pgpu.scheduling import Candidate, Cause, GpuRoom, Held, admit
from pgpu.scheduling.slow_start import split_new_families
from pgpu.structs import replace
from pgpu.units import GIB

GPU = Gpu("GPU-0", "RTX 3090", 0, 24 * GIB, "615.42.01", is_simulated=True)
ROOM = GpuRoom(GPU, 0, 0, 0)
NEW = ("train.py@0a1b2c3d --seed #", 1000)


def a_job(name: str, priority: int = 0, most: int | None = 4) -> Candidate:
    request = Request(GIB, is_estimated=True, priority=priority)
    return Candidate(name, request, owner_uid=1000, family=NEW, most_of_family=most)


def a_running_job(name: str) -> Held:
    return Held(name, 1000, (Slice(GPU.uuid, GIB),), 0.0, family=NEW)


def test_of_a_new_family_as_many_start_as_may_and_the_others_say_why_they_wait() -> None:
    found = admit([ROOM], [a_job(f"job{number}") for number in range(6)], 0.0)
    assert [grant.job_id for grant in found.grants] == ["job0", "job1", "job2", "job3"]
    assert [(wait.job_id, wait.cause) for wait in found.waits] == [("job4", Cause.FAMILY), ("job5", Cause.FAMILY)]
    assert found.waits[0].reason.startswith("waits for a job of its family to end: 4 at once run until")


def test_a_job_that_has_run_for_long_counts_no_more() -> None:
    held = [a_running_job(f"held{number}") for number in range(4)]
    room = replace(ROOM, granted_bytes=4 * GIB)
    assert not admit([room], [a_job("fifth")], 599.0, held=held).grants
    assert admit([room], [a_job("fifth")], 599.0, held=held).holds_back, "no end is needed for the next round"
    assert admit([room], [a_job("fifth")], 600.0, held=held).grants


def test_a_user_whose_jobs_are_all_held_back_has_a_turn_and_takes_none_from_others() -> None:
    held = [a_running_job(f"held{number}") for number in range(4)]
    found = admit([replace(ROOM, granted_bytes=4 * GIB)], [a_job("fifth")], 0.0, held=held)
    assert (1000, 0) in found.turns
    assert found.time.contenders == {(1000, 0): False}


def test_no_gpu_is_idle_for_a_slow_start() -> None:
    rooms = [replace(ROOM, gpu=replace(GPU, uuid=f"GPU-{index}", index=index)) for index in range(6)]
    found = admit(rooms, [replace(a_job(f"job{number}"), takes_free=True) for number in range(7)], 0.0)
    assert len({grant.slices[0].gpu_uuid for grant in found.grants}) == 6


def test_running_jobs_of_the_family_count_and_other_families_do_not() -> None:
    other = replace(a_job("other"), family=("else.py@1", 1000))
    of_another_user = replace(a_job("foreign"), family=(NEW[0], 1001), owner_uid=1001)
    held = [a_running_job(f"held{number}") for number in range(4)]
    room = replace(ROOM, granted_bytes=4 * GIB)
    found = admit([room], [a_job("late"), other, of_another_user], 0.0, held=held)
    assert {grant.job_id for grant in found.grants} == {"other", "foreign"}


def test_a_known_family_and_explicit_sizes_are_not_held_back() -> None:
    known = [a_job(f"job{number}", most=None) for number in range(9)]
    explicit = [Candidate(f"plain{number}", Request(GIB)) for number in range(9)]
    assert len(admit([ROOM], [*known, *explicit], 0.0).grants) == 18


def test_nothing_is_kept_for_a_job_that_is_held_back_even_if_it_is_overdue() -> None:
    held = [replace(a_running_job(f"held{number}"), granted_at_seconds=1e6) for number in range(4)]
    room = replace(ROOM, granted_bytes=4 * GIB)
    large = replace(a_job("large"), request=Request(20 * GIB, is_estimated=True))
    found = admit([room], [large, Candidate("plain", Request(19 * GIB), None, 1)], 1e6, held=held)
    assert [grant.job_id for grant in found.grants] == ["plain"]
    assert found.reservation is None


def test_a_job_that_is_held_back_expires_as_any_other() -> None:
    queue = [replace(a_job(f"job{number}"), deadline_seconds=1.0) for number in range(5)]
    assert admit([ROOM], queue, 2.0).expired == ("job4",)


def test_a_parked_job_returns_whatever_its_family_does() -> None:
    held = [a_running_job(f"held{number}") for number in range(4)]
    parked = replace(a_job("parked"), gpu_uuid=GPU.uuid)
    assert admit([replace(ROOM, granted_bytes=4 * GIB)], [parked], 0.0, held=held).grants


@given(st.lists(st.integers(-2, 2), max_size=12), st.integers(0, 6))
def test_the_highest_priority_goes_first_and_both_parts_keep_the_order_of_the_queue(
    priorities: list[int], running: int
) -> None:
    queue = [a_job(f"job{number:02}", priority) for number, priority in enumerate(priorities)]
    considered, held_back = split_new_families(
        queue, [a_running_job(f"held{number}") for number in range(running)], 1, 0.0
    )
    assert len(considered) == min(len(queue), max(0, 4 - running))
    assert sorted([*considered, *held_back], key=queue.index) == queue
    assert [*considered] == sorted(considered, key=queue.index)
    if considered and held_back:
        assert min(each.request.priority for each in considered) >= max(each.request.priority for each in held_back)
