"""How much memory a job should reserve, estimated from earlier runs of its program.

Runs are compared by signature: one readable line such as `train.py@3f9a12cd python --epochs 5 --batch-size 32 --data *`, of
which the first word names the program and the rest how it was called, without paths. Three runs of the same signature give an
estimate. Otherwise runs of the same call with other numbers do (its family: every number taken out), if exactly one number
decides the peak:

- between two numbers seen, the peak of the larger neighbour counts;
- past the largest, a straight line through the last two, times a factor, up to twice that number, and never more than in
  proportion, since the constant part does not grow;
- no estimate if over the last doubling the peak grew by little, or by more than a line with a constant part can.

Without an estimate the job gets a conservative slice and is measured. An estimate alone cannot rule out running out of memory;
the enforced slice and `--retry-oom` remain.

The factor is the conformal upper quantile of (peak / line) at 0.75 %, fitted on half of the vision models of GPUMemNet's
measurements (itu-rad, CC-BY-4.0); `benchmarks.demand` fits it again and scores the other half.

Sources: P2 for greed; split conformal prediction (Papadopoulos et al., 2002); the margins and the three runs are pgpu's own choice.
"""

import math
import re
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache

from pgpu.digests import sha256
from pgpu.model import Run
from pgpu.structs import Struct, field
from pgpu.units import MIB

# Replaces a path in a signature: outputs and data sets move, the program stays.
PATH = "*"

# Replaces a number in the text of a family.
NUMBER = "#"

# Longer arguments are code or data; only a digest of them is kept.
_LONGEST_WORD = 64

# Text, since its compilation takes a millisecond and few processes use it.
_NUMBER = r"(?:^|(?<=[ =,:]))\d+(?:\.\d+)?(?=[ ,:]|$)"
_SCRIPTS = (".py", ".sh", ".ipynb", ".jl", ".R", ".pl", ".rb", ".js", ".lua")

# Matches what can only be a path: `org/model` may name a model, and models differ in size.
_PATH = re.compile(r"(/|\.\.?/|~|file://)[^\s]*$|\.\.?$")

_PLAIN = re.compile(r"[!-~]+")


class Family(Struct, frozen=True):
    """A signature split into text and numbers."""

    text: str
    """With `#` for each number."""

    numbers: tuple[float, ...]
    """In the order of the text."""


def signature_of(name: str, identity: str, arguments: Sequence[str]) -> str:
    """Return the signature of a program and its arguments.

    Args:
        name: Readable, such as `train.py` or the name of an image.
        identity: Distinguishes it from others of this name: the file's whole path, or the image's id.
        arguments: Without the program itself.
    """
    program = f"{_word(name)}@{_digest(identity)}"
    words = [program]
    for text in arguments:
        option, equals, value = text.partition("=")
        is_option = equals and option.startswith("-")
        words.append(f"{_word(option)}={_without_path(value)}" if is_option else _without_path(text))
    return " ".join(words)


def program_of(signature: str) -> str:
    """Return the first word, which all calls of one program share."""
    return signature.partition(" ")[0]


@lru_cache(maxsize=4096)
def family_of(signature: str) -> Family:
    """Split the numbers from the text of a signature; the program's name keeps its digits."""
    program, space, rest = signature.partition(" ")
    numbers = tuple(float(text) for text in re.findall(_NUMBER, rest))
    return Family(program + space + re.sub(_NUMBER, NUMBER, rest), numbers)


def is_script(word: str) -> bool:
    """Whether a word is named like a script."""
    return word.endswith(_SCRIPTS) and not word.startswith("-")


def _without_path(text: str) -> str:
    # The name of a script stays, since it decides what is computed, wherever the file is.
    if not _PATH.match(text):
        return _word(text)
    return f"{PATH}/{_word(text.rpartition('/')[2])}" if is_script(text) else PATH


def _word(text: str) -> str:
    # A long or unprintable word is replaced by a digest, so that a signature stays one line.
    is_short = len(text) <= _LONGEST_WORD and _PLAIN.fullmatch(text) is not None
    return text if is_short else f"~{_digest(text)}"


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]


# The numbers of a call, and the peak of one run of it in bytes.
Point = tuple[tuple[float, ...], int]


class GrowthRules(Struct, frozen=True):
    """Conditions under which the peak is extrapolated along a line."""

    factor: float = 1.17
    """Times the line; see above. The two halves of the models give 1.152 and 1.198, all together 1.163."""

    least_growth: float = 1.2
    """Peak over the peak at half the number: below this, something other than the number decides."""

    most_growth: float = 1.9
    """Above this it is no line: with a constant part, growth over a doubling is below 2."""

    farthest: float = 2.0
    """Extrapolation ends at this multiple of the largest number seen."""

    neighbour_margin: float = 1.10
    """Times the peak of the neighbours, between numbers that were seen: peaks are not monotone."""

    agreement: float = 1.05
    """Peaks within this ratio count as equal."""

    values_without_effect: int = 5
    """A number that took this many values with equal peaks has no effect."""


