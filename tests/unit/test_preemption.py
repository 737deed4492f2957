"""Who is suspended for a waiting job of a higher priority: as few and as cheap as make room, and nobody in vain."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pgpu.model import Gpu, Request, SharingMode
from pgpu.scheduling import Candidate, GpuRoom, admit
from pgpu.scheduling.admission_round import Admission
from pgpu.scheduling.capacity import Tenancy
from pgpu.scheduling.preemption import REARM_SECONDS, Victim, preempt
from pgpu.structs import replace
from pgpu.units import GIB

NOW = 1000.0


def room(index: int, granted_gib: float, memory_gib: float = 10, compute: float = 0.0) -> GpuRoom:
    gpu = Gpu(f"GPU-{index}", "Fake", index, int(memory_gib * GIB), "1", is_simulated=True)
    jobs = Tenancy(SharingMode.TIME_SLICE, None, 1)
    return GpuRoom(gpu, 0, 0, int(granted_gib * GIB), compute, jobs)


def victim(name: str, frees_gib: float, *, gpu: int = 0, **words: float) -> Victim:
    return Victim(
        name,
        f"GPU-{gpu}",
        int(words.get("priority", 0)),
        words.get("granted", 0.0),
        int(frees_gib * GIB),
        words.get("compute", 0.0),
        words.get("resumed"),
    )


def asking(gib: float, *, preempts: bool = True, priority: int = 50, compute: float | None = None) -> Candidate:
    return Candidate("new", Request(int(gib * GIB), 1, compute, priority, preempts=preempts))


def decide(rooms: Sequence[GpuRoom], candidate: Candidate, victims: Sequence[Victim]) -> Admission:
    without = admit(rooms, [candidate], NOW)
    return preempt(without, [candidate], rooms, victims, NOW)


def suspended(rooms: Sequence[GpuRoom], candidate: Candidate, victims: Sequence[Victim]) -> set[str]:
    found = decide(rooms, candidate, victims)
    assert found.grants or not found.suspended
    assert all(by == "new" for _, by in found.suspended)
    return {job_id for job_id, _ in found.suspended}


def test_a_victim_makes_room() -> None:
    found = decide([room(0, 9)], asking(4), [victim("a", 4)])
    assert found.suspended == (("a", "new"),)
    assert [(grant.job_id, grant.slices[0].gpu_uuid) for grant in found.grants] == [("new", "GPU-0")]
    assert list(found.waits) == []


def test_nobody_makes_room_on_another_gpu_than_the_one_that_will_do() -> None:
    pinned = replace(asking(4), gpu_uuid="GPU-1")
    assert suspended([room(0, 9), room(1, 9)], pinned, [victim("a", 4)]) == set()
    assert suspended([room(0, 9), room(1, 9)], pinned, [victim("a", 4), victim("b", 4, gpu=1)]) == {"b"}


def test_nobody_is_suspended_in_vain() -> None:
    assert suspended([room(0, 9)], asking(6), [victim("a", 4)]) == set()


def test_nobody_is_suspended_for_who_did_not_ask_for_that() -> None:
    assert suspended([room(0, 9)], asking(4, preempts=False), [victim("a", 9)]) == set()


def test_nobody_is_suspended_for_an_equal() -> None:
    assert suspended([room(0, 9)], asking(4, priority=0), [victim("a", 9)]) == set()


def test_nobody_is_suspended_where_it_fits() -> None:
    candidate = asking(1)
    assert decide([room(0, 9)], candidate, [victim("a", 4)]).suspended == ()


def test_the_lowest_priority_goes_first_and_of_equals_the_youngest() -> None:
    jobs = [victim("old", 4, granted=1), victim("young", 4, granted=9), victim("high", 4, priority=10, granted=99)]
    assert suspended([room(0, 10)], asking(3), jobs) == {"young"}
    assert suspended([room(0, 10)], asking(3), [*jobs, victim("low", 4, priority=-10)]) == {"low"}


def test_no_more_are_suspended_than_needed() -> None:
    jobs = [victim("small", 1, granted=9), victim("large", 8, granted=1)]
    assert suspended([room(0, 10)], asking(7), jobs) == {"large"}


def test_a_share_of_compute_is_room_too() -> None:
    jobs = [victim("a", 0, compute=0.5), victim("b", 0, compute=0.1)]
    assert suspended([room(0, 2, compute=0.8)], asking(1, compute=0.6), jobs) == {"a"}


def test_the_gpu_on_which_least_is_lost_is_taken() -> None:
    jobs = [victim("a", 8, gpu=0, granted=0), victim("b", 8, gpu=1, granted=900)]
    assert suspended([room(0, 10), room(1, 10)], asking(4), jobs) == {"b"}


def test_who_has_just_come_back_is_left_alone() -> None:
    recent, settled = NOW - REARM_SECONDS + 1, NOW - REARM_SECONDS
    assert suspended([room(0, 10)], asking(4), [victim("a", 8, resumed=recent)]) == set()
    assert suspended([room(0, 10)], asking(4), [victim("a", 8, resumed=settled)]) == {"a"}


VICTIMS = st.lists(
    st.builds(
        lambda number, frees, priority, granted, compute: victim(
            f"v{number}", frees, priority=priority, granted=granted, compute=compute
        ),
        st.integers(0, 10**6),
        st.floats(0, 4),
        st.integers(-100, 100),
        st.floats(0, NOW),
        st.floats(0, 0.3),
    ),
    max_size=6,
    unique_by=lambda each: each.job_id,
)


@given(victims=VICTIMS, gib=st.floats(0.1, 10), priority=st.integers(-100, 100), granted=st.floats(0, 10))
def test_whoever_is_suspended_is_enough_lower_and_needed(
    victims: list[Victim], gib: float, priority: int, granted: float
) -> None:
    rooms, candidate = [room(0, granted)], asking(gib, priority=priority)
    chosen = [each for each in victims if each.job_id in suspended(rooms, candidate, victims)]
    assert suspended(rooms, candidate, victims) == suspended(rooms, candidate, victims[::-1])
    assert all(each.priority < priority for each in chosen)
    if chosen:
        free_bytes = rooms[0].free_bytes
        freed = [each.frees_bytes for each in chosen]
        assert free_bytes + sum(freed) >= candidate.request.memory_bytes
        assert all(free_bytes + sum(freed) - each < candidate.request.memory_bytes for each in freed)
