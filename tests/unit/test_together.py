"""Jobs that wait together are placed together: whatever is said to fit fits, and little that could fit is missed."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from pgpu.scheduling.together import fit_together
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
