"""Choice of the version for the next request, exact for each run of requests and not only on average.

Deterministic: of any hundred requests in a row, each version gets its percentage, with a deviation of at most one.
"""

from collections.abc import Mapping


class TrafficSplit:
    """Smooth weighted round robin.

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
        for version, percent in self._percents.items():
            self._credit[version] += percent
        if not self._credit:
            raise StopIteration
        chosen = max(self._credit, key=self._credit.__getitem__)
        self._credit[chosen] -= self._whole
        return chosen
