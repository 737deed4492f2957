"""P1: inference jobs that start together and fail for lack of GPU memory, and how the queue prevents it.

Each job needs 1,205 MiB of 24,265. Without pgpu, allocations are refused from 21 jobs on and programs fail from 24 on, because
the device is full. With pgpu no job starts before its slice fits. The jobs are scaled down: fewer, longer batches. `p1_cost` compares
both sides where nothing fails.

P1: Kim and Kang, Korea University, 2023, on an RTX 3090. Each experiment's module has the figures of its paper.
"""

import random
import statistics
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pgpu.distribution import extra_hint, has_module
from pgpu.lab import p1_cost, p1_page, report
from pgpu.lab.outcomes import ExperimentTrial, mean_seconds, spread, whole_time
from pgpu.lab.p1_cost import Comparison, compare, costs, is_free_of_failures
from pgpu.lab.report import Cell, Report, Table
from pgpu.lab.testbed import Testbed
from pgpu.lab.trials import SlicedJob, run_bare, run_sliced, settle
from pgpu.palette import LIGHT
from pgpu.structs import Struct, replace, to_builtins
from pgpu.units import MIB

# Usable memory of P1's and P2's RTX 3090.
P1_DEVICE_MIB = 24_265

# Memory of one of P1's jobs, context included.
P1_JOB_MIB = 1_205


class P1Row(Struct, frozen=True):
    """One line of P1's table: containers started at one moment."""

    jobs: int
    shortest_seconds: float
    longest_seconds: float
    saw_refusal: int | None
    """Containers with an out-of-memory error; None if the paper gives no figure."""

    failed: int


# Source: P1. At 24 and 25 over repeated runs 7 to 16 of the jobs failed.
P1_TABLE = (
    P1Row(2, 8.383, 8.502, 0, 0),
    P1Row(3, 8.473, 8.535, 0, 0),
    P1Row(4, 8.485, 8.727, 0, 0),
    P1Row(5, 8.701, 8.932, 0, 0),
    P1Row(6, 8.97, 9.135, 0, 0),
    P1Row(7, 9.005, 9.21, 0, 0),
    P1Row(8, 8.935, 9.313, 0, 0),
    P1Row(9, 8.816, 9.182, 0, 0),
    P1Row(10, 7.909, 8.272, 0, 0),
    P1Row(11, 8.016, 8.454, 0, 0),
    P1Row(12, 8.44, 8.84, 0, 0),
    P1Row(13, 8.661, 9.131, 0, 0),
    P1Row(14, 8.919, 9.651, 0, 0),
    P1Row(15, 9.283, 10.922, 0, 0),
    P1Row(16, 9.568, 10.401, 0, 0),
    P1Row(17, 10.075, 10.906, 0, 0),
    P1Row(18, 10.483, 15.053, 0, 0),
    P1Row(19, 11.094, 15.987, 0, 0),
    P1Row(20, 11.508, 16.632, 0, 0),
    P1Row(21, 11.781, 15.952, 5, 0),
    P1Row(22, 11.554, 13.858, 7, 0),
    P1Row(23, 12.418, 24.608, 8, 0),
    P1Row(24, 11.728, 25.678, None, 6),
    P1Row(25, 10.75, 13.924, None, 15),
)


def p1_row(jobs: int) -> P1Row | None:
    """Return P1's line for a number of containers, or None."""
    return next((row for row in P1_TABLE if row.jobs == jobs), None)


_COLUMNS = (
    "jobs",
    "P1 min s",
    "P1 max s",
    "P1 saw OOM",
    "P1 failed",
    "pgpu",
    "min s",
    "max s",
    "mean s",
    "saw OOM",
    "failed",
    "all done s",
    "start-up s",
    "device peak",
)


class P1Plan(Struct, frozen=True):
    job_counts: tuple[int, ...]
    """Jobs started together, one trial for each number."""

    with_pgpu: tuple[bool, ...] = (True,)
    repetitions: int = 1
    seed: int = 0
    """Of the order of arrival."""

    batches: int = 80
    """P1's 1,875 batches scaled down, so that 25 jobs need few host cores."""

    gpu_ms: float = 7.0
    """Modelled GPU time of a batch: the GPU is busy all the time from about 15 jobs on, as in P1."""

    host_ms: float = 86.0
    """Host time of a batch, waited: a job alone takes P1's 8.4 s."""

    load_ms: float = 1000.0
    """Host time between the framework's start and the first batch."""

    memory_bytes: int = P1_JOB_MIB * MIB

    def words(self) -> tuple[str, ...]:
        """Return the workload of one job, with its arguments."""
        return (
            "inference",
            *("--memory", f"{self.memory_bytes // MIB}MiB", "--batches", str(self.batches)),
            *("--gpu-ms", str(self.gpu_ms), "--host-ms", str(self.host_ms), "--load-ms", str(self.load_ms)),
        )


