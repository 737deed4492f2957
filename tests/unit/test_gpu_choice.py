"""Jobs that wait together are placed together: whatever is said to fit fits, and little that could fit is missed."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from pgpu.model import Gpu, Request, Slice
from pgpu.scheduling import Candidate, GpuRoom, Held, admit
from pgpu.scheduling.free_capacity import fit_together
from pgpu.units import GIB, MIB


def fits_somehow(wanted: list[int], free: list[int]) -> bool:
    for places in product(range(len(free)), repeat=len(wanted)):
        taken = [sum(each for each, at in zip(wanted, places, strict=True) if at == gpu) for gpu in range(len(free))]
        if all(part <= whole for part, whole in zip(taken, free, strict=True)):
            return True
    return False


amounts = st.integers(1, 24 * GIB)


@settings(max_examples=200, deadline=None)
@given(st.lists(amounts, max_size=12), st.lists(st.integers(0, 24 * GIB), min_size=1, max_size=5))
def test_no_gpu_gets_more_than_it_has_and_every_job_gets_one(wanted: list[int], free: list[int]) -> None:
    places = fit_together(
        {f"job{n}": each for n, each in enumerate(wanted)}, {f"gpu{n}": each for n, each in enumerate(free)}
    )
    if places is None:
        return
    assert set(places) == {f"job{n}" for n in range(len(wanted))}
    for gpu, most in enumerate(free):
        assert sum(each for n, each in enumerate(wanted) if places[f"job{n}"] == f"gpu{gpu}") <= most


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 8), max_size=6), st.lists(st.integers(1, 12), min_size=1, max_size=3))
def test_of_few_jobs_all_that_can_fit_do(wanted: list[int], free: list[int]) -> None:
    found = fit_together(
        {f"job{n}": each * GIB for n, each in enumerate(wanted)}, {f"gpu{n}": each * GIB for n, each in enumerate(free)}
    )
    assert (found is not None) == fits_somehow(wanted, free)


def test_two_gpus_are_filled_to_the_last_mib_where_the_fullest_first_is_wrong() -> None:
    sizes = [7, 6, 5, 4, 4, 4]
    places = fit_together({str(n): each * MIB for n, each in enumerate(sizes)}, {"a": 15 * MIB, "b": 15 * MIB})
    assert places is not None
    assert sum(each for n, each in enumerate(sizes) if places[str(n)] == "a") == 15


def test_parts_of_a_mib_count_as_a_whole_one() -> None:
    assert fit_together({"a": MIB - 1, "b": MIB + 1}, {"gpu": 2 * MIB}) is None


def room(index: int, gib: int) -> GpuRoom:
    return GpuRoom(Gpu(f"GPU-{index}", "Test", index, gib * GIB, "1.0", is_simulated=False), 0, 0, 0)


def rooms_of(*gib: int) -> list[GpuRoom]:
    return [room(index, each) for index, each in enumerate(gib)]


def waiting(*gib: int, gpu_count: int = 1) -> list[Candidate]:
    return [Candidate(f"job{number}", Request(each * GIB, gpu_count)) for number, each in enumerate(gib)]


queues = st.lists(st.tuples(st.integers(1, 8), st.sampled_from([1, 1, 1, 2])), max_size=10).map(
    lambda asked: [Candidate(f"job{n}", Request(gib * GIB, count)) for n, (gib, count) in enumerate(asked)]
)
machines = st.lists(st.integers(1, 12), min_size=1, max_size=4).map(lambda free: rooms_of(*free))


@settings(deadline=None)
@given(machines, queues)
def test_a_round_that_moves_its_grants_gives_no_gpu_more_than_it_has(
    machine: list[GpuRoom], queue: list[Candidate]
) -> None:
    requests = {candidate.job_id: candidate.request for candidate in queue}
    grants = admit(machine, queue, 0.0).grants
    for each in machine:
        parts = [part for grant in grants for part in grant.slices if part.gpu_uuid == each.gpu.uuid]
        assert sum(part.memory_bytes for part in parts) <= each.capacity_bytes
    for grant in grants:
        assert len({part.gpu_uuid for part in grant.slices}) == requests[grant.job_id].gpu_count
        assert {part.memory_bytes for part in grant.slices} == {requests[grant.job_id].memory_bytes}


@settings(deadline=None)
@given(st.lists(st.integers(1, 8), max_size=6), st.lists(st.integers(1, 12), min_size=1, max_size=3))
def test_all_who_wait_start_at_once_where_any_places_let_them(wanted: list[int], free: list[int]) -> None:
    admission = admit(rooms_of(*free), waiting(*wanted), 0.0)
    assert bool(admission.waits) == (not fits_somehow(wanted, free))


def test_who_runs_already_stays_where_it_is() -> None:
    held = Held("before", 0, (Slice("GPU-0", 6 * GIB),), 0.0)
    machine = [GpuRoom(room(0, 12).gpu, 0, 0, 6 * GIB), room(1, 12)]
    admission = admit(machine, waiting(4, 4, 4, 6), 0.0, held=[held])
    assert {grant.job_id for grant in admission.grants} == {"job0", "job1", "job2", "job3"}
    assert {part.gpu_uuid for grant in admission.grants if grant.job_id == "job3" for part in grant.slices} == {"GPU-0"}


def test_jobs_on_several_gpus_change_no_places() -> None:
    admission = admit(rooms_of(12, 12), [*waiting(4, gpu_count=2), Candidate("last", Request(9 * GIB))], 0.0)
    assert [grant.job_id for grant in admission.grants] == ["job0"]
