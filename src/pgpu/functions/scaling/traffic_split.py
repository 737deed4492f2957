"""Which version gets the next request: by shares of the requests, or, where versions do not fit side by side, of the time. Pure.

Versions that share one place would replace each other at each request: a rollout of 10 % on a full GPU would start a replica for
every tenth call. So each one serves alone for its share of the time. Every change starts the next version beside the one that
serves, which shows whether both fit by now.
"""

from collections.abc import Mapping, Sequence

from pgpu.functions.scaling.replica_policy import FITS_WITHIN_SECONDS, Phase, ReplicaView
from pgpu.structs import Struct

LEAST_WINDOW_SECONDS = 10.0
"""Of the version with the smallest share."""

COLD_STARTS = 5
"""The smallest window is so many times as long as a start, since calls wait during one."""


class TrafficSplit:
    """Smooth weighted round robin over the versions.

    Deterministic: of any hundred requests in a row, each version gets its percentage, with a deviation of at most one.

    Source: the balancer of nginx ("upstream: smooth weighted round-robin balancing", 2012).
    """

    def __init__(self, percents: Mapping[int, int]) -> None:
        """Start with all credits at zero.

        Args:
            percents: Percentage of each version, by number; above 0.
        """
        self._percents = dict(percents)
        self._credit = dict.fromkeys(self._percents, 0)
        self._whole = sum(self._percents.values())
        self._only = next(iter(self._percents)) if len(self._percents) == 1 else None

    @property
    def percents(self) -> dict[int, int]:
        """Percentage of each version."""
        return dict(self._percents)

    def next(self) -> int:
        """Return the version of the next request.

        Raises:
            StopIteration: There is no version.
        """
        if self._only is not None:
            return self._only
        # Each version earns its percentage; the one with most credit is chosen and pays the sum, so credits always sum to zero.
        for version, percent in self._percents.items():
            self._credit[version] += percent
        if not self._credit:
            raise StopIteration
        chosen = max(self._credit, key=self._credit.__getitem__)
        self._credit[chosen] -= self._whole
        return chosen


def fits_side_by_side(numbers: Sequence[int], replicas: Sequence[ReplicaView], now_seconds: float) -> bool | None:
    """Return whether all versions with traffic have replicas at the same time; None: nothing shows it now.

    Args:
        numbers: Of the versions with traffic.
        replicas: Of all versions.
        now_seconds: On the clock of the replicas.
    """
    phases = {number: {each.phase for each in replicas if each.version == number} for number in numbers}
    serving = [number for number in numbers if Phase.HOT in phases[number]]
    if len(serving) == len(numbers):
        return True
    is_any_late = any(
        each.phase is Phase.WAITING
        and now_seconds - each.since_seconds >= FITS_WITHIN_SECONDS
        and not phases[each.version] & {Phase.STARTING, Phase.HOT}
        for each in replicas
        if each.version in phases
    )
    return False if serving and is_any_late else None


class Window(Struct, frozen=True):
    """A time in which one version serves alone."""

    version: int
    since_seconds: float


def next_window(
    percents: Mapping[int, int], window: Window | None, now_seconds: float, cold_seconds: float, *, is_kept: bool
) -> Window:
    """Return the window of now: the last one, until its time is over.

    Each window is measured from its own begin: the duration of starts is learned during windows and must not end one early.

    Args:
        percents: Percentage of each version, by number; above 0.
        window: The last one; None for the first.
        now_seconds: On the clock of the windows.
        cold_seconds: Duration of a start, 0 or more.
        is_kept: Whether the last one goes on whatever its time.
    """
    ordered = sorted(percents, key=lambda number: (percents[number], -number))
    if window is None:
        # The smallest share is first: the newcomer is seen at once.
        return Window(ordered[0], now_seconds)
    least_seconds = max(LEAST_WINDOW_SECONDS, COLD_STARTS * cold_seconds)
    seconds = least_seconds * percents[window.version] / percents[ordered[0]]
    if is_kept or now_seconds - window.since_seconds < seconds:
        return window
    return Window(ordered[(ordered.index(window.version) + 1) % len(ordered)], now_seconds)
