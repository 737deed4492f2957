"""How often jobs that compute and pause meet on the GPU, and how long they then take: from seconds alone to seconds together.

A job alone runs kernels for a part of its time and pauses for the rest. What a job meets when it comes to the GPU is what
the others would be doing without it (the arrival theorem of closed queueing networks), so each set of jobs follows from the
sets with one job less. It refuses to know what kernels do to each other: that is a function that its caller brings.

Source: Reiser, Lavenberg, Mean-value analysis of closed multichain queuing networks (JACM 1980). With kernels that take
turns and two jobs it gives 1 − d_i + d_i (1 + d_j).
"""

from collections.abc import Callable, Sequence

KernelSlowdown = Callable[[int, Sequence[float]], float]
"""How many times longer the kernels of job i take, given for each job how much of the time its kernels run beside."""

MOST_EXACT = 6
"""Up to so many jobs every combination of running kernels is looked at (3^n of them); beyond, companions are averaged."""

_ROUNDS = 200
_SETTLED = 1e-9


def slowdowns(busy: Sequence[float], stretch: KernelSlowdown) -> tuple[float, ...]:
    """Return how many times longer each job takes with all the others than alone.

    Args:
        busy: For each job the fraction of its time alone in which a kernel runs, 0 to 1.
        stretch: What kernels do to each other; at least 1, and never less with more companions.
    """
    kernels = _Sets(busy, stretch).stretches() if len(busy) <= MOST_EXACT else _averaged(busy, stretch)
    return tuple(1 - part + part * longer for part, longer in zip(busy, kernels, strict=True))


class _Sets:
    """What each set of the jobs would do without the others, as bit masks."""

    def __init__(self, busy: Sequence[float], stretch: KernelSlowdown) -> None:
        self._busy = busy
        self._stretch = stretch
        self._known: dict[tuple[int, int], float] = {}

    def stretches(self) -> list[float]:
        everybody = (1 << len(self._busy)) - 1
        return [self._stretched(job, everybody & ~(1 << job)) for job in range(len(self._busy))]

    def _stretched(self, job: int, others: int) -> float:
        if (job, others) not in self._known:
            self._known[job, others] = self._expected(job, self._members(others), others)
        return self._known[job, others]

    def _expected(self, job: int, members: Sequence[int], others: int) -> float:
        """Average over which of the others run kernels at the moment."""
        active = [_activity(self._busy[each], self._stretched(each, others & ~(1 << each))) for each in members]
        total = 0.0
        for running in range(1 << len(members)):
            beside = [0.0] * len(self._busy)
            chance = 1.0
            for place, each in enumerate(members):
                is_running = bool(running >> place & 1)
                beside[each] = float(is_running)
                chance *= active[place] if is_running else 1 - active[place]
            if chance:
                total += chance * self._stretch(job, beside)
        return total

    def _members(self, others: int) -> list[int]:
        return [each for each in range(len(self._busy)) if others >> each & 1]


def _activity(busy: float, stretched: float) -> float:
    """Return the fraction of its time in which a job whose kernels take so much longer runs them."""
    return busy * stretched / (1 - busy + busy * stretched)


def _averaged(busy: Sequence[float], stretch: KernelSlowdown) -> list[float]:
    """Let everybody meet the others as they are on average; the fixed point is approached from below."""
    kernels = [1.0] * len(busy)
    for _ in range(_ROUNDS):
        active = [_activity(part, longer) for part, longer in zip(busy, kernels, strict=True)]
        found = [stretch(job, [*active[:job], 0.0, *active[job + 1 :]]) for job in range(len(busy))]
        is_settled = max(abs(new - old) for new, old in zip(found, kernels, strict=True)) < _SETTLED
        kernels = found
        if is_settled:
            break
    return kernels
