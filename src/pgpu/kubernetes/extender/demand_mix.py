"""Which pods came lately: what is likely to come is learned from them. It refuses to know where they went."""

from collections import deque
from collections.abc import Iterable

from pgpu.scheduling.outlook import JobShape

FIRST_LOOK = 32
"""Pods after which the mix is looked at for the first time; then after twice as many."""

MOST_RECENT = 16_384
"""Pods that the mix is taken from; after so many it is looked at again."""


class DemandMix:
    """The last pods, each once, however often the scheduler tries it."""

    def __init__(self) -> None:
        self._shapes: deque[JobShape] = deque(maxlen=MOST_RECENT)
        self._uids: dict[str, None] = {}
        self._come = 0
        self._next_look = FIRST_LOOK

    @property
    def shapes(self) -> Iterable[JobShape]:
        """What they asked for."""
        return self._shapes

    def add(self, uid: str, shape: JobShape) -> None:
        """Note a pod."""
        if uid in self._uids:
            return
        self._uids[uid] = None
        if len(self._uids) > MOST_RECENT:
            del self._uids[next(iter(self._uids))]
        self._shapes.append(shape)
        self._come += 1

    def is_due(self) -> bool:
        """Whether so many have come that it is worth looking at anew; true once for each time."""
        if self._come < self._next_look:
            return False
        while self._next_look <= self._come:
            self._next_look += min(self._next_look, MOST_RECENT)
        return True
