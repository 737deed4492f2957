"""What pgpu costs P1's jobs where nothing fails without it, and what even waves cost or save there.

For each number of jobs of which none failed on either side, the same jobs run once more without pgpu, each beginning as soon as it has
loaded: the start line of P1's trials, at which all meet, would count against the side without pgpu. If the jobs needed several
waves with pgpu, they also run submitted one by one: then they are no batch, and fill the GPU. All runs of a number of jobs follow one
another directly, so that they meet similar load of the machine. Times are whole times and start-ups (`outcomes`).
"""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from pgpu.lab import report
from pgpu.lab.outcomes import ExperimentTrial
from pgpu.lab.report import Cell, Table
from pgpu.lab.testbed import Testbed
from pgpu.lab.trials import SlicedJob, run_bare, run_sliced
from pgpu.structs import Struct

_COLUMNS = (
    *("jobs", "without s", "without start-up s", "with s", "with start-up s", "with / without"),
    *("waves", "filled s", "waves / filled"),
)


class Comparison(Struct, frozen=True):
    """The same jobs with pgpu and without; none of them failed."""

    sliced: ExperimentTrial
    bare: ExperimentTrial
    """Without pgpu and without a start line."""

    filled: ExperimentTrial | None = None
    """With pgpu, submitted one by one; None if one wave was enough."""

    def trials(self) -> Sequence[ExperimentTrial]:
        return [trial for trial in (self.sliced, self.bare, self.filled) if trial]


def is_free_of_failures(count: int, trials: Sequence[ExperimentTrial]) -> bool:
    """Whether this number of jobs ran on both sides, and none failed in any trial."""
    same = [trial for trial in trials if len(trial.jobs) == count]
    return len({trial.is_with_pgpu for trial in same}) > 1 and all(trial.failed == 0 for trial in same)


def compare(bed: Testbed, sliced: ExperimentTrial, jobs: Sequence[SlicedJob]) -> Comparison:
    """Run the jobs of a trial with pgpu without it and, if they needed several waves, once more without waves."""
    bare = run_bare(bed, [(job.name, job.words) for job in jobs], repetition=sliced.repetition, has_start_line=False)
    bed.progress(f"{len(jobs)} jobs without pgpu and without a start line: {bare.whole_seconds:.1f} s")
    if sliced.waves == 1:
        return Comparison(sliced, bare)
    filled = run_sliced(bed, jobs, repetition=sliced.repetition, is_batch=False)
    bed.progress(
        f"{len(jobs)} jobs with pgpu in {sliced.waves} waves: {sliced.whole_seconds:.1f} s; "
        f"submitted one by one: {filled.whole_seconds:.1f} s"
    )
    return Comparison(sliced, bare, filled)


class Cost(Struct, frozen=True):
    """Mean times of the comparisons of one number of jobs."""

    jobs: int
    bare_seconds: float
    bare_start_up_seconds: float | None
    sliced_seconds: float
    sliced_start_up_seconds: float | None
    waves: int
    """Most of any repetition."""

    filled_seconds: float | None
    """None if one wave was enough in every repetition."""

    waves_seconds: float | None
    """Whole time with pgpu in the repetitions that `filled_seconds` is of."""

    @property
    def ratio(self) -> float:
        """Whole time with pgpu by that without."""
        return self.sliced_seconds / self.bare_seconds

    @property
    def waves_ratio(self) -> float | None:
        """Whole time in even waves by that of a filled GPU: below 1, waves save time."""
        if self.filled_seconds is None or self.waves_seconds is None:
            return None
        return self.waves_seconds / self.filled_seconds


def costs(comparisons: Sequence[Comparison]) -> list[Cost]:
    """Return the cost for each number of jobs, the fewest first; a number of which a job failed in a comparison has none."""
    found = []
    for count in sorted({len(each.sliced.jobs) for each in comparisons}):
        group = [each for each in comparisons if len(each.sliced.jobs) == count]
        if any(trial.failed for each in group for trial in each.trials()):
            continue
        bare, sliced = [each.bare for each in group], [each.sliced for each in group]
        filled = [(each.filled.whole_seconds, each.sliced.whole_seconds) for each in group if each.filled]
        found.append(
            Cost(
                jobs=count,
                bare_seconds=statistics.fmean(trial.whole_seconds for trial in bare),
                bare_start_up_seconds=_mean([trial.start_up_seconds for trial in bare]),
                sliced_seconds=statistics.fmean(trial.whole_seconds for trial in sliced),
                sliced_start_up_seconds=_mean([trial.start_up_seconds for trial in sliced]),
                waves=max(trial.waves for trial in sliced),
                filled_seconds=_mean([seconds for seconds, _ in filled]),
                waves_seconds=_mean([seconds for _, seconds in filled]),
            )
        )
    return found


def _mean(seconds: Sequence[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return statistics.fmean(known) if known else None


def table(found: Sequence[Cost]) -> Table:
    """Return a row for each number of jobs."""
    rows: list[tuple[Cell, ...]] = [
        (
            cost.jobs,
            *map(report.rounded, (cost.bare_seconds, cost.bare_start_up_seconds)),
            *map(report.rounded, (cost.sliced_seconds, cost.sliced_start_up_seconds, cost.ratio)),
            cost.waves,
            *map(report.rounded, (cost.filled_seconds, cost.waves_ratio)),
        )
        for cost in found
    ]
    return Table("P1: what pgpu costs where nothing fails without it", _COLUMNS, tuple(rows))


def findings(found: Sequence[Cost]) -> Iterator[str]:
    """Yield a sentence on the cost, and one on what even waves cost or save."""
    if not found:
        return
    ratios = [cost.ratio for cost in found]
    start_ups = [(cost.sliced_start_up_seconds, cost.bare_start_up_seconds) for cost in found]
    added = [ours - bare for ours, bare in start_ups if ours is not None and bare is not None]
    of_which = f"; starts take {_range(added)} s longer" if added else ""
    yield (
        f"where nothing fails without pgpu ({_range([cost.jobs for cost in found], '{:g}')} jobs, {len(found)} cases), the "
        f"whole time with pgpu is {_range(ratios)} times that without (median {statistics.median(ratios):.2f}){of_which}"
    )
    in_waves = [(cost, cost.waves_ratio) for cost in found if cost.waves_ratio is not None]
    if not in_waves:
        yield "all of them start in one wave: even waves neither cost nor save time there"
        return
    yield (
        f"{', '.join(str(cost.jobs) for cost, _ in in_waves)} jobs need several waves with pgpu: even waves take "
        f"{_range([ratio for _, ratio in in_waves])} times as long as a filled GPU, and "
        f"{_range([cost.ratio for cost, _ in in_waves])} times as long as all jobs at once without pgpu; "
        f"where one wave is enough ({len(found) - len(in_waves)} of {len(found)} cases), even waves neither cost nor save time"
    )


def _range(values: Sequence[float], form: str = "{:.2f}") -> str:
    least, most = form.format(min(values)), form.format(max(values))
    return least if least == most else f"{least} to {most}"


def write(comparisons: Sequence[Comparison], found: Table, directory: Path) -> Iterator[Path]:
    """Write the table and the jobs that only the comparisons ran as CSV; `with_pgpu` marks the jobs submitted one by one."""
    yield report.write_table(found, directory / "p1-cost.csv")
    further = [trial for each in comparisons for trial in each.trials() if trial is not each.sliced]
    yield report.write_jobs(further, directory / "p1-cost-jobs.csv")
