"""Slowdown of jobs that alternate between kernels and pauses, from the slowdown of concurrent kernels.

A job alone runs kernels for a part of its time and pauses for the rest. On arrival at the GPU it sees what the other jobs would
do without it (arrival theorem of closed queueing networks), so the result for a set of jobs follows from sets with one job less.

Source: Reiser, Lavenberg, Mean-value analysis of closed multichain queuing networks (JACM 1980). For two jobs whose kernels take
turns it gives 1 - d_i + d_i (1 + d_j).
"""

from collections.abc import Callable, Sequence

# Slowdown of the kernels of job i, given for each job the fraction of the time in which its kernels run beside.
KernelSlowdown = Callable[[int, Sequence[float]], float]

# Up to this many jobs every combination of running kernels is evaluated (3^n); above, averages of the others are used.
MOST_EXACT = 6

_ROUNDS = 200
_SETTLED = 1e-9


def slowdowns(busy: Sequence[float], stretch: KernelSlowdown) -> tuple[float, ...]:
    """Return the slowdown of each job with all the others against alone.

    Args:
        busy: For each job the fraction of its time alone in which a kernel runs, 0 to 1.
        stretch: Slowdown of kernels; at least 1, and not decreasing with more jobs.
    """
    kernels = _Sets(busy, stretch).stretches() if len(busy) <= MOST_EXACT else _averaged(busy, stretch)
    return tuple(1 - part + part * longer for part, longer in zip(busy, kernels, strict=True))


class _Sets:
    """Kernel slowdowns for every subset of other jobs, as bit masks."""

    def __init__(self, busy: Sequence[float], stretch: KernelSlowdown) -> None:
        self._busy = busy
        self._stretch = stretch
        self._known: dict[tuple[int, int], float] = {}

    def stretches(self) -> list[float]:
        all_jobs = (1 << len(self._busy)) - 1
        return [self._stretched(job, all_jobs & ~(1 << job)) for job in range(len(self._busy))]

    def _stretched(self, job: int, others: int) -> float:
        if (job, others) not in self._known:
            self._known[job, others] = self._expected(job, others)
        return self._known[job, others]

    def _expected(self, job: int, others: int) -> float:
        """Average over which of the others run kernels at the moment, each independently with its activity."""
        members = [each for each in range(len(self._busy)) if others >> each & 1]
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


def _activity(busy: float, stretched: float) -> float:
    """Return the fraction of its time in which a job runs kernels that are slowed down by `stretched`."""
    return busy * stretched / (1 - busy + busy * stretched)


def _averaged(busy: Sequence[float], stretch: KernelSlowdown) -> list[float]:
    """Return kernel slowdowns against the mean activity of the others; the fixed point is approached from below."""
    kernels = [1.0] * len(busy)
    for _ in range(_ROUNDS):
        active = [_activity(part, longer) for part, longer in zip(busy, kernels, strict=True)]
        found = [stretch(job, [*active[:job], 0.0, *active[job + 1 :]]) for job in range(len(busy))]
        is_settled = max(abs(new - old) for new, old in zip(found, kernels, strict=True)) < _SETTLED
        kernels = found
        if is_settled:
            break
    return kernels
