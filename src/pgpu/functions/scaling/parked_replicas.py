"""Which parked replicas end because there are too many: they hold no GPU, but memory of the host, and a supervisor each. Pure."""

from collections.abc import Mapping

MOST_PARKED = 32
"""Of all functions of a gateway. Each costs the host some 50 MB and, every second, a millisecond of a core."""


def excess_parked(values: Mapping[str, float], *, is_host_short: bool, most: int = MOST_PARKED) -> list[str]:
    """Return the ids of those that go, those worth least first.

    Args:
        values: What each parked replica is worth, by id; see `value.py`.
        is_host_short: Whether the host has little memory left: then one more goes at each look.
        most: How many may stay, 0 or more.
    """
    count = max(len(values) - most, int(is_host_short and bool(values)))
    return sorted(values, key=lambda job_id: (values[job_id], job_id))[: max(0, count)]
