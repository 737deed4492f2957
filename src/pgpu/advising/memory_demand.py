"""How much memory a job should reserve, estimated from earlier runs of its program.

Runs are compared by signature: one readable line such as `train.py@3f9a12cd python --epochs 5 --batch-size 32 --data *`, of
which the first word names the program and the rest how it was called, without paths. Three runs of the same signature give an
estimate. Otherwise runs of the same call with other numbers do (its family: every number taken out), by a law of up to three
terms (`memory_law`) and the peaks of the runs that are nearest on it; otherwise runs of the program with as many numbers, in
the same way. Without any of these the size is unknown.

An estimate is what 85 % of runs need, with a small margin: slices grow where there is room, and memory that is reserved for
rare peaks would be idle in all other runs. A new family starts slowly, since the runs of a burst are all wrong together.
Runs of a program that sizes itself by what is free show no need; it gets the smallest slice in which one succeeded.

Sources: P2 for greed; the rules and their constants were chosen by simulation (decision 0084, `benchmarks.chosen_sizes`), and
`benchmarks.demand` scores them on GPUMemNet's measurements (itu-rad, CC-BY-4.0) of models that nothing was fitted on.
"""

import math
import re
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache

from pgpu.advising.memory_law import MemoryLaw, Point, fit_law
from pgpu.digests import sha256
from pgpu.model import Run
from pgpu.structs import Struct
from pgpu.units import MIB

# Replaces a path in a signature: outputs and data sets move, the program stays.
PATH = "*"

# Replaces a number in the text of a family.
NUMBER = "#"

# Longer arguments are code or data; only a digest of them is kept.
_LONGEST_WORD = 64

# Each job stores its signature; of a longer one the rest is a digest.
_LONGEST_SIGNATURE = 1024

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
    text = " ".join(words)
    if len(text) <= _LONGEST_SIGNATURE:
        return text
    return f"{text[:_LONGEST_SIGNATURE]}~{_digest(text)}"


def program_of(signature: str) -> str:
    """Return the first word, which all calls of one program share."""
    return signature.partition(" ")[0]


@lru_cache(maxsize=16_384)
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


class Basis(StrEnum):
    """What an estimate is based on."""

    HISTORY = "history"
    """Earlier runs of the same call."""

    FAMILY = "family"
    """Earlier runs with other numbers."""

    PROGRAM = "program"
    """Earlier runs of other calls of the program."""

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
    """Runs of the same call that give an estimate by themselves."""

    quantile: float = 0.85
    """Share of runs that an estimate suffices for."""

    margin: float = 1.05
    """Factor on it: allocators fragment a little differently from run to run."""

    newest_of_call: int = 20
    newest_of_family: int = 60
    """Older runs are ignored: programs change."""

    nearest: int = 10
    """Runs of a family whose peaks over the law count for a call: those where the law is nearest."""

    beyond: float = 1.17
    """Factor on the law above every call seen: 0.75 % of GPUMemNet's peaks lie above a straight line by more."""

    margin_bytes: int = 256 * MIB
    """Added to a size that a user is advised to declare: for libraries that are loaded only in some runs."""

    greed_share: float = 0.90
    """A slice that cannot grow keeps its size if its job held this share of it: that may be what it saw, and not what it needs (P2)."""

    greed_factor: float = 2.0
    """A run that seems to size itself counts up to this multiple of the largest peak of its family's runs that do not."""

    retry_factor: float = 1.5
    """Growth of a slice that was too small."""

    informative_seconds: float = 60.0
    """The peak of a run that failed is used only if it lasted this long."""


# With fewer runs an estimate has a factor for what they may not show, which a job that holds less need not keep.
_SURE_RUNS = 3


class Estimate(Struct, frozen=True):
    """Memory to reserve."""

    memory_bytes: int | None
    """Per GPU, context included; None if nothing is known."""

    basis: Basis
    runs: int
    """Number of runs it is based on."""

    @property
    def kept_bytes(self) -> int:
        """What a job keeps although it holds less; 0 after fewer than three runs, and because of other families of its program."""
        is_sure = self.basis in {Basis.HISTORY, Basis.FAMILY} and self.runs >= _SURE_RUNS
        return self.memory_bytes if is_sure and self.memory_bytes is not None else 0


UNKNOWN = Estimate(None, Basis.UNKNOWN, 0)


def estimate(signature: str, runs: Sequence[Run], rules: DemandRules | None = None) -> Estimate:
    """Estimate how much a job of this signature should reserve.

    Pure: the same arguments always give the same result. It is above every amount that a run of the same call was refused since
    the last one that succeeded.

    Args:
        signature: As `signature_of` returns it.
        runs: Of the same program, GPU model and user, oldest first; other calls of it may be among them.
        rules: How careful to be.
    """
    rules = rules or DemandRules()
    same = [run for run in runs if run.signature == signature]
    mine, told = family_of(signature), _informative_runs(runs, rules)
    peaks = [_need_bytes(run) for run, _ in told if run.signature == signature][-rules.newest_of_call :]
    alike = [
        (family.text == mine.text, (family.numbers, _need_bytes(run)))
        for run, family in told
        if len(family.numbers) == len(mine.numbers)
    ]
    of_program = tuple(point for _, point in alike)[-rules.newest_of_family :]
    of_family = tuple(point for is_mine, point in alike if is_mine)[-rules.newest_of_family :]
    slices = [run.slice_bytes for run in same if run.exit_code == 0 and run.sizes_itself]
    if len(peaks) >= rules.least_runs:
        found = Estimate(math.ceil(rules.margin * _quantile(peaks, rules.quantile)), Basis.HISTORY, len(peaks))
    elif of_family:
        # One run shows how large the calls of a family are, and other families of the program how peaks follow from numbers.
        law = fit_law(of_family if len(of_family) > 1 else of_program)
        found = Estimate(_estimate_by_law(law, mine.numbers, of_family, peaks, rules), Basis.FAMILY, len(of_family))
    elif of_program:
        law = fit_law(of_program)
        found = Estimate(_estimate_by_law(law, mine.numbers, of_program, (), rules), Basis.PROGRAM, len(of_program))
    elif slices:
        found = Estimate(min(slices), Basis.SUFFICED, len(slices))
    else:
        found = UNKNOWN
    return _raise_above_failures(found, same, rules)


