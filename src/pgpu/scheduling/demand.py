"""How much memory a job should reserve, told by what earlier runs of its program held.

Three runs of the very same call tell most. Runs of the same call with other numbers tell of this one where exactly one
number decides. Where neither is so, nothing is told: the job then gets a careful slice and is measured. An estimate
alone never makes out-of-memory impossible; the hard slice and `--retry-oom` stand behind it.

Sources: P2 for greed; the margins and the three runs are pgpu's own choice.
"""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from pgpu.model import Run
from pgpu.units import MIB

PATH = "*"
"""Stands for a path: outputs and data sets move, the program stays."""

NUMBER = "#"
"""Stands for a number in the text of a family."""

_LONGEST_WORD = 64
"""Longer arguments are code or data, of which only a digest is kept."""

_NUMBER = re.compile(r"(?:^|(?<=[ =,:]))\d+(?:\.\d+)?(?=[ ,:]|$)")
_SCRIPTS = (".py", ".sh", ".ipynb", ".jl", ".R", ".pl", ".rb", ".js", ".lua")
_PATH = re.compile(r"(/|\.\.?/|~|file://)[^\s]*$|\.\.?$")
"""Written so that it can be nothing else: `org/model` may name a model, and models differ in size."""

_PLAIN = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Family:
    """A signature taken apart."""

    text: str
    """With `#` for each number."""

    numbers: tuple[float, ...]
    """In the order of the text."""


def signature_of(name: str, identity: str, arguments: Sequence[str]) -> str:
    """Name a program as it is called.

    Args:
        name: For people, such as `train.py` or an image's name.
        identity: What tells it from others of this name: the file's whole path, or the image's id.
        arguments: Without the program itself.
    """
    program = f"{_word(name)}@{_digest(identity)}"
    return " ".join((program, *(_argument(text) for text in arguments)))


def program_of(signature: str) -> str:
    """Return the first word, which all calls of one program share."""
    return signature.partition(" ")[0]


@lru_cache(maxsize=4096)
def family_of(signature: str) -> Family:
    """Take the numbers out of how a program is called."""
    program, space, rest = signature.partition(" ")
    numbers = tuple(float(text) for text in _NUMBER.findall(rest))
    return Family(program + space + _NUMBER.sub(NUMBER, rest), numbers)


def _argument(text: str) -> str:
    option, equals, value = text.partition("=")
    if equals and option.startswith("-"):
        return f"{_word(option)}={_without_path(value)}"
    return _without_path(text)


def is_script(word: str) -> bool:
    """Whether a word is named like a script."""
    return word.endswith(_SCRIPTS) and not word.startswith("-")


def _without_path(text: str) -> str:
    """Of a script its name stays: it says what is done, wherever it lies."""
    if not _PATH.match(text):
        return _word(text)
    return f"{PATH}/{_word(text.rpartition('/')[2])}" if is_script(text) else PATH


def _word(text: str) -> str:
    """Keep a short word; of anything else a digest, so that a signature stays one line."""
    is_short = len(text) <= _LONGEST_WORD and _PLAIN.fullmatch(text) is not None
    return text if is_short else f"~{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]


_LINE_POINTS = 2

Point = tuple[tuple[float, ...], int]
"""The numbers of a call, and the peak in bytes that a run of it had."""


@dataclass(frozen=True, slots=True)
class GrowthRules:
    """Where a line is believed, and how far."""

    factor: float = 1.17
    """Times the line; see above. The two halves of the models ask for 1.152 and 1.198, all together for 1.163."""

    least_growth: float = 1.2
    """Peak over peak of half the number: below, other things than the number decide."""

    most_growth: float = 1.9
    """Above it was no line: nothing that has a fixed part grows so."""

    farthest: float = 2.0
    """Past the largest number seen, no further than times this."""

    neighbour_margin: float = 1.10
    """Times the peak of the neighbours, between numbers that were seen: peaks are not monotone."""

    agreement: float = 1.05
    """Peaks this close are the same."""

    values_without_effect: int = 5
    """A number that took so many values, all with the same peak, does not matter at all."""