def estimate_growth_bytes(
    numbers: tuple[float, ...], points: Sequence[Point], rules: GrowthRules | None = None
) -> int | None:
    """Estimate the peak of a call from calls with other numbers, margins included.

    Args:
        numbers: Of the call.
        points: Of calls that differ from it in numbers at most.
        rules: How careful to be.

    Returns:
        None if the points allow no estimate.
    """
    rules = rules or GrowthRules()
    varying = [at for at in range(len(numbers)) if len({each[at] for each, _ in points}) > 1]
    fixed = [at for at in range(len(numbers)) if at not in varying]
    if not points or any(points[0][0][at] != numbers[at] for at in fixed):
        return None
    if varying and _are_equal([peak for _, peak in points], rules):
        return _common_peak(numbers, points, varying, rules)
    deciding = [at for at in varying if _decides_peak(at, points, rules)]
    if len(deciding) != 1:
        return None
    peaks: dict[float, int] = {}
    for seen, peak in points:
        number = seen[deciding[0]]
        peaks[number] = max(peak, peaks.get(number, 0))
    return at_number(numbers[deciding[0]], peaks, rules)


def at_number(number: float, peaks: dict[float, int], rules: GrowthRules | None = None) -> int | None:
    """Estimate the peak at one number from the peaks at others; None if they allow no estimate."""
    rules = rules or GrowthRules()
    below = [known for known in sorted(peaks) if known <= number]
    above = [known for known in sorted(peaks) if known >= number]
    if above and below:
        return int(max(peaks[below[-1]], peaks[above[0]]) * rules.neighbour_margin)
    if above or len(below) < 2:  # noqa: PLR2004 - a line takes two points
        return None
    last, before = below[-1], below[-2]
    is_believed = rules.least_growth <= last_growth(last, before, peaks) < rules.most_growth
    if number > rules.farthest * last or not is_believed:
        return None
    in_proportion = peaks[last] * number / last
    return int(min(rules.factor * line_bytes(number, last, before, peaks), in_proportion))


def line_bytes(number: float, last: float, before: float, peaks: dict[float, int]) -> float:
    """Return the straight line through the peaks at `before` and `last`, at `number`."""
    slope = (peaks[last] - peaks[before]) / (last - before)
    return peaks[last] + slope * (number - last)


def last_growth(last: float, before: float, peaks: dict[float, int]) -> float:
    """Return the growth of the peak over the last doubling of the number, along the line."""
    half_bytes = line_bytes(last / 2, last, before, peaks)
    return peaks[last] / half_bytes if half_bytes > 0 else float("inf")


def _common_peak(
    numbers: tuple[float, ...], points: Sequence[Point], varying: Sequence[int], rules: GrowthRules
) -> int | None:
    # No estimate if few values of a number were seen, all on one side of that of the call.
    for at in varying:
        seen = {each[at] for each, _ in points}
        if len(seen) < rules.values_without_effect and not min(seen) <= numbers[at] <= max(seen):
            return None
    return int(max(peak for _, peak in points) * rules.neighbour_margin)


def _decides_peak(at: int, points: Sequence[Point], rules: GrowthRules) -> bool:
    """Whether calls that are equal in this number have equal peaks, whatever their other numbers are."""
    groups: dict[float, list[int]] = {}
    for numbers, peak in points:
        groups.setdefault(numbers[at], []).append(peak)
    return all(_are_equal(peaks, rules) for peaks in groups.values())


def _are_equal(peaks: Sequence[int], rules: GrowthRules) -> bool:
    return max(peaks) <= rules.agreement * min(peaks)


class Basis(StrEnum):
    """What an estimate is based on."""

    HISTORY = "history"
    """Earlier runs of the same call."""

    GROWTH = "growth"
    """Earlier runs with other numbers."""

    SUFFICED = "sufficed"
    """A slice in which a program that takes all memory it sees succeeded."""

    UNKNOWN = "unknown"
    """Nothing; the run is measured."""

    MEASURED = "measured"
    """What this very run held once it was stable."""

    RETRY = "retry"
    """The slice that was too small before."""

    ALONE = "alone"
    """The last try: all of its GPUs, and no less than what was too small."""


class DemandRules(Struct, frozen=True):
    """Margins and thresholds of estimates."""

    least_runs: int = 3
    """Runs of the same call that are needed for an estimate."""

    quantile: float = 0.99
    """Quantile of the peaks that is reserved."""

    margin: float = 1.05
    """Factor on the quantile: allocators fragment a little differently from run to run."""

    margin_bytes: int = 256 * MIB
    """Added to it: for libraries that are loaded only in some runs."""

    greed_share: float = 0.90
    """A slice that cannot grow keeps its size if its job held this share of it: that may be what it saw, and not what it needs (P2)."""

    retry_factor: float = 1.5
    """Growth of a slice that was too small."""

    informative_seconds: float = 60.0
    """The peak of a run that failed is used only if it lasted this long."""

    most_runs: int = 100
    """Older runs are ignored: programs change."""

    growth: GrowthRules = field(default_factory=GrowthRules)


