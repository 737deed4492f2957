"""Whether jobs that run together under MPS really are faster so, told by their own progress.

They run together for a while, then they take turns for a while (each alone with its launches, the others held), and whichever
served them better stays until their company changes, or so long that they may have changed themselves: then both are looked at
anew. Who launches too little tells nothing, and is looked at again: at once while all run together, which costs nothing, and
after turns that told nothing only later, each time twice as late. This decides; it refuses to hold, to read or to wait: who
calls it does, and tells it the time.

Source: MISO (SoCC 2022) and Orion decide by trial too; the 20 s, the 5 % and the 10 minutes are the design's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Way(StrEnum):
    """How jobs under MPS go on."""

    TOGETHER = "together"
    TURNS = "turns"


@dataclass(frozen=True, slots=True)
class VerificationRules:
    """How long is looked, and what is enough."""

    look_seconds: float = 20.0
    """At each way."""

    settle_seconds: float = 1.0
    """After each change, before progress counts."""

    least_gain: float = 1.05
    """So many times faster must jobs be together, or they take turns: together one can hurt another unseen."""

    least_launches: int = 10
    """Of each job in each look; who launches less tells nothing."""

    memory_seconds: float = 600.0
    """A verdict on the same programs is not sought again before, and turns that told nothing are not tried again later."""


DEFAULT_RULES = VerificationRules()

_MOST_VAIN = 30
"""Turns in vain are counted so far; the pause has long reached its end."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found of some programs together on one kind of GPU."""

    way: Way
    gain: float
    """Geometric mean of progress together by progress in turns."""

    at_seconds: float
    """Since the epoch."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One company under trial. Moments are of the monotonic clock."""

    company: frozenset[str] = frozenset()
    """Ids of the jobs."""

    way: Way = Way.TOGETHER
    since_seconds: float = 0.0
    """Since when it goes this way."""

    marks: Mapping[str, int] = field(default_factory=dict)
    """Launches of each job when progress began to count; none before."""

    marked_at_seconds: float = 0.0
    together: Mapping[str, float] | None = None
    """Launches a second of each job, once that was seen."""

    gain: float | None = None
    """None until both ways were seen."""

    decided_at_seconds: float | None = None
    """None while it goes on; of a job alone, of which nothing is to be found, the end of time."""

    pause_seconds: float = 0.0
    """How long nothing is looked at after turns that told nothing."""

    vain_turns: int = 0
    """How often turns told nothing."""

    @property
    def is_over(self) -> bool:
        """Whether a way was chosen."""
        return self.decided_at_seconds is not None


def begin(
    company: frozenset[str],
    now_seconds: float,
    known: Verdict | None,
    *,
    known_age_seconds: float,
    rules: VerificationRules = DEFAULT_RULES,
) -> Trial:
    """Begin with a company, or take over what was found of the same programs not long ago.

    Args:
        company: Ids of the jobs.
        now_seconds: Of the monotonic clock.
        known: The last verdict on these programs; None where there is none.
        known_age_seconds: How old that is.
        rules: How long is looked.
    """
    if len(company) < 2:  # noqa: PLR2004 - one job is together with nobody
        return Trial(company, Way.TOGETHER, now_seconds, decided_at_seconds=math.inf)
    if known is not None and known_age_seconds < rules.memory_seconds:
        decided_at_seconds = now_seconds - known_age_seconds
        return Trial(company, known.way, now_seconds, gain=known.gain, decided_at_seconds=decided_at_seconds)
    return Trial(company, Way.TOGETHER, now_seconds)


def advance(
    trial: Trial, launches: Mapping[str, int], now_seconds: float, rules: VerificationRules = DEFAULT_RULES
) -> Trial:
    """Return how the trial goes on.

    Args:
        trial: As it was.
        launches: Of each job of the company until now.
        now_seconds: Of the monotonic clock.
        rules: How long is looked, and what is enough.
    """
    if trial.decided_at_seconds is not None:
        is_stale = now_seconds >= trial.decided_at_seconds + rules.memory_seconds
        return Trial(trial.company, Way.TOGETHER, now_seconds) if is_stale else trial
    if not trial.marks:
        is_settled = now_seconds >= trial.since_seconds + trial.pause_seconds + rules.settle_seconds
        is_told = trial.company <= launches.keys()
        return replace(trial, marks=dict(launches), marked_at_seconds=now_seconds) if is_settled and is_told else trial
    if now_seconds < trial.marked_at_seconds + rules.look_seconds:
        return trial
    return _seen(trial, launches, now_seconds, rules)


def _seen(trial: Trial, launches: Mapping[str, int], now_seconds: float, rules: VerificationRules) -> Trial:
    """End a look at one way."""
    seen = {job: launches.get(job, 0) - trial.marks[job] for job in trial.company}
    if min(seen.values()) < rules.least_launches:
        return _again(trial, now_seconds, rules)
    rates = {job: count / (now_seconds - trial.marked_at_seconds) for job, count in seen.items()}
    if trial.together is None:
        return replace(trial, way=Way.TURNS, since_seconds=now_seconds, marks={}, together=rates, pause_seconds=0.0)
    return _decided(trial, trial.together, rates, now_seconds, rules)


def _again(trial: Trial, now_seconds: float, rules: VerificationRules) -> Trial:
    """Look anew, where a job told nothing."""
    anew = replace(trial, way=Way.TOGETHER, since_seconds=now_seconds, marks={}, together=None)
    if trial.way is Way.TOGETHER:
        return replace(anew, pause_seconds=0.0)
    later_seconds = rules.look_seconds * 2**trial.vain_turns
    return replace(
        anew, pause_seconds=min(later_seconds, rules.memory_seconds), vain_turns=min(trial.vain_turns + 1, _MOST_VAIN)
    )


def _decided(
    trial: Trial,
    together: Mapping[str, float],
    in_turns: Mapping[str, float],
    now_seconds: float,
    rules: VerificationRules,
) -> Trial:
    gain = math.exp(sum(math.log(together[job] / rate) for job, rate in in_turns.items()) / len(in_turns))
    way = Way.TOGETHER if gain >= rules.least_gain else Way.TURNS
    return replace(trial, way=way, since_seconds=now_seconds, gain=gain, decided_at_seconds=now_seconds)
