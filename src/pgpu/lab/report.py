"""The report of an experiment: a table with the paper's figures beside ours, findings, and CSV and JSON files.

The command line prints it.
"""

import csv
import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pgpu.errors import NodeError
from pgpu.lab.job_outcome import ExperimentTrial
from pgpu.lab.testbed import Testbed

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of figures."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def objects(self) -> list[dict[str, Cell]]:
        """Return each row under the columns' names."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Report:
    """One experiment's result."""

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
        plain = {**dataclasses.asdict(self), "table": self.table.objects(), "files": [str(path) for path in self.files]}
        further = [{"title": table.title, "rows": table.objects()} for table in self.further]
        return {**plain, "findings": list(self.findings), "further": further}


@dataclass(frozen=True, slots=True)
class ReportPart:
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
    """Write every job of every trial as CSV."""
    columns = (
        *("with_pgpu", "jobs", "repetition", "arrival", "name", "exit_code", "failed", "saw_refusal", "seconds"),
        *("turnaround_seconds", "held_bytes", "slice_peak_bytes", "complaint"),
    )
    rows = [
        (
            *(trial.is_with_pgpu, len(trial.jobs), trial.repetition, arrival, job.name, job.exit_code, job.is_failed),
            *(job.saw_refusal, round(job.seconds, 4), round(job.turnaround_seconds, 4)),
            *((job.result or {}).get("held_bytes"), job.slice_peak_bytes, job.complaint),
        )
        for trial in trials
        for arrival, job in enumerate(trial.jobs, start=1)
    ]
    return _write_csv(path, columns, rows)


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
