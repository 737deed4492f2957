"""How a program's peak grows with the one number of its call that decides it, such as a batch size.

Between two numbers that were seen, the larger neighbour tells. Past the largest a straight line through the last two,
times a factor, tells up to twice that number; and never more than in proportion, since what stays the same does not grow.
Where the last doubling made the peak grow by little or by more than in proportion the line says nothing, and so does this.

The factor is the conformal upper quantile of (peak / line) at 0.75 %, fitted on half of the vision models of GPUMemNet's
measurements (itu-rad, CC-BY-4.0); `benchmarks.demand` fits it again and scores the other half.

Source: split conformal prediction (Papadopoulos et al., 2002).
"""

from collections.abc import Sequence
from dataclasses import dataclass

_LINE_POINTS = 2

Point = tuple[tuple[float, ...], int]
"""The numbers of a call, and the peak in bytes that a run of it had."""


@dataclass(frozen=True, slots=True)
class GrowthRules:
    """Where a line is believed, and how far."""

    factor: float = 1.17
    """Times the line; see above. The two halves of the models ask for 1.152 and 1.198, all together for 1.163."""

    least_growth: float = 1.2
    """Peak over peak of half the number: below, other things than the number decide."""

    most_growth: float = 1.9
    """Above it was no line: nothing that has a fixed part grows so."""

    farthest: float = 2.0
    """Past the largest number seen, no further than times this."""

    neighbour_margin: float = 1.10
    """Times the peak of the neighbours, between numbers that were seen: peaks are not monotone."""

    agreement: float = 1.05
    """Peaks this close are the same."""

    values_without_effect: int = 5
    """A number that took so many values, all with the same peak, does not matter at all."""


def estimate_growth_bytes(
    numbers: tuple[float, ...], points: Sequence[Point], rules: GrowthRules | None = None
) -> int | None:
    """Estimate the peak of a call, margins included.

    Args:
        numbers: Of the call.
        points: Of calls that differ from it in numbers at most.
        rules: How careful to be.

    Returns:
        None where the points do not tell.
    """
    rules = rules or GrowthRules()
    varying = [at for at in range(len(numbers)) if len({each[at] for each, _ in points}) > 1]
    fixed = [at for at in range(len(numbers)) if at not in varying]
    if not points or any(points[0][0][at] != numbers[at] for at in fixed):
        return None
    if varying and _agree([peak for _, peak in points], rules):
        return _without_effect(numbers, points, varying, rules)
    deciding = [at for at in varying if _decides(at, points, rules)]
    if len(deciding) != 1:
        return None
    return at_number(numbers[deciding[0]], _peaks_by_number(deciding[0], points), rules)


def at_number(number: float, peaks: dict[float, int], rules: GrowthRules | None = None) -> int | None:
    """Estimate the peak at one number from the peaks at others; None where they do not tell."""
    rules = rules or GrowthRules()
    below = [known for known in sorted(peaks) if known <= number]
    above = [known for known in sorted(peaks) if known >= number]
    if above and below:
        return int(max(peaks[below[-1]], peaks[above[0]]) * rules.neighbour_margin)
    if above or len(below) < _LINE_POINTS:
        return None
    return _past_the_largest(number, below[-1], below[-2], peaks, rules)


def line_bytes(number: float, last: float, before: float, peaks: dict[float, int]) -> float:
    """Return the straight line through the peaks at `before` and `last`, at `number`."""
    slope = (peaks[last] - peaks[before]) / (last - before)
    return peaks[last] + slope * (number - last)


def last_growth(last: float, before: float, peaks: dict[float, int]) -> float:
    """Return by how much the peak grew over the last doubling, along the line."""
    half_bytes = line_bytes(last / 2, last, before, peaks)
    return peaks[last] / half_bytes if half_bytes > 0 else float("inf")


def _past_the_largest(
    number: float, last: float, before: float, peaks: dict[float, int], rules: GrowthRules
) -> int | None:
    is_believed = rules.least_growth <= last_growth(last, before, peaks) < rules.most_growth
    if number > rules.farthest * last or not is_believed:
        return None
    in_proportion = peaks[last] * number / last
    return int(min(rules.factor * line_bytes(number, last, before, peaks), in_proportion))


def _without_effect(
    numbers: tuple[float, ...], points: Sequence[Point], varying: Sequence[int], rules: GrowthRules
) -> int | None:
    """All peaks are the same: a number then matters only where few of its values were seen, all on one side."""
    for at in varying:
        seen = {each[at] for each, _ in points}
        if len(seen) < rules.values_without_effect and not min(seen) <= numbers[at] <= max(seen):
            return None
    return int(max(peak for _, peak in points) * rules.neighbour_margin)


def _decides(at: int, points: Sequence[Point], rules: GrowthRules) -> bool:
    """Whether calls with the same number there have the same peak, whatever their other numbers are."""
    groups: dict[float, list[int]] = {}
    for numbers, peak in points:
        groups.setdefault(numbers[at], []).append(peak)
    return all(_agree(peaks, rules) for peaks in groups.values())


def _agree(peaks: Sequence[int], rules: GrowthRules) -> bool:
    return max(peaks) <= rules.agreement * min(peaks)


def _peaks_by_number(at: int, points: Sequence[Point]) -> dict[float, int]:
    peaks: dict[float, int] = {}
    for numbers, peak in points:
        peaks[numbers[at]] = max(peak, peaks.get(numbers[at], 0))
    return peaks