def run(bed: Testbed, plan: P1Plan, directory: Path) -> Report:
    """Run every trial and write tables, samples, a page and, if matplotlib is installed, figures.

    Raises:
        NodeError: A program does not load.
    """
    has_plots = has_module("matplotlib")
    if not has_plots:
        bed.progress(f"draws no PNG files, since matplotlib is not installed: {extra_hint('lab')}")
    trials: list[ExperimentTrial] = []
    comparisons: list[Comparison] = []
    if {True, False} <= {*plan.with_pgpu}:
        settle(bed)
    for is_with, repetition, jobs in _arrivals(plan):
        if is_with:
            trials.append(run_sliced(bed, jobs, repetition=repetition))
        else:
            trials.append(run_bare(bed, [(job.name, job.words) for job in jobs], repetition=repetition))
        _report_progress(bed, trials[-1])
        if is_with and is_free_of_failures(len(jobs), trials):
            comparisons.append(compare(bed, trials[-1], jobs))
    table = Table("P1: jobs that start together", _COLUMNS, tuple(_rows(trials)))
    found = costs(comparisons)
    findings = (*p1_cost.findings(found), *_findings(trials))
    figures = _draw(trials, directory, report.caption(bed)) if has_plots else ()
    written = report.write_report("p1", bed, to_builtins(plan), trials, directory, table, findings, figures)
    if comparisons:
        further = p1_cost.table(found)
        files = (*written.files, *p1_cost.write(comparisons, further, directory))
        written = replace(written, further=(further,), files=files)
    paper = p1_row(max(plan.job_counts))
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    page = p1_page.write_page(written, trials, directory / "index.html", paper.failed if paper else None, date)
    return replace(written, files=(*written.files, page))


def _arrivals(plan: P1Plan) -> Iterator[tuple[bool, int, Sequence[SlicedJob]]]:
    """Yield for each trial whether it is with pgpu, its repetition, and its jobs in a drawn order of arrival."""
    arrivals = random.Random(plan.seed)  # noqa: S311 - an order of arrival, not a secret
    for is_with in plan.with_pgpu:
        for count in plan.job_counts:
            for repetition in range(1, plan.repetitions + 1):
                names = [f"p1-{count}-{repetition}-{number}" for number in range(1, count + 1)]
                arrivals.shuffle(names)
                yield is_with, repetition, [SlicedJob(name, plan.words(), plan.memory_bytes) for name in names]


def _report_progress(bed: Testbed, trial: ExperimentTrial) -> None:
    how = "with" if trial.is_with_pgpu else "without"
    bed.progress(
        f"{len(trial.jobs)} jobs {how} pgpu, run {trial.repetition}: {trial.failed} failed, "
        f"{trial.saw_refusal} saw an out of memory, {whole_time(trial)}"
    )
    for job in trial.jobs if trial.is_with_pgpu else ():
        if job.is_failed:
            bed.progress(f"{job.name} failed with exit code {job.exit_code}: {job.complaint or 'no output'}")


def _rows(trials: Sequence[ExperimentTrial]) -> Iterator[tuple[Cell, ...]]:
    # A row for each number of jobs over its repetitions, without pgpu first.
    for count, is_with in sorted({(len(trial.jobs), trial.is_with_pgpu) for trial in trials}):
        group = [trial for trial in trials if (len(trial.jobs), trial.is_with_pgpu) == (count, is_with)]
        paper = p1_row(count)
        seconds = [each for trial in group for each in trial.completed_seconds]
        mean = mean_seconds(group)
        yield (
            count,
            *((paper.shortest_seconds, paper.longest_seconds) if paper else (None, None)),
            *((paper.saw_refusal, paper.failed) if paper else (None, None)),
            "with" if is_with else "without",
            round(min(seconds), 2) if seconds else None,
            round(max(seconds), 2) if seconds else None,
            None if mean is None else round(mean, 2),
            spread([trial.saw_refusal for trial in group]),
            spread([trial.failed for trial in group]),
            report.rounded(statistics.fmean(trial.whole_seconds for trial in group)),
            report.rounded(
                max((trial.start_up_seconds for trial in group if trial.start_up_seconds is not None), default=None)
            ),
            f"{100 * max(trial.device_peak_bytes for trial in group) / group[0].device_memory_bytes:.1f} %",
        )