class Estimate(Struct, frozen=True):
    """Memory to reserve."""

    memory_bytes: int | None
    """Per GPU, context included; None if nothing is known."""

    basis: Basis
    runs: int
    """Number of runs it is based on."""


UNKNOWN = Estimate(None, Basis.UNKNOWN, 0)


def estimate(signature: str, runs: Sequence[Run], rules: DemandRules | None = None) -> Estimate:
    """Estimate how much a job of this signature should reserve.

    Pure: the same arguments always give the same result. It is never less than a slice in which a run of the same call failed.

    Args:
        signature: As `signature_of` returns it.
        runs: Of the same program, GPU model and user, oldest first; other calls of it may be among them.
        rules: How careful to be.
    """
    rules = rules or DemandRules()
    same = [run for run in runs if run.signature == signature][-rules.most_runs :]
    peaks = sorted(run.peak_bytes for run in same if _is_informative(run, rules))
    if len(peaks) >= rules.least_runs:
        peak = peaks[math.ceil(rules.quantile * len(peaks)) - 1]
        found = Estimate(right_size_bytes(peak, rules), Basis.HISTORY, len(peaks))
    else:
        found = _estimate_from_family(signature, runs, rules)
    if found.memory_bytes is None:
        # The smallest slice in which a program that takes all memory succeeded. Its peak never enlarges a request.
        slices = [run.slice_bytes for run in same if run.exit_code == 0 and run.sizes_itself]
        found = Estimate(min(slices), Basis.SUFFICED, len(slices)) if slices else UNKNOWN
    return _raise_above_failures(found, same, rules)


def was_too_small(run: Run) -> bool:
    """Whether a run failed at its own limit."""
    return run.refusals > 0 and run.exit_code != 0


def right_size_bytes(peak_bytes: int, rules: DemandRules | None = None) -> int:
    """Return the slice for a peak, margins included."""
    rules = rules or DemandRules()
    return math.ceil(peak_bytes * rules.margin) + rules.margin_bytes


def retry_bytes(slice_bytes: int, attempted_bytes: int, rules: DemandRules | None = None) -> int:
    """Return the slice for the next try of a job that hit its own limit.

    Args:
        slice_bytes: The slice that was too small.
        attempted_bytes: What it would have held without the limit; 0 if unknown.
        rules: How careful to be.
    """
    rules = rules or DemandRules()
    return max(math.ceil(rules.retry_factor * slice_bytes), math.ceil(1.1 * attempted_bytes))


def shrunk_bytes(
    slice_bytes: int, peak_bytes: int, used_bytes: int, floor_bytes: int, rules: DemandRules | None = None
) -> int | None:
    """Return a smaller slice for a job with a stable peak; None if its own fits already, or its need is unknown.

    Args:
        slice_bytes: Its slice.
        peak_bytes: Most that it held.
        used_bytes: What it holds now.
        floor_bytes: Most that an earlier run of it held; 0 without one.
        rules: How careful to be.
    """
    rules = rules or DemandRules()
    if peak_bytes >= rules.greed_share * slice_bytes:
        return None
    fit_bytes = max(math.ceil(1.1 * peak_bytes), math.ceil(1.1 * floor_bytes), used_bytes + rules.margin_bytes)
    return fit_bytes if fit_bytes < slice_bytes else None


def _estimate_from_family(signature: str, runs: Sequence[Run], rules: DemandRules) -> Estimate:
    mine = family_of(signature)
    points = []
    for run in runs:
        family = family_of(run.signature)
        if family.text == mine.text and _is_informative(run, rules):
            points.append((family.numbers, run.peak_bytes))
    points = points[-rules.most_runs :]
    memory_bytes = estimate_growth_bytes(mine.numbers, points, rules.growth)
    return UNKNOWN if memory_bytes is None else Estimate(memory_bytes, Basis.GROWTH, len(points))


def _raise_above_failures(found: Estimate, same: Sequence[Run], rules: DemandRules) -> Estimate:
    # Above every slice that was too small since the last run that succeeded.
    floor_bytes = 0
    for run in reversed(same):
        if was_too_small(run):
            floor_bytes = max(floor_bytes, retry_bytes(run.refused_at_bytes or run.slice_bytes, 0, rules))
        elif run.exit_code == 0:
            break
    if found.memory_bytes is None or floor_bytes <= found.memory_bytes:
        return found
    return Estimate(floor_bytes, found.basis, found.runs)


def _is_informative(run: Run, rules: DemandRules) -> bool:
    """Whether the peak of a run is its need: it used a GPU, was not cut short, and did not take all memory it saw."""
    is_whole = run.exit_code == 0 or run.duration_seconds >= rules.informative_seconds
    return run.peak_bytes > 0 and is_whole and not run.sizes_itself
