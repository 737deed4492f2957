"""The experiments run whole, on a simulated GPU, small."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.forked_commands import run_command


def experiment(place: Path, *words: str, model: str = "RTX 3090") -> dict[str, Any]:
    done = run_command(
        ("--simulate", model, "experiment", *words, "--json", "--output", str(place)),
        {**os.environ, "PGPU_HEADROOM": "0"},
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document["report"]  # type: ignore[no-any-return]


def assert_files_are_there(report: dict[str, Any]) -> None:
    paths = [Path(name) for name in report["files"]]
    assert {path.suffix for path in paths} - {".html"} == {".csv", ".png"}
    assert all(path.stat().st_size > 0 for path in paths)


@pytest.mark.soak
def test_p1_completes_with_and_without_pgpu_where_all_fit(tmp_path: Path) -> None:
    report = experiment(tmp_path, "p1", "--jobs", "2", "--both", "--batches", "8")

    assert [(row["pgpu"], row["failed"]) for row in report["table"]] == [("without", "0"), ("with", "0")]
    assert "the device held more than it has in 0 of" in report["findings"][-1]
    assert all(row["start-up s"] < row["all done s"] for row in report["table"])
    (cost,) = report["further"]
    (row,) = cost["rows"]
    assert (row["jobs"], row["waves"], row["filled s"]) == (2, 1, None)
    assert row["with / without"] > 0
    assert "the whole time with pgpu is" in report["findings"][0]
    assert (tmp_path / "p1-cost-jobs.csv").exists()
    assert report["is_simulated"] is True
    assert_files_are_there(report)


def test_p1_without_pgpu_fails_at_24_since_the_device_is_full(tmp_path: Path) -> None:
    report = experiment(tmp_path, "p1", "--jobs", "24", "--without-pgpu", "--batches", "20")

    assert int(report["table"][0]["failed"]) >= 1
    assert (tmp_path / "p1-failed-memory.png").exists()
    assert f"Without pgpu {report['table'][0]['failed']} of 24 jobs fail" in (tmp_path / "index.html").read_text(
        "utf-8"
    )


@pytest.mark.soak
def test_p2_fills_slices_side_by_side(tmp_path: Path) -> None:
    report = experiment(tmp_path, "p2", "--jobs", "3", "--batches", "10")

    ours = {row["question"]: row["ours"] for row in report["table"]}
    assert int(ours["of 3 default jobs at once without pgpu run"]) in {1, 2}
    assert ours["default jobs side by side in slices"] == "3, 0 failed"
    least, _, most = ours["each holds of its slice"].removesuffix(" %").split()
    assert 90 <= float(least) <= float(most) <= 100
    (times,) = report["further"]
    assert [(row["pgpu"], row["jobs"]) for row in times["rows"]] == [*[("without", 1)] * 2, ("without", 3), ("with", 3)]
    assert all(0 < row["start-up s"] < row["whole s"] for row in times["rows"])
    assert_files_are_there(report)


@pytest.mark.soak
def test_p4_refuses_the_hog_alone(tmp_path: Path) -> None:
    report = experiment(tmp_path, "p4", "--neighbours", "1", "--batches", "10")

    ours = {row["question"]: row for row in report["table"]}
    assert "CUDA error 2" in ours["a job past its share"]["ours with pgpu"]
    assert ours["its neighbours"]["ours with pgpu"] == "0 of 1 failed, 0 saw an out of memory"
    (times,) = report["further"]
    assert [(row["pgpu"], row["jobs"]) for row in times["rows"]] == [("without", 2), ("with", 1), ("with", 2)]
    assert_files_are_there(report)


def test_p3s_wall_lets_as_many_run_as_fit_and_the_queue_fails_none(tmp_path: Path) -> None:
    words = ("--part", "wall", "--jobs", "3", "--iterations", "2")
    report = experiment(tmp_path, "p3", *words, model="GTX 980 Ti")

    assert [(row["how"], row["jobs"], row["failed"]) for row in report["table"]][-1] == ("pgpu, in the queue", 3, 0)
    assert any("oversubscribed: left out" in finding for finding in report["findings"])
    assert all(0 < row["start-up s"] < row["makespan s"] for row in report["table"])
    assert_files_are_there(report)


@pytest.mark.soak
def test_p3s_mps_table_has_both_neighbours_of_each_size(tmp_path: Path) -> None:
    report = experiment(tmp_path, "p3", "--part", "mps", "--sizes", "5120", "--repeat", "1", model="GTX 980 Ti")

    assert [(row["size"], row["beside"]) for row in report["table"]] == [(5120, "CS"), (5120, "CI")]
    assert report["table"][1]["winner"] == "MPS"
    assert_files_are_there(report)


@pytest.mark.soak
def test_p3s_overhead_is_of_every_program_and_says_where_containers_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    report = experiment(tmp_path, "p3", "--part", "overhead", "--repeat", "1")

    assert len(report["table"]) >= 6 + 1
    assert all(row["with s"] > row["without s"] > row["without start-up s"] > 0 for row in report["table"])
    assert all(row["with start-up s"] > row["without start-up s"] for row in report["table"])
    assert any("containers left out" in finding for finding in report["findings"])


def test_p5s_callable_object_is_asked_beside_the_structures_before(tmp_path: Path) -> None:
    report = experiment(tmp_path, "p5", "--network", "small", "--requests", "2", model="V100")

    _, process, after = report["table"]
    assert [row["structure"] for row in report["table"]] == [
        *("load in each call", "process for each request", "callable object")
    ]
    assert 0 < after["mean s"] < process["mean s"], "one starts an interpreter each time"
    assert after["start-up s"] + sum([after["mean s"]] * 2) < after["whole s"]
    assert process["start-up s"] is None, "each response time contains it"
    (simulated,) = report["further"]
    assert "no ratio" in simulated["title"]
    assert [row["before / this"] for row in simulated["rows"]] == [None] * 3
    assert_files_are_there(report)


@pytest.mark.docker
def test_p1_runs_in_containers(tmp_path: Path) -> None:
    report = experiment(tmp_path, "p1", "--jobs", "2", "--both", "--batches", "4", "--runtime", "docker")

    assert [row["failed"] for row in report["table"]] == ["0", "0"]
    assert report["runtime"] == "docker"


@pytest.mark.parametrize(
    "words",
    [
        ("p1", "--jobs", "many"),
        ("p1", "--without-pgpu", "--both"),
        ("p3", "--part", "roof"),
        ("p5", "--network", "huge"),
        ("p9",),
    ],
)
def test_bad_words_get_one_line_and_a_hint(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run_command(("experiment", *words, "--output", str(tmp_path / "new")), os.environ)

    assert done.returncode == 125
    assert len(done.stderr.splitlines()) <= 2
    assert not (tmp_path / "new").exists()