def _findings(trials: Sequence[ExperimentTrial]) -> Iterator[str]:
    for is_with in (False, True):
        mine = [trial for trial in trials if trial.is_with_pgpu is is_with]
        if not mine:
            continue
        how = "with" if is_with else "without"
        jobs = sum(len(trial.jobs) for trial in mine)
        failed = sum(trial.failed for trial in mine)
        clean = sum(trial.failed == 0 for trial in mine)
        yield f"{how} pgpu {failed} of {jobs} jobs failed; {clean} of {len(mine)} runs had no failed job"
    over = sum(used > trial.device_memory_bytes for trial in trials for _, used in trial.device_samples)
    samples = sum(len(trial.device_samples) for trial in trials)
    yield f"the device held more than it has in {over} of {samples} samples"


def _draw(trials: Sequence[ExperimentTrial], directory: Path, note: str) -> Iterator[Path]:
    yield draw_mean_time_by_jobs(trials, directory / "p1-mean-time.png", note)
    # P1's box plots are of the two largest numbers of jobs, 24 and 25.
    largest = sorted({len(trial.jobs) for trial in trials})[-2:]
    yield draw_box_of_times([trial for trial in trials if len(trial.jobs) in largest], directory / "p1-box.png", note)
    each = min(trials, key=lambda trial: abs(len(trial.jobs) - 23))
    yield draw_time_of_each_job(each, directory / f"p1-each-of-{len(each.jobs)}.png", note)
    # One trial with and one without pgpu, of the most jobs.
    most = {trial.is_with_pgpu: trial for trial in sorted(trials, key=lambda trial: len(trial.jobs))}
    yield report.draw_memory_of_device(list(most.values()), directory / "p1-device.png", note)
    # A failed job beside a completed one of the same trial, of the first trial that has a failed job with samples.
    for trial in trials:
        failed = [job for job in trial.jobs if job.is_failed and job.memory_timeline]
        completed = [job for job in trial.jobs if not job.is_failed]
        if failed:
            title = f"A failed job holds memory to its end and never uses it\n{note}"
            yield report.draw_memory_of_jobs(failed[:1] + completed[:1], directory / "p1-failed-memory.png", title)
            break


def draw_mean_time_by_jobs(trials: Sequence[ExperimentTrial], path: Path, note: str) -> Path:
    """Draw P1's first figure: mean time by number of jobs."""
    with report.open_figure(
        path, f"Mean time of the jobs that completed\n{note}", "jobs started together", "seconds"
    ) as axes:
        paper = [(row.jobs, (row.shortest_seconds + row.longest_seconds) / 2) for row in P1_TABLE]
        label = "P1, middle of min and max (RTX 3090)"
        axes.plot(*zip(*paper, strict=True), "o--", color=LIGHT.muted, label=label)
        for is_with, colour in ((False, LIGHT.share), (True, LIGHT.reserved)):
            ours = [trial for trial in trials if trial.is_with_pgpu is is_with]
            counts = sorted({len(trial.jobs) for trial in ours})
            means = [(count, mean_seconds([trial for trial in ours if len(trial.jobs) == count])) for count in counts]
            points = [(count, mean) for count, mean in means if mean is not None]
            if points:
                label = "with pgpu" if is_with else "without pgpu"
                axes.plot(*zip(*points, strict=True), "o-", color=colour, label=label)
        axes.set_ylim(bottom=0)
    return path


def draw_time_of_each_job(trial: ExperimentTrial, path: Path, note: str) -> Path:
    """Draw P1's second figure: each job of one run, failed ones in red."""
    with report.open_figure(
        path, f"Each of {len(trial.jobs)} jobs\n{note}", "job, in order of arrival", "seconds"
    ) as axes:
        colours = [LIGHT.bad if job.is_failed else LIGHT.reserved for job in trial.jobs]
        axes.bar(range(1, len(trial.jobs) + 1), [job.seconds for job in trial.jobs], color=colours)
    return path


def draw_box_of_times(trials: Sequence[ExperimentTrial], path: Path, note: str) -> Path:
    """Draw P1's box plots: run times of completed and of failed jobs, by number of jobs."""
    boxes: list[tuple[str, list[float]]] = []
    for is_with, count in sorted({(trial.is_with_pgpu, len(trial.jobs)) for trial in trials}):
        jobs = [
            job for trial in trials if (trial.is_with_pgpu, len(trial.jobs)) == (is_with, count) for job in trial.jobs
        ]
        for is_failed in (False, True):
            seconds = [job.seconds for job in jobs if job.is_failed is is_failed]
            if seconds:
                outcome = "failed" if is_failed else "completed"
                boxes.append((f"{count} {outcome}\n{'with' if is_with else 'without'} pgpu", seconds))
    with report.open_figure(path, f"Run times\n{note}", "", "seconds") as axes:
        axes.boxplot([seconds for _, seconds in boxes], tick_labels=[label for label, _ in boxes])
    return path
