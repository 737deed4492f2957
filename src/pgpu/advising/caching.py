"""How often lines of a cache are still there when they are touched again.

A line stays until its next touch with probability exp(−lines that came in meanwhile / lines of the cache), as where a random
line makes room for each that comes. So sets that fit together lose nothing, sets that do not lose steeply, and who comes back
to its lines more often keeps more of them. It refuses to know addresses, sets of lines or what a miss costs.

Sources: StatCache (Berg, Hagersten, ISPASS 2004) for the equation, with one class of lines a job; Mei, Chu, Dissecting GPU memory
hierarchy through microbenchmarking (2017): GPUs' caches are not LRU.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STEPS = 40
_SETTLED = 1e-5


@dataclass(frozen=True, slots=True)
class Lines:
    """What one job comes back to."""

    footprint: float
    """Of the cache; 1 is all of it."""

    touches: float
    """How many lines it touches in a unit of time, in any unit that all share; 0 where nobody comes."""

    def stays(self, brought: float) -> float:
        """Return the chance that a line is still there, where so many come in each unit of time."""
        return math.exp(-brought * self.footprint / self.touches) if self.touches > 0 else 1.0


def hits(present: Sequence[Lines], stream: float) -> list[float]:
    """Return for each the part of its touches that find their line, 0 to 1.

    Newton's steps from above towards the lines that come in: the function is concave, so that no step goes too far, and where
    there are several answers it is the one in which least is kept.

    Args:
        present: Those who share the cache.
        stream: Lines that come in each unit of time and are never touched again.
    """
    most = brought = stream + sum(each.touches for each in present)
    for _ in range(_STEPS):
        missed, slope = stream, 0.0
        for each in present:
            left = each.stays(brought)
            missed += each.touches * (1 - left)
            slope += each.footprint * left if each.touches > 0 else 0.0
        after = max(stream, brought / 2 if slope >= 1 else brought - (missed - brought) / (slope - 1))
        if brought - after <= _SETTLED * most:
            break
        brought = after
    return [each.stays(brought) for each in present]
