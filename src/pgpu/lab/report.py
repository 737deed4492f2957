"""The report of an experiment: a table with the paper's figures beside ours, findings, and CSV, JSON and PNG files.

The command line prints it. Figures are drawn by matplotlib without a screen.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pgpu.distribution import require_modules
from pgpu.errors import NodeError
from pgpu.lab.outcomes import ExperimentTrial, JobOutcome
from pgpu.lab.testbed import Testbed
from pgpu.palette import LIGHT
from pgpu.structs import Struct, replace, to_builtins
from pgpu.units import GIB, MIB

Cell = str | int | float | None

_INCHES = (8.0, 4.5)
_STYLE: Mapping[Any, Any] = {
    "figure.facecolor": LIGHT.paper,
    **dict.fromkeys(("axes.facecolor", "legend.facecolor"), LIGHT.card),
    **dict.fromkeys(("text.color", "axes.labelcolor"), LIGHT.ink),
    **dict.fromkeys(("xtick.color", "ytick.color"), LIGHT.muted),
    **dict.fromkeys(("axes.edgecolor", "legend.edgecolor", "grid.color"), LIGHT.line),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    "axes.prop_cycle": f"cycler('color', {list(LIGHT.slices)})",
}
"""Settings of matplotlib: a grid behind the marks, and the colours of the dashboard."""


def rounded(seconds: float | None) -> float | None:
    """Round a time or a ratio for a table, to hundredths; None stays None."""
    return None if seconds is None else round(seconds, 2)


class Table(Struct, frozen=True):
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def objects(self) -> list[dict[str, Cell]]:
        """Return each row under the columns' names."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class Report(Struct, frozen=True):
    experiment: str
    """`p1` to `p5`."""

    device: str
    is_simulated: bool
    runtime: str
    settings: dict[str, Any]
    table: Table
    findings: tuple[str, ...]
    """Conclusions, a line each."""

    files: tuple[Path, ...]
    further: tuple[Table, ...] = ()
    """Tables of the other parts of an experiment."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values, rows as objects."""
        plain = {
            **to_builtins(self, enc_hook=str),
            "table": self.table.objects(),
            "files": [str(path) for path in self.files],
        }
        further = [{"title": table.title, "rows": table.objects()} for table in self.further]
        return {**plain, "findings": list(self.findings), "further": further}


class ReportPart(Struct, frozen=True):
    """The result of one part of an experiment; a row that is missing in the table has a finding with the reason."""

    table: Table
    findings: tuple[str, ...]
    files: tuple[Path, ...]


SIMULATED_NOTE = "simulated GPU: memory is accounted as on a device, kernel times are modelled, not measured"


def caption(bed: Testbed) -> str:
    """Return the line under a figure's title: the device, and whether its times are modelled."""
    name = bed.device_name
    return f"simulated {name}: kernel times are modelled, not measured" if bed.is_simulated else name


def write_report(  # noqa: PLR0917 - one for each part of a report
    experiment: str,
    bed: Testbed,
    settings: dict[str, Any],
    trials: Sequence[ExperimentTrial],
    directory: Path,
    table: Table,
    findings: Iterable[str],
    figures: Iterable[Path],
) -> Report:
    """Write the table, all jobs and all samples of the device as CSV, and return the report."""
    files = (
        write_table(table, directory / f"{experiment}-table.csv"),
        write_jobs(trials, directory / f"{experiment}-jobs.csv"),
        write_device(trials, directory / f"{experiment}-device.csv"),
        *figures,
    )
    return Report(
        experiment=experiment,
        device=bed.device_name,
        is_simulated=bed.is_simulated,
        runtime=bed.runtime,
        settings=settings,
        table=table,
        findings=tuple(findings),
        files=files,
    )


def with_times(written: Report, trials: Sequence[tuple[str, ExperimentTrial]], directory: Path) -> Report:
    """Add a table of whole times and start-ups (`outcomes`), a row for each named trial, and write it as CSV."""
    table = Table(
        f"{written.experiment.upper()}: whole time, from submission to the last end",
        ("trial", "pgpu", "jobs", "whole s", "start-up s"),
        tuple(
            (
                *(name, "with" if trial.is_with_pgpu else "without", len(trial.jobs)),
                *(rounded(trial.whole_seconds), rounded(trial.start_up_seconds)),
            )
            for name, trial in trials
        ),
    )
    path = write_table(table, directory / f"{written.experiment}-times.csv")
    return replace(written, further=(*written.further, table), files=(*written.files, path))


