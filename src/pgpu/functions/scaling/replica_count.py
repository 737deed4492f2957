"""How many replicas a load wants. Pure arithmetic.

Up is at once, since each request is counted; but a queue that is gone before anybody notices wants none more, and
while nobody knows what a call takes one replica shows it.
"""

import math

TOLERABLE_SECONDS = 0.1
"""A queue that is done so soon is no reason for another replica: people take less for immediate (Nielsen 1993)."""


def wanted_replicas(
    busy: int, slots: int, exec_seconds: float | None, floor: int, maximum: int, *, running: int = 0
) -> int:
    """Say how many replicas there should be.

    Args:
        busy: Requests that wait or run, 0 or more.
        slots: Calls that one replica runs at a time, 1 or more.
        exec_seconds: What a call takes, on average; None if nobody knows.
        floor: There are at least so many.
        maximum: And at most so many, 1 or more; it goes over the floor.
        running: Those that serve now: more load never wants fewer of them because nothing is known.
    """
    return min(maximum, max(floor, _needed(busy, slots, exec_seconds, running)))


def _needed(busy: int, slots: int, exec_seconds: float | None, running: int) -> int:
    if busy == 0:
        return 0
    each_one = math.ceil(busy / slots)
    if exec_seconds is None:
        return min(each_one, max(1, running))
    return max(1, min(each_one, math.ceil(busy * exec_seconds / (slots * TOLERABLE_SECONDS))))
