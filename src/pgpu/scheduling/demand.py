"""How much memory a job should reserve, told by what earlier runs of its program held.

Three runs of the very same call tell most. Runs of the same call with other numbers tell of this one where exactly one
number decides. Where neither is so, nothing is told: the job then gets a careful slice and is measured. An estimate
alone never makes out-of-memory impossible; the hard slice and `--retry-oom` stand behind it.

Sources: P2 for greed; the margins and the three runs are pgpu's own choice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pgpu.model import Run
from pgpu.scheduling.growth import GrowthRules, estimate_growth_bytes
from pgpu.scheduling.signature import family_of
from pgpu.units import MIB


class Basis(StrEnum):
    """What an estimate rests on."""

    HISTORY = "history"
    """Earlier runs of the same call."""

    GROWTH = "growth"
    """Earlier runs with other numbers."""

    SUFFICED = "sufficed"
    """A slice in which a program that takes all it sees ended well."""

    UNKNOWN = "unknown"
    """Nothing; it is measured."""

    MEASURED = "measured"
    """What this very run held once it was stable."""

    RETRY = "retry"
    """The slice that was too small before."""

    ALONE = "alone"
    """The last try: all of its GPUs, and no less than what was too small."""


@dataclass(frozen=True, slots=True)
class DemandRules:
    """How careful estimates are."""

    least_runs: int = 3
    """So many runs of the same call before their peaks are believed."""

    quantile: float = 0.99
    """Of the peaks, the one that is reserved."""

    margin: float = 1.05
    """The quantile is multiplied by this: allocators fragment a little differently from run to run."""

    margin_bytes: int = 256 * MIB
    """Added to it: a library that is loaded only now and then."""

    greed_share: float = 0.90
    """A peak of this share of its slice or more is what the program saw, not what it needs (P2)."""

    retry_factor: float = 1.5
    """By how much a slice grows that was too small."""

    telling_seconds: float = 60.0
    """A run that did not end well tells its need only if it lasted so long."""

    most_runs: int = 100
    """Older runs are no longer looked at: programs change."""

    growth: GrowthRules = field(default_factory=GrowthRules)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What to reserve."""

    memory_bytes: int | None
    """Per GPU, context included; None where nothing is known."""

    basis: Basis
    runs: int
    """How many runs it rests on."""


UNKNOWN = Estimate(None, Basis.UNKNOWN, 0)


def estimate(signature: str, runs: Sequence[Run], rules: DemandRules | None = None) -> Estimate:
    """Say how much a job of this signature should reserve.

    Pure: the same arguments always give the same answer. It is never less than what a run of the same call was refused.

    Args:
        signature: As `signature_of` made it.
        runs: Of the same program, GPU model and user, oldest first; other calls of it may be among them.
        rules: How careful to be.
    """
    rules = rules or DemandRules()
    same = [run for run in runs if run.signature == signature][-rules.most_runs :]
    found = _of_the_same(same, rules)
    if found.memory_bytes is None:
        found = _of_the_family(signature, runs, rules)
    if found.memory_bytes is None:
        found = _sufficed(same, rules)
    return _never_too_small_again(found, same, rules)


def is_greedy(run: Run, rules: DemandRules | None = None) -> bool:
    """Whether a run took what it saw, so that its peak says nothing of its need."""
    return run.peak_bytes >= (rules or DemandRules()).greed_share * run.slice_bytes


def was_too_small(run: Run) -> bool:
    """Whether a run failed at its own limit."""
    return run.refusals > 0 and run.exit_code != 0


def right_size_bytes(peak_bytes: int, rules: DemandRules | None = None) -> int:
    """Return the slice that a peak asks for."""
    rules = rules or DemandRules()
    return math.ceil(peak_bytes * rules.margin) + rules.margin_bytes


def retry_bytes(slice_bytes: int, attempted_bytes: int, rules: DemandRules | None = None) -> int:
    """Return the slice for the next try of a job that hit its own limit.

    Args:
        slice_bytes: What was too small.
        attempted_bytes: What it would have held, had it not been refused; 0 if that is not known.
        rules: How careful to be.
    """
    rules = rules or DemandRules()
    return max(math.ceil(rules.retry_factor * slice_bytes), math.ceil(1.1 * attempted_bytes))


def shrunk_bytes(
    slice_bytes: int, peak_bytes: int, used_bytes: int, floor_bytes: int, rules: DemandRules | None = None
) -> int | None:
    """Return the slice that fits a job whose peak has been stable; None if its own fits already, or cannot be told.

    Args:
        slice_bytes: What it has.
        peak_bytes: Most that it held.
        used_bytes: What it holds now.
        floor_bytes: Most that an earlier run of it held; 0 if there was none.
        rules: How careful to be.
    """
    rules = rules or DemandRules()
    if peak_bytes >= rules.greed_share * slice_bytes:
        return None
    fit_bytes = max(math.ceil(1.1 * peak_bytes), math.ceil(1.1 * floor_bytes), used_bytes + rules.margin_bytes)
    return fit_bytes if fit_bytes < slice_bytes else None


def _of_the_same(same: Sequence[Run], rules: DemandRules) -> Estimate:
    peaks = sorted(run.peak_bytes for run in same if _is_telling(run, rules))
    if len(peaks) < rules.least_runs:
        return UNKNOWN
    peak = peaks[math.ceil(rules.quantile * len(peaks)) - 1]
    return Estimate(right_size_bytes(peak, rules), Basis.HISTORY, len(peaks))


def _of_the_family(signature: str, runs: Sequence[Run], rules: DemandRules) -> Estimate:
    """Runs with other numbers; those with the same ones are among them."""
    mine = family_of(signature)
    points = []
    for run in runs:
        family = family_of(run.signature)
        if family.text == mine.text and _is_telling(run, rules):
            points.append((family.numbers, run.peak_bytes))
    points = points[-rules.most_runs :]
    memory_bytes = estimate_growth_bytes(mine.numbers, points, rules.growth)
    return UNKNOWN if memory_bytes is None else Estimate(memory_bytes, Basis.GROWTH, len(points))


def _sufficed(same: Sequence[Run], rules: DemandRules) -> Estimate:
    """The smallest slice in which a take-all program ended well: its peak never enlarges a request."""
    slices = [run.slice_bytes for run in same if run.exit_code == 0 and is_greedy(run, rules)]
    return Estimate(min(slices), Basis.SUFFICED, len(slices)) if slices else UNKNOWN


def _never_too_small_again(found: Estimate, same: Sequence[Run], rules: DemandRules) -> Estimate:
    """A refusal that came after all that the estimate rests on weighs more than it."""
    floor_bytes = 0
    for run in reversed(same):
        if was_too_small(run):
            floor_bytes = max(floor_bytes, retry_bytes(run.refused_at_bytes or run.slice_bytes, 0, rules))
        elif run.exit_code == 0:
            break
    if found.memory_bytes is None or floor_bytes <= found.memory_bytes:
        return found
    return Estimate(floor_bytes, found.basis, found.runs)


def _is_telling(run: Run, rules: DemandRules) -> bool:
    """Whether its peak is its need: not greed, not the beginning of a run that broke off, not a run without a GPU."""
    is_whole = run.exit_code == 0 or run.duration_seconds >= rules.telling_seconds
    return run.peak_bytes > 0 and is_whole and not is_greedy(run, rules)
