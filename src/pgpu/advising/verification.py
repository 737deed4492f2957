"""Trial of MPS against turns, decided by the progress of the running jobs themselves.

Jobs run together for a while, then take turns for a while (one launches, the others are paused), and the faster way is used until
the set of jobs changes, or until the verdict is old and the programs may have changed; then both are tried again. If a job
launches too little, a phase has no result and is repeated: at once while all run together, which costs nothing, and with
exponential backoff after turns. The caller reads the launch counts, pauses jobs and passes in the time.

Source: MISO (SoCC 2022) and Orion decide by trial as well; the 20 s, the 5 % and the 10 minutes are from our design.
"""

import math
from collections.abc import Mapping
from enum import StrEnum

from pgpu.structs import Struct, field, replace


class Way(StrEnum):
    """How jobs under MPS launch."""

    TOGETHER = "together"
    TURNS = "turns"


class VerificationRules(Struct, frozen=True):
    """Durations and thresholds of a trial."""

    look_seconds: float = 20.0
    """Length of each phase."""

    settle_seconds: float = 1.0
    """Settling time after each change, before progress counts."""

    least_gain: float = 1.05
    """Least speedup of running together; otherwise jobs take turns, since contention may have effects that are not measured."""

    least_launches: int = 10
    """Launches of each job in each phase; with fewer the phase has no result."""

    memory_seconds: float = 600.0
    """Lifetime of a verdict on the same programs, and the longest backoff after turns without result."""


DEFAULT_RULES = VerificationRules()

# Turns without result are counted up to here; the backoff has reached its maximum long before.
_MOST_TURNS_WITHOUT_RESULT = 30


class Verdict(Struct, frozen=True):
    """Result of a trial of some programs together on one model of GPU."""

    way: Way
    gain: float
    """Geometric mean of progress together by progress in turns."""

    at_seconds: float
    """Since the epoch."""


class Trial(Struct, frozen=True):
    """State of the trial of one set of jobs. Times are of the monotonic clock."""

    job_ids: frozenset[str] = frozenset()
    way: Way = Way.TOGETHER
    since_seconds: float = 0.0
    """Start of the current phase."""

    marks: Mapping[str, int] = field(default_factory=dict)
    """Launches of each job when progress began to count; empty before."""

    marked_at_seconds: float = 0.0
    together: Mapping[str, float] | None = None
    """Launches per second of each job together, once measured."""

    gain: float | None = None
    """None until both ways were measured."""

    decided_at_seconds: float | None = None
    """None while the trial runs; infinite for a job alone, which needs no trial."""

    pause_seconds: float = 0.0
    """Backoff after turns without result."""

    turns_without_result: int = 0
    """Number of turns without result."""

    @property
    def is_over(self) -> bool:
        """Whether a way was chosen."""
        return self.decided_at_seconds is not None


def begin(
    job_ids: frozenset[str],
    now_seconds: float,
    known: Verdict | None,
    *,
    known_age_seconds: float,
    rules: VerificationRules = DEFAULT_RULES,
) -> Trial:
    """Begin a trial of a set of jobs, or take over a recent verdict on the same programs.

    Args:
        job_ids: Ids of the jobs.
        now_seconds: Of the monotonic clock.
        known: The last verdict on these programs; None if there is none.
        known_age_seconds: Its age.
        rules: Durations and thresholds.
    """
    if len(job_ids) < 2:  # noqa: PLR2004 - one job alone needs no trial
        return Trial(job_ids, Way.TOGETHER, now_seconds, decided_at_seconds=math.inf)
    if known is not None and known_age_seconds < rules.memory_seconds:
        decided_at_seconds = now_seconds - known_age_seconds
        return Trial(job_ids, known.way, now_seconds, gain=known.gain, decided_at_seconds=decided_at_seconds)
    return Trial(job_ids, Way.TOGETHER, now_seconds)


def advance(
    trial: Trial, launches: Mapping[str, int], now_seconds: float, rules: VerificationRules = DEFAULT_RULES
) -> Trial:
    """Return the next state of a trial.

    Args:
        trial: Its last state.
        launches: Total launches of each of its jobs.
        now_seconds: Of the monotonic clock.
        rules: Durations and thresholds.
    """
    if trial.decided_at_seconds is not None:
        is_stale = now_seconds >= trial.decided_at_seconds + rules.memory_seconds
        return Trial(trial.job_ids, Way.TOGETHER, now_seconds) if is_stale else trial
    if not trial.marks:
        # Marks are taken only once every job has reported: the launches of all are compared over the same time.
        is_settled = now_seconds >= trial.since_seconds + trial.pause_seconds + rules.settle_seconds
        is_complete = trial.job_ids <= launches.keys()
        return (
            replace(trial, marks=dict(launches), marked_at_seconds=now_seconds) if is_settled and is_complete else trial
        )
    if now_seconds < trial.marked_at_seconds + rules.look_seconds:
        return trial
    return _end_phase(trial, launches, now_seconds, rules)


def _end_phase(trial: Trial, launches: Mapping[str, int], now_seconds: float, rules: VerificationRules) -> Trial:
    """End a phase: repeat it if it has no result, else go on to turns, or compare both ways."""
    seen = {job: launches.get(job, 0) - trial.marks[job] for job in trial.job_ids}
    if min(seen.values()) < rules.least_launches:
        # Again from running together; after turns without a result only after an exponential backoff.
        anew = replace(trial, way=Way.TOGETHER, since_seconds=now_seconds, marks={}, together=None)
        if trial.way is Way.TOGETHER:
            return replace(anew, pause_seconds=0.0)
        pause_seconds = min(rules.look_seconds * 2**trial.turns_without_result, rules.memory_seconds)
        return replace(
            anew,
            pause_seconds=pause_seconds,
            turns_without_result=min(trial.turns_without_result + 1, _MOST_TURNS_WITHOUT_RESULT),
        )
    rates = {job: count / (now_seconds - trial.marked_at_seconds) for job, count in seen.items()}
    together = trial.together
    if together is None:
        return replace(trial, way=Way.TURNS, since_seconds=now_seconds, marks={}, together=rates, pause_seconds=0.0)
    # A geometric mean of ratios: each job counts alike, however often it launches.
    gain = math.exp(sum(math.log(together[job] / rate) for job, rate in rates.items()) / len(rates))
    way = Way.TOGETHER if gain >= rules.least_gain else Way.TURNS
    return replace(trial, way=way, since_seconds=now_seconds, gain=gain, decided_at_seconds=now_seconds)