def count_ended(family: str, runs: Sequence[Run], rules: DemandRules | None = None) -> int:
    """Return how many runs of a family ended otherwise than at their own limit, and not at their beginning.

    Args:
        family: Its text.
        runs: Of its program.
        rules: What is a beginning.
    """
    least_seconds = (rules or DemandRules()).informative_seconds
    ended = [
        run for run in runs if run.exit_code == 0 or (run.duration_seconds >= least_seconds and not was_too_small(run))
    ]
    return sum(family_of(run.signature).text == family for run in ended)


def most_at_once(ended: int) -> int | None:
    """Return how many jobs of a family may run at once after so many runs of it have ended; None for any number."""
    return None if ended >= _RUNS_UNTIL_KNOWN else _FIRST_AT_ONCE * (1 + 2 * ended)


# After so many ends as many jobs of a family start as fit; before, so many at once, and twice as many more for each end.
_RUNS_UNTIL_KNOWN = 6
_FIRST_AT_ONCE = 4


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


def _estimate_by_law(
    law: MemoryLaw, numbers: tuple[float, ...], points: Sequence[Point], peaks: Sequence[int], rules: DemandRules
) -> int:
    """Estimate the peak of a call by a law and by what runs held over it.

    Args:
        law: Of its family or its program.
        numbers: Of the call.
        points: Of the runs, oldest first.
        peaks: Of runs of this very call: too few for an estimate, and none of them above it.
        rules: How careful to be.
    """
    expected = law.at(numbers)
    known = [(law.at(each), peak) for each, peak in reversed(points)]
    # The newest first where the law is the same.
    nearest = sorted(known, key=lambda each: abs(each[0] - expected))[: rules.nearest]
    ratio = _quantile([peak / at for at, peak in nearest if at > 0] or [1.0], rules.quantile)
    memory_bytes = expected * ratio * rules.margin * (1.0 if peaks and len(points) > 1 else _caution(len(points)))
    if expected > _SAME_LAW * max(at for at, _ in known):
        memory_bytes = max(memory_bytes, rules.beyond * expected)
    return math.ceil(max(memory_bytes, *peaks, 1))


# Above this multiple of all that was seen a value of the law is beyond it.
_SAME_LAW = 1.02


def _caution(runs: int) -> float:
    """Return the factor on what few runs show: 1.54 for one, 1.24 for two, 1 from ten on."""
    return 1.0 + max(0.0, 0.6 / runs - 0.06)


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest of the values that at least this share of them does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def _need_bytes(run: Run) -> int:
    """Return what a run needed: its peak, or what it would have held if its limit had not refused it."""
    return max(run.peak_bytes, run.attempted_bytes) if was_too_small(run) else run.peak_bytes


def _raise_above_failures(found: Estimate, same: Sequence[Run], rules: DemandRules) -> Estimate:
    # Above all that was too small since the last run that succeeded.
    floor_bytes = 0
    for run in reversed(same):
        if was_too_small(run):
            least_bytes = math.ceil(1.1 * run.attempted_bytes)
            floor_bytes = max(
                floor_bytes, least_bytes or retry_bytes(run.refused_at_bytes or run.slice_bytes, 0, rules)
            )
        elif run.exit_code == 0:
            break
    if found.memory_bytes is None or floor_bytes <= found.memory_bytes:
        return found
    return Estimate(floor_bytes, found.basis, found.runs)


def _informative_runs(runs: Sequence[Run], rules: DemandRules) -> list[tuple[Run, Family]]:
    """Return the runs whose peak is their need, with their families.

    They used a GPU, were cut short by nothing but their own limit, and did not size themselves. A program that asks how much is free takes most of a slice that was learnt for it, too. So a run that seems to size itself
    counts if it held little more than those of its family that do not: what a program takes of all that it sees scales with that.
    """
    found: list[tuple[Run, Family]] = []
    largest: dict[str, int] = {}
    for run in runs:
        if was_too_small(run):
            is_whole = run.attempted_bytes > 0
        else:
            is_whole = run.exit_code == 0 or run.duration_seconds >= rules.informative_seconds
        family = family_of(run.signature)
        most = largest.get(family.text, 0)
        if is_whole and run.peak_bytes > 0 and not (run.sizes_itself and run.peak_bytes > rules.greed_factor * most):
            found.append((run, family))
            largest[family.text] = max(most, run.peak_bytes)
    return found
