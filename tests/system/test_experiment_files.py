"""Tables, CSV and figures of experiments are written from what the trials say."""

import csv
import json
import re
from pathlib import Path

import pytest

from pgpu.errors import NodeError
from pgpu.lab import p1, p1_page, report
from pgpu.lab.outcomes import ExperimentTrial, JobOutcome
from pgpu.palette import LIGHT

GIB = 1 << 30
SAMPLES = ((1000.5, 5 * GIB), (1001.0, 7 * GIB))


def job(name: str = "job", *, seconds: float = 8.0, refusals: int = 0, exit_code: int | None = 0) -> JobOutcome:
    result = {
        "seconds": seconds,
        "refusals": refusals,
        "began_at_seconds": 100.0,
        "held_bytes": GIB,
        "memory_timeline": [[0.0, GIB // 4], [1.0, GIB]],
    }
    return JobOutcome(name, 100.0, 100.0 + seconds, exit_code, result, "")


def trial(
    *jobs: JobOutcome, is_with_pgpu: bool = False, samples: tuple[tuple[float, int], ...] = ()
) -> ExperimentTrial:
    return ExperimentTrial(is_with_pgpu, 1, jobs, 24 * GIB, samples)


def test_every_job_becomes_a_line_of_csv(tmp_path: Path) -> None:
    trials = [trial(job("a"), job("b", exit_code=1)), trial(job("c"), is_with_pgpu=True)]

    with report.write_jobs(trials, tmp_path / "jobs.csv").open() as file:
        rows = list(csv.DictReader(file))

    assert [(row["with_pgpu"], row["arrival"], row["name"], row["failed"]) for row in rows] == [
        ("False", "1", "a", "False"),
        ("False", "2", "b", "True"),
        ("True", "1", "c", "False"),
    ]


def test_samples_are_written_in_seconds_since_their_trial_began(tmp_path: Path) -> None:
    found = trial(job(), samples=((1000.5, 5), (1001.0, 7)))

    with report.write_device([found], tmp_path / "device.csv").open() as file:
        assert [(row["seconds"], row["used_bytes"]) for row in csv.DictReader(file)] == [("0.0", "5"), ("0.5", "7")]


def test_a_report_as_json_has_its_rows_as_objects(tmp_path: Path) -> None:
    table = report.Table("title", ("jobs", "failed"), ((25, 0),))
    found = report.Report("p1", "RTX 3090", True, "process", {}, table, ("fine",), (tmp_path / "a.csv",))

    written = json.loads(report.write_summary(found, tmp_path / "p1.json").read_text())

    assert written["table"] == [{"jobs": 25, "failed": 0}]
    assert written["is_simulated"] is True
    assert written["files"] == ["a.csv"]


@pytest.mark.parametrize("columns", [1, 3])
def test_a_row_that_does_not_fit_its_columns_is_an_error(columns: int) -> None:
    table = report.Table("title", ("name",) * columns, ((1, 2),))
    found = report.Report("p1", "gpu", True, "process", {}, table, (), ())

    with pytest.raises(ValueError, match="zip"):
        found.as_json()


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG")


def test_every_figure_of_p1_is_a_png(tmp_path: Path) -> None:
    bare = trial(job("a"), job("b", exit_code=1), samples=SAMPLES)
    sliced = trial(job("c"), job("d"), is_with_pgpu=True, samples=SAMPLES)

    drawn = [
        p1.draw_mean_time_by_jobs([bare, sliced], tmp_path / "1.png", "note"),
        p1.draw_time_of_each_job(bare, tmp_path / "2.png", "note"),
        p1.draw_box_of_times([bare, sliced], tmp_path / "3.png", "note"),
        report.draw_memory_of_jobs(bare.jobs, tmp_path / "4.png", "title"),
        report.draw_memory_of_device([bare, sliced], tmp_path / "5.png", "note"),
        report.draw_bars([("held", [2, 1]), ("used", [1, 1])], ["a", "b"], tmp_path / "6.png", "title", "MiB"),
    ]

    assert all(is_png(path) for path in drawn)


def test_figures_have_the_colours_of_the_dashboard(tmp_path: Path) -> None:
    from matplotlib.colors import to_hex  # noqa: PLC0415 - slow to import
    from matplotlib.image import imread  # noqa: PLC0415 - likewise

    with report.open_figure(tmp_path / "1.png", "title", "across", "up") as axes:
        assert tuple(axes.plot([0, 1])[0].get_color() for _ in LIGHT.slices) == LIGHT.slices
        assert to_hex(axes.get_facecolor()) == LIGHT.card
        assert axes.xaxis.label.get_color() == LIGHT.ink
    assert to_hex(imread(tmp_path / "1.png")[0, 0]) == LIGHT.paper


def test_p1s_page_draws_each_job_and_loads_nothing(tmp_path: Path) -> None:
    died = JobOutcome("b", 100.0, 102.0, 1, None, "<script>alert(1)</script>")
    bare, sliced = trial(job("a"), died, samples=SAMPLES), trial(job("c"), job("d"), is_with_pgpu=True, samples=SAMPLES)
    table = report.Table("P1", ("jobs", "failed"), ((2, 1), (2, None)))
    found = report.Report("p1", "RTX 3090", True, "process", {}, table, ("1 of 2 <failed>",), ())

    page = p1_page.write_page(found, [bare, sliced], tmp_path / "index.html", 15, "2026-11-28").read_text("utf-8")

    assert re.findall(r"<h2>(With.*?)</h2>", page) == ["Without pgpu 1 of 2 jobs fail", "With pgpu 0 of 2 jobs fail"]
    assert (page.count('class="failed"'), page.count('class="done"')) == (1, 3)
    assert "<dt>of 2 jobs fail in the paper</dt><dd>15</dd>" in page
    assert "simulated RTX 3090" in page
    assert "1 of 2 &lt;failed&gt;" in page
    assert not re.search(r"<script|<link|<img|url\(|https?:|src=|href=", page)


def test_trials_in_which_nothing_completed_can_be_drawn(tmp_path: Path) -> None:
    assert is_png(p1.draw_mean_time_by_jobs([trial(job(exit_code=1))], tmp_path / "1.png", "note"))


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(NodeError, match="file/below"):
        report.output_directory(tmp_path / "file" / "below")
