"""Why jobs that one mode would be faster for are not advised to be in it: the reason told is the one that decided."""

import pytest
from tests.unit.test_advising import GPU, MIB, OLD, job, swept

from pgpu.advising.advice import LEAST_DOUBTFUL_GAIN, LEAST_GAIN, Advice, Confidence, advise
from pgpu.model import Profile, SharingMode
from pgpu.structs import replace

IN_TURNS = "in turns a job would be slower than is tolerated"
TOO_LITTLE = "that is too little to share each other's faults for"
TOO_SLOW = "under MPS a job would take more than 1.1 times as long as in turns"
BEFORE_VOLTA = "before Volta MPS does not keep clients' memory apart"


def keen(name: str, by: float) -> Profile:
    """A job that loses the cache to another of its kind, by so much."""
    contests = (swept(0.25, 1 + 0.2 * by), swept(0.5, 1 + 0.9 * by), swept(1.0, 1 + 2.0 * by))
    return replace(job(sm=0.4, dram=0.2, name=name), footprint_bytes=5 * MIB, contests=contests)


def two_keen_ones_and_a_light_one(by: float, tolerance: float | None = None) -> Advice:
    return advise([keen("a", by), keen("b", by), job(sm=0.1, dram=0.05, name="light")], GPU, tolerance=tolerance)


def test_a_small_gain_that_would_have_been_enough_is_not_blamed_for_what_the_slowest_loses() -> None:
    found = two_keen_ones_and_a_light_one(1.6)
    assert LEAST_GAIN < found.gain < LEAST_DOUBTFUL_GAIN
    assert found.confidence is not Confidence.LOW
    assert (found.mode, found.reasons) == (SharingMode.TIME_SLICE, (TOO_SLOW,))


def test_a_gain_that_is_too_small_for_what_is_known_is_named() -> None:
    found = advise([job(sm=1.0), job(sm=1.0, name="b")], GPU)
    assert found.confidence is Confidence.LOW
    assert (found.mode, found.reasons) == (SharingMode.TIME_SLICE, (TOO_LITTLE,))


def test_a_gate_is_named_where_mps_would_have_been_fast_enough_and_turns_are_not() -> None:
    light = [job(sm=0.2, dram=0.1), job(sm=0.2, dram=0.1, name="b")]
    assert advise(light, GPU, tolerance=1.3).mode is SharingMode.MPS
    found = advise(light, OLD, tolerance=1.3)
    assert (found.mode, found.reasons) == (SharingMode.EXCLUSIVE, (BEFORE_VOLTA, IN_TURNS))


@pytest.mark.parametrize(
    ("by", "against_mps"), [(1.0, "under MPS a job would be slower than is tolerated"), (2.0, "MPS gains nothing")]
)
def test_jobs_that_neither_mode_suits_are_told_why_not_of_each(by: float, against_mps: str) -> None:
    found = two_keen_ones_and_a_light_one(by, tolerance=1.3)
    assert (found.mode, found.reasons) == (SharingMode.EXCLUSIVE, (against_mps, IN_TURNS))


def test_jobs_in_the_faster_mode_need_no_reason() -> None:
    assert advise([job(sm=0.2, dram=0.1), job(sm=0.2, dram=0.1, name="b")], GPU).reasons == ()