def output_directory(path: Path) -> Path:
    """Create the directory for an experiment's files.

    Raises:
        NodeError: It cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise NodeError(f"{path} cannot be made: {exc.strerror}", hint="name another with --output") from exc
    return path


def write_table(table: Table, path: Path) -> Path:
    """Write a table as CSV."""
    return _write_csv(path, table.columns, table.rows)


def write_jobs(trials: Iterable[ExperimentTrial], path: Path) -> Path:
    """Write every job of every trial as CSV; `turnaround`, `granted` and `executed` in seconds since its submission."""
    columns = (
        *("with_pgpu", "jobs", "repetition", "arrival", "name", "exit_code", "failed", "saw_refusal", "seconds"),
        *("turnaround_seconds", "held_bytes", "slice_peak_bytes", "complaint", "granted_seconds", "executed_seconds"),
    )
    rows = [
        (
            *(trial.is_with_pgpu, len(trial.jobs), trial.repetition, arrival, job.name, job.exit_code, job.is_failed),
            *(job.saw_refusal, round(job.seconds, 4), round(job.turnaround_seconds, 4)),
            *((job.result or {}).get("held_bytes"), job.slice_peak_bytes, job.complaint),
            *(_since_submission(job, at_seconds) for at_seconds in (job.granted_at_seconds, job.executed_at_seconds)),
        )
        for trial in trials
        for arrival, job in enumerate(trial.jobs, start=1)
    ]
    return _write_csv(path, columns, rows)


def _since_submission(job: JobOutcome, at_seconds: float | None) -> float | None:
    return None if at_seconds is None else round(at_seconds - job.submitted_at_seconds, 4)


def write_device(trials: Iterable[ExperimentTrial], path: Path) -> Path:
    """Write every sample of the device's memory as CSV, in seconds since its trial began."""
    rows = [
        (trial.is_with_pgpu, len(trial.jobs), trial.repetition, round(at - trial.device_samples[0][0], 3), used_bytes)
        for trial in trials
        for at, used_bytes in trial.device_samples
    ]
    return _write_csv(path, ("with_pgpu", "jobs", "repetition", "seconds", "used_bytes"), rows)


def write_summary(report: Report, path: Path) -> Path:
    """Write the report as JSON, with the date and the names of the files beside it."""
    names = [file.name for file in report.files]
    date = datetime.now(UTC).isoformat(timespec="seconds")
    content = {"schema_version": 1, "date": date, **report.as_json(), "files": names}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
    return path


def require_plotting() -> None:
    """Check for matplotlib before an experiment begins.

    Raises:
        NodeError: matplotlib is missing.
    """
    require_modules("figures need", ("matplotlib",), "lab")


@contextmanager
def open_figure(path: Path, title: str, horizontal: str, vertical: str) -> Iterator[Any]:
    """Yield the axes of a figure; it is written when the block ends."""
    from matplotlib import rc_context  # noqa: PLC0415 - an extra that may be missing
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - likewise
    from matplotlib.figure import Figure  # noqa: PLC0415 - likewise

    with rc_context({**_STYLE}):
        # Without pyplot, which may choose the backend of a display and keeps every figure until it is closed.
        figure = Figure(figsize=_INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.set(title=title, xlabel=horizontal, ylabel=vertical)
        yield axes
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
        figure.savefig(path, dpi=120)


def draw_memory_of_jobs(jobs: Sequence[JobOutcome], path: Path, title: str) -> Path:
    """Draw the memory held by jobs over time, as in P1's last figure."""
    with open_figure(path, title, "seconds since its start", "memory held (MiB)") as axes:
        for job in jobs:
            line = [*job.memory_timeline, (job.seconds, job.memory_timeline[-1][1])]
            seconds, held = zip(*line, strict=True)
            label = f"{job.name} ({'failed' if job.is_failed else 'completed'})"
            axes.step(seconds, [amount / MIB for amount in held], where="post", label=label)
        axes.set_ylim(bottom=0)
    return path


def draw_memory_of_device(trials: Sequence[ExperimentTrial], path: Path, note: str) -> Path:
    """Draw the memory in use on the device over time, beside its capacity."""
    with open_figure(path, f"Memory in use on the device\n{note}", "seconds", "GiB") as axes:
        for trial in trials:
            began = trial.device_samples[0][0]
            seconds = [at - began for at, _ in trial.device_samples]
            label = f"{len(trial.jobs)} jobs {'with' if trial.is_with_pgpu else 'without'} pgpu"
            axes.plot(seconds, [used / GIB for _, used in trial.device_samples], label=label)
        axes.axhline(trials[0].device_memory_bytes / GIB, color=LIGHT.ink, linestyle=":", label="the device is full")
        axes.set_ylim(bottom=0)
    return path


def draw_bars(
    groups: Sequence[tuple[str, Sequence[float]]], labels: Sequence[str], path: Path, title: str, unit: str
) -> Path:
    """Draw bars side by side: one colour for each group, one place for each label."""
    width = 0.8 / len(groups)
    with open_figure(path, title, "", unit) as axes:
        for index, (name, values) in enumerate(groups):
            axes.bar([place + index * width for place in range(len(labels))], values, width, label=name)
        axes.set_xticks([place + 0.4 - width / 2 for place in range(len(labels))], labels)
    return path
