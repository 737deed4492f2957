"""How the peak of a program follows from the numbers of its call."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.advising.memory_law import Point, fit_law
from pgpu.units import GIB, MIB

numbers = st.sampled_from([0.0, 1.0, 2.0, 8.0, 16.0, 32.0, 64.0, 0.001, 1024.0])
points = st.lists(st.tuples(st.tuples(numbers, numbers), st.integers(64 * MIB, 80 * GIB)), min_size=1, max_size=12).map(
    tuple
)


def a_sweep(noise: float = 0.0) -> tuple[Point, ...]:
    """Return runs at several widths, batches, learning rates and seeds; width and batch count, by their product and a square."""
    dice, found = random.Random(5), []
    for width, batch in itertools.product((256, 512, 768, 1024), (16, 32, 64)):
        peak = GIB + 1024 * width**2 + 64 * 1024 * width * batch
        call = (float(width), float(batch), dice.uniform(0.0001, 0.01), float(dice.randrange(1000)))
        found.append((call, int(peak * (1 + dice.uniform(-noise, noise)))))
    return tuple(found)


def test_a_law_of_several_numbers_is_found_and_holds_where_nothing_ran() -> None:
    law = fit_law(a_sweep())
    assert {term for term, _ in law.terms} == {(0, 1), (0, 0)}
    peak = GIB + 1024 * 2048**2 + 64 * 1024 * 2048 * 128
    assert law.at((2048.0, 128.0, 0.1, 7.0)) == pytest.approx(peak, rel=1e-3)


def test_of_two_numbers_one_may_be_zero_in_each_run() -> None:
    runs = (((0.0, 1.0), 5 * GIB), ((1.0, 0.0), 6 * GIB)) * 3
    assert fit_law(runs).at((1.0, 0.0)) == pytest.approx(6 * GIB)


def test_numbers_without_effect_get_no_term() -> None:
    law = fit_law(a_sweep(noise=0.01))
    assert all(place < 2 for term, _ in law.terms for place in term)
    constant = fit_law(tuple(((float(seed),), 3 * GIB + seed % 3 * MIB) for seed in range(20)))
    assert constant.terms == ()


def test_two_runs_give_a_line_if_they_differ_in_one_number_only() -> None:
    line = fit_law((((8.0, 1.0), 4 * GIB), ((16.0, 1.0), 6 * GIB)))
    assert line.at((32.0, 1.0)) == pytest.approx(10 * GIB)
    assert fit_law((((8.0, 1.0), 4 * GIB), ((16.0, 2.0), 6 * GIB))).terms == ()


def test_a_peak_that_falls_with_a_number_gives_a_constant() -> None:
    law = fit_law(tuple(((float(number),), 9 * GIB - number * GIB) for number in range(1, 6)))
    assert law.terms == ()
    assert 4 * GIB < law.constant < 8 * GIB


def test_a_law_without_a_constant_part_stays_above_zero() -> None:
    law = fit_law(tuple(((float(number),), int(number**2.5) * MIB) for number in (1, 2, 4, 8, 16, 32)))
    assert all(law.at((number,)) >= 0 for number in (0.0, 0.5, 1.0, 64.0))


@given(points)
def test_a_law_falls_in_no_number(runs: tuple[Point, ...]) -> None:
    law = fit_law(runs)
    for low, high in itertools.pairwise(sorted({number for (number, _), _ in runs})):
        assert law.at((low, 8.0)) <= law.at((high, 8.0))
        assert law.at((8.0, low)) <= law.at((8.0, high))


@given(st.randoms(use_true_random=False))
def test_the_order_of_runs_has_no_effect(dice: random.Random) -> None:
    runs = a_sweep(noise=0.03)
    shuffled = list(runs)
    dice.shuffle(shuffled)
    one, other = fit_law(runs), fit_law(tuple(shuffled))
    assert [term for term, _ in one.terms] == [term for term, _ in other.terms]
    assert one.at((512.0, 32.0, 0.0, 0.0)) == pytest.approx(other.at((512.0, 32.0, 0.0, 0.0)), rel=1e-9)


@given(st.floats(1e-3, 1e3), st.integers(1, 16))
def test_units_of_numbers_and_bytes_have_no_effect(scale: float, factor: int) -> None:
    runs = a_sweep(noise=0.03)
    scaled = tuple(((width * scale, *rest), peak * factor) for (width, *rest), peak in runs)
    one, other = fit_law(runs), fit_law(scaled)
    for (width, *rest), _ in runs:
        assert other.at((width * scale, *rest)) == pytest.approx(factor * one.at((width, *rest)), rel=1e-6)
