"""Whether the kernel ended somebody in this container for want of memory: it counts that, and says whom nowhere.

It refuses to guess: where no control group is seen, nobody was ended for that.
"""

from collections.abc import Sequence
from pathlib import Path

_COUNTS = (
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory/memory.oom_control"),
)
"""Of control groups of version 2 and of version 1, as a container sees its own. Source: the kernel's cgroup-v2.rst, memory.rst."""


class OomKillCounter:
    """The count of one control group, followed."""

    def __init__(self, places: Sequence[Path] = _COUNTS) -> None:
        """Begin with what was counted before."""
        self._places = places
        self._count = self._read()

    def is_another(self) -> bool:
        """Say whether it has grown since it was asked last."""
        before, self._count = self._count, self._read()
        return self._count > before

    def _read(self) -> int:
        for place in self._places:
            try:
                lines = place.read_text("ascii").splitlines()
                return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
            except (OSError, ValueError, IndexError, StopIteration):
                continue
        return 0
