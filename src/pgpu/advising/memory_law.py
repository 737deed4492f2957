"""A law of how the peak of a program follows from the numbers of its call, fitted to earlier runs.

The law is c + at most three terms, each a number, its square or the product of two, with coefficients that are not negative:
weights that grow with a width, activations with batch times length. Forward selection on the squared relative error: a term is
added if it cuts the error by a quarter and there are two runs for each coefficient but one. So a number without effect, such
as a seed or a learning rate, gets no term, and more data makes the law no less simple than it need be.

Sources: forward selection and least squares as in Hastie, Tibshirani and Friedman, *The Elements of Statistical Learning*,
chapter 3; the form of the terms and the threshold were chosen by simulation (decision 0084).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod

from pgpu.structs import Struct

# The numbers of a call, and the peak of one run of it in bytes.
Point = tuple[tuple[float, ...], int]

# Places of the numbers that are multiplied.
Term = tuple[int, ...]

MOST_TERMS = 3

# What a further term must leave of the squared error at most.
WORTHWHILE = 0.75

# Mean squared relative error below which a law is exact: 0.01 % off.
EXACT = 1e-8

# Below this share of its own square a column is a combination of others, up to rounding.
_DEPENDENT = 1e-9

# Numbers beyond so many are not examined: the terms grow with their square.
MOST_NUMBERS = 12


class MemoryLaw(Struct, frozen=True):
    """Peak in bytes as a function of the numbers of a call."""

    constant: float
    terms: tuple[tuple[Term, float], ...] = ()
    """Each with its coefficient, above 0."""

    def at(self, numbers: Sequence[float]) -> float:
        """Return the peak at these numbers, in bytes; it falls in none of them."""
        return self.constant + sum(factor * prod(numbers[place] for place in term) for term, factor in self.terms)


@lru_cache(maxsize=64)
def fit_law(points: tuple[Point, ...]) -> MemoryLaw:
    """Fit a law to runs of one family, in some 4 ms for 60 runs of four numbers.

    Args:
        points: At least one; peaks above 0. Their order has no effect.
    """
    # Relative errors: every column is divided by the peaks, so the target is 1 everywhere.
    numbers, weights = [numbers for numbers, _ in points], [1.0 / peak for _, peak in points]
    columns: dict[Term, list[float]] = {(): weights}
    for term in _candidates(numbers):
        products = [prod(each[place] for place in term) for each in numbers]
        # Of two numbers of which one is 0 in each run, the product shows nothing.
        if (largest := max(products)) > 0:
            columns[term] = [value / largest * weight for value, weight in zip(products, weights, strict=True)]
    chosen: tuple[Term, ...] = ((),)
    solved = _solve(columns, chosen)
    while solved is not None and solved[1] > EXACT * len(points) and _may_add(len(chosen), len(points)):
        tried = [((*chosen, term), _solve(columns, (*chosen, term))) for term in columns if term not in chosen]
        better = [(found[1], terms, found) for terms, found in tried if found is not None]
        if not better or (best := min(better))[0] > WORTHWHILE * solved[1]:
            break
        _, chosen, solved = best
    factors = solved[0] if solved is not None else [0.0]
    scaled = [
        (term, factor / max(prod(each[place] for place in term) for each in numbers))
        for term, factor in zip(chosen[1:], factors[1:], strict=True)
    ]
    return MemoryLaw(factors[0], tuple(scaled))


def _may_add(coefficients: int, points: int) -> bool:
    """Whether there are enough points for one more term; a line through two points is the exception."""
    return coefficients <= MOST_TERMS and (points > 2 * coefficients or (coefficients, points) == (1, 2))


def _candidates(numbers: Sequence[tuple[float, ...]]) -> Iterator[Term]:
    varying = [place for place in range(len(numbers[0])) if len({each[place] for each in numbers}) > 1][:MOST_NUMBERS]
    if len(numbers) <= MOST_TERMS and len(varying) > 1:
        return  # two or three runs that differ in several numbers leave open which of them counts
    for at, place in enumerate(varying):
        yield (place,)
        if len(numbers) > MOST_TERMS:
            yield from ((place, other) for other in varying[at:])


def _solve(columns: dict[Term, list[float]], terms: Sequence[Term]) -> tuple[list[float], float] | None:
    """Return the least-squares coefficients of these columns and the squared error; the constant is 0 where it were negative.

    None if another coefficient were not positive, or the columns depend on each other.
    """
    own = [columns[term] for term in terms]
    matrix = [[*(_dot(one, other) for other in own), sum(one)] for one in own]
    factors = _eliminate(matrix)
    if factors is not None and factors[0] < 0:
        rest = _eliminate([row[1:] for row in matrix[1:]])
        factors = None if rest is None else [0.0, *rest]
    if factors is None or any(factor <= 0 for factor in factors[1:]):
        return None
    rows = zip(*own, strict=True)
    return factors, sum((_dot(factors, row) - 1.0) ** 2 for row in rows)


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(left * right for left, right in zip(one, other, strict=True))


def _eliminate(matrix: Sequence[Sequence[float]]) -> list[float] | None:
    """Solve a symmetric system by elimination, the right side in the last column; None if it is singular up to rounding."""
    rows = [list(row) for row in matrix]
    size = len(rows)
    for at in range(size):
        if rows[at][at] <= _DEPENDENT * matrix[at][at]:
            return None
        for below in range(at + 1, size):
            share = rows[below][at] / rows[at][at]
            rows[below] = [value - share * above for value, above in zip(rows[below], rows[at], strict=True)]
    found = [0.0] * size
    for at in reversed(range(size)):
        known = sum(rows[at][place] * found[place] for place in range(at + 1, size))
        found[at] = (rows[at][size] - known) / rows[at][at]
    return found