def estimate_growth_bytes(
    numbers: tuple[float, ...], points: Sequence[Point], rules: GrowthRules | None = None
) -> int | None:
    """Estimate the peak of a call, margins included.

    Args:
        numbers: Of the call.
        points: Of calls that differ from it in numbers at most.
        rules: How careful to be.

    Returns:
        None where the points do not tell.
    """
    rules = rules or GrowthRules()
    varying = [at for at in range(len(numbers)) if len({each[at] for each, _ in points}) > 1]
    fixed = [at for at in range(len(numbers)) if at not in varying]
    if not points or any(points[0][0][at] != numbers[at] for at in fixed):
        return None
    if varying and _agree([peak for _, peak in points], rules):
        return _without_effect(numbers, points, varying, rules)
    deciding = [at for at in varying if _decides(at, points, rules)]
    if len(deciding) != 1:
        return None
    return at_number(numbers[deciding[0]], _peaks_by_number(deciding[0], points), rules)


def at_number(number: float, peaks: dict[float, int], rules: GrowthRules | None = None) -> int | None:
    """Estimate the peak at one number from the peaks at others; None where they do not tell."""
    rules = rules or GrowthRules()
    below = [known for known in sorted(peaks) if known <= number]
    above = [known for known in sorted(peaks) if known >= number]
    if above and below:
        return int(max(peaks[below[-1]], peaks[above[0]]) * rules.neighbour_margin)
    if above or len(below) < _LINE_POINTS:
        return None
    return _past_the_largest(number, below[-1], below[-2], peaks, rules)


def line_bytes(number: float, last: float, before: float, peaks: dict[float, int]) -> float:
    """Return the straight line through the peaks at `before` and `last`, at `number`."""
    slope = (peaks[last] - peaks[before]) / (last - before)
    return peaks[last] + slope * (number - last)


def last_growth(last: float, before: float, peaks: dict[float, int]) -> float:
    """Return by how much the peak grew over the last doubling, along the line."""
    half_bytes = line_bytes(last / 2, last, before, peaks)
    return peaks[last] / half_bytes if half_bytes > 0 else float("inf")


def _past_the_largest(
    number: float, last: float, before: float, peaks: dict[float, int], rules: GrowthRules
) -> int | None:
    is_believed = rules.least_growth <= last_growth(last, before, peaks) < rules.most_growth
    if number > rules.farthest * last or not is_believed:
        return None
    in_proportion = peaks[last] * number / last
    return int(min(rules.factor * line_bytes(number, last, before, peaks), in_proportion))


def _without_effect(
    numbers: tuple[float, ...], points: Sequence[Point], varying: Sequence[int], rules: GrowthRules
) -> int | None:
    """All peaks are the same: a number then matters only where few of its values were seen, all on one side."""
    for at in varying:
        seen = {each[at] for each, _ in points}
        if len(seen) < rules.values_without_effect and not min(seen) <= numbers[at] <= max(seen):
            return None
    return int(max(peak for _, peak in points) * rules.neighbour_margin)


def _decides(at: int, points: Sequence[Point], rules: GrowthRules) -> bool:
    """Whether calls with the same number there have the same peak, whatever their other numbers are."""
    groups: dict[float, list[int]] = {}
    for numbers, peak in points:
        groups.setdefault(numbers[at], []).append(peak)
    return all(_agree(peaks, rules) for peaks in groups.values())


def _agree(peaks: Sequence[int], rules: GrowthRules) -> bool:
    return max(peaks) <= rules.agreement * min(peaks)


def _peaks_by_number(at: int, points: Sequence[Point]) -> dict[float, int]:
    peaks: dict[float, int] = {}
    for numbers, peak in points:
        peaks[numbers[at]] = max(peak, peaks.get(numbers[at], 0))
    return peaks


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
