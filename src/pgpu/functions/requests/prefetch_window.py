"""How many calls lie with the worker beyond those that it runs. Pure arithmetic.

Short calls are sent ahead, so that the worker finds the next one in its socket; of long ones only one is, so that the
front can still drop or retry the others by itself. It refuses to know which calls those are.
"""

_AHEAD_SECONDS = 0.001
"""Work that may lie ahead: ten times what a turn of front and worker costs."""

_MOST_AHEAD = 64
_WEIGHT = 0.125
"""Of the newest call in the moving mean."""


class PrefetchWindow:
    """The window for one worker, learned from how long calls take."""

    def __init__(self, slots: int, *, is_batched: bool) -> None:
        """Begin carefully.

        Args:
            slots: Calls that the worker runs at a time.
            is_batched: They are run together; the next batch must lie there when this one ends.
        """
        self._slots, self._is_batched = slots, is_batched
        self.exec_seconds = 0.0
        """The moving mean of what a call takes; 0: not known yet."""

        self.window = 2 * slots if is_batched else slots + 1
        """Calls that the worker may have, run or not."""

    def learn(self, exec_seconds: float) -> None:
        """Take note of one call's time."""
        self.exec_seconds += _WEIGHT * (exec_seconds - self.exec_seconds)
        if not self._is_batched:
            self.window = self._slots + max(1, min(_MOST_AHEAD, int(_AHEAD_SECONDS / (self.exec_seconds + 1e-9))))
