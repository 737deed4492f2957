"""Sets of time: how long at least one of many things went on. Pure; whole nanoseconds, ends excluded."""

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Join what overlaps or touches, in order; what is empty or backwards is left out."""
    joined: list[Interval] = []
    for begin, end in sorted(each for each in intervals if each[0] < each[1]):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def length(intervals: Iterable[Interval]) -> int:
    """Return the time that disjoint intervals cover."""
    return sum(end - begin for begin, end in intervals)


def overlap(intervals: Sequence[Interval], span: Interval) -> int:
    """Return how much of a span disjoint, ordered intervals cover."""
    total = 0
    for begin, end in intervals[bisect_right(intervals, span[0], key=lambda each: each[1]) :]:
        if begin >= span[1]:
            break
        total += max(0, min(end, span[1]) - max(begin, span[0]))
    return total


def covered(intervals: Sequence[Interval], window: Interval, bins: int) -> list[float]:
    """Return which fraction of each of so many equal parts of a window disjoint, ordered intervals cover."""
    begin, end = window
    if end <= begin:
        return [0.0] * bins
    edges = [begin + (end - begin) * number // bins for number in range(bins + 1)]
    spans = itertools.pairwise(edges)
    return [overlap(intervals, span) / (span[1] - span[0]) if span[0] < span[1] else 0.0 for span in spans]
