"""The papers' figures as PNG files, drawn by matplotlib without a screen."""

from __future__ import annotations

from contextlib import contextmanager
from statistics import linear_regression
from typing import TYPE_CHECKING, Any

from pgpu.distribution import require_modules
from pgpu.lab.job_outcome import mean_seconds
from pgpu.lab.paper_figures import P1_TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pgpu.lab.job_outcome import ExperimentTrial, JobOutcome

_GIB = 1 << 30
_MIB = 1 << 20
_INCHES = (8.0, 4.5)
_FAILED_COLOUR = "tab:red"
_OURS_COLOUR = "tab:blue"
_PAPER_COLOUR = "tab:gray"


def require_plotting() -> None:
    """Check for matplotlib before an experiment begins.

    Raises:
        NodeError: matplotlib is missing.
    """
    require_modules("figures need", ("matplotlib",), "lab")


@contextmanager
def _figure(path: Path, title: str, horizontal: str, vertical: str) -> Iterator[Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra that may be missing
    from matplotlib.figure import Figure  # noqa: PLC0415 - likewise

    figure = Figure(figsize=_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=horizontal, ylabel=vertical)
    axes.grid(alpha=0.3)
    yield axes
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    figure.savefig(path, dpi=120)


def mean_time_by_jobs(trials: Sequence[ExperimentTrial], path: Path, note: str) -> Path:
    """P1's first figure: mean time by number of jobs."""
    with _figure(path, f"Mean time of the jobs that completed\n{note}", "jobs started together", "seconds") as axes:
        paper = [(row.jobs, (row.shortest_seconds + row.longest_seconds) / 2) for row in P1_TABLE]
        axes.plot(*zip(*paper, strict=True), "o--", color=_PAPER_COLOUR, label="P1, middle of min and max (RTX 3090)")
        for is_with, colour in ((False, _FAILED_COLOUR), (True, _OURS_COLOUR)):
            ours = [trial for trial in trials if trial.is_with_pgpu is is_with]
            counts = sorted({len(trial.jobs) for trial in ours})
            means = [(count, mean_seconds([trial for trial in ours if len(trial.jobs) == count])) for count in counts]
            points = [(count, mean) for count, mean in means if mean is not None]
            if points:
                label = "with pgpu" if is_with else "without pgpu"
                axes.plot(*zip(*points, strict=True), "o-", color=colour, label=label)
        axes.set_ylim(bottom=0)
    return path


def time_of_each_job(trial: ExperimentTrial, path: Path, note: str) -> Path:
    """P1's second figure: each job of one run, failed ones in red."""
    with _figure(path, f"Each of {len(trial.jobs)} jobs\n{note}", "job, in order of arrival", "seconds") as axes:
        colours = [_FAILED_COLOUR if job.is_failed else _OURS_COLOUR for job in trial.jobs]
        axes.bar(range(1, len(trial.jobs) + 1), [job.seconds for job in trial.jobs], color=colours)
    return path


def box_of_times(trials: Sequence[ExperimentTrial], path: Path, note: str) -> Path:
    """P1's box plots: run times of completed and of failed jobs, by number of jobs."""
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
    with _figure(path, f"Run times\n{note}", "", "seconds") as axes:
        axes.boxplot([seconds for _, seconds in boxes], tick_labels=[label for label, _ in boxes])
    return path


def memory_of_jobs(jobs: Sequence[JobOutcome], path: Path, title: str) -> Path:
    """P1's last figure: memory held by jobs over time."""
    with _figure(path, title, "seconds since its start", "memory held (MiB)") as axes:
        for job in jobs:
            line = [*job.memory_timeline, (job.seconds, job.memory_timeline[-1][1])]
            seconds, held = zip(*line, strict=True)
            label = f"{job.name} ({'failed' if job.is_failed else 'completed'})"
            axes.step(seconds, [amount / _MIB for amount in held], where="post", label=label)
        axes.set_ylim(bottom=0)
    return path


def memory_of_device(trials: Sequence[ExperimentTrial], path: Path, note: str) -> Path:
    """Memory in use on the device over time, beside its capacity."""
    with _figure(path, f"Memory in use on the device\n{note}", "seconds", "GiB") as axes:
        for trial in trials:
            began = trial.device_samples[0][0]
            seconds = [at - began for at, _ in trial.device_samples]
            label = f"{len(trial.jobs)} jobs {'with' if trial.is_with_pgpu else 'without'} pgpu"
            axes.plot(seconds, [used / _GIB for _, used in trial.device_samples], label=label)
        axes.axhline(trials[0].device_memory_bytes / _GIB, color="black", linestyle=":", label="the device is full")
        axes.set_ylim(bottom=0)
    return path


def bars(
    groups: Sequence[tuple[str, Sequence[float]]], labels: Sequence[str], path: Path, title: str, unit: str
) -> Path:
    """Bars side by side: one colour for each group, one place for each label."""
    width = 0.8 / len(groups)
    with _figure(path, title, "", unit) as axes:
        for index, (name, values) in enumerate(groups):
            axes.bar([place + index * width for place in range(len(labels))], values, width, label=name)
        axes.set_xticks([place + 0.4 - width / 2 for place in range(len(labels))], labels)
    return path


def response_times(
    series: Sequence[tuple[str, Sequence[float]]], paper: Sequence[tuple[str, float]], path: Path, title: str
) -> Path:
    """P5's figure: response time of each request with its trend, beside the paper's means."""
    with _figure(path, title, "request", "seconds") as axes:
        for name, seconds in series:
            places = range(1, len(seconds) + 1)
            (line,) = axes.plot(places, seconds, "o", markersize=3, label=name)
            slope, first = linear_regression(places, seconds)
            axes.plot(places, [first + slope * place for place in places], "--", color=line.get_color())
        for name, mean in paper:
            axes.axhline(mean, color=_PAPER_COLOUR, linestyle=":")
            axes.annotate(name, (1, mean), color=_PAPER_COLOUR, va="bottom")
        axes.set_yscale("log")
    return path
