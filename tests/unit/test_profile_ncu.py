"""What becomes of a finished profile where the run under ncu comes to nothing, and how much of that run's words is kept."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from tests.fakes.client import FakeClient
from tests.unit.conftest import Run
from tests.unit.test_profile_words import FAKES, profile_runs

from pgpu.cli.profile_runs import MOST_KEPT_BYTES, OutputTail
from pgpu.errors import CancelledError, NodeError, PgpuError, WaitTimeoutError
from pgpu.model import Job


@dataclass
class Crowded(FakeClient):
    """A client that runs what is profiled, and nothing under ncu."""

    answer: PgpuError | None = None

    def attach(self, job_id: str, stdin: BinaryIO | None, stdout: BinaryIO, stderr: BinaryIO) -> Job:
        if self.answer is not None and self.stored[job_id].spec.command[0] == str(FAKES / "ncu"):
            raise self.answer
        return super().attach(job_id, stdin, stdout, stderr)


@pytest.fixture
def client() -> Crowded:
    return Crowded()


@pytest.mark.parametrize(
    "answer",
    [
        WaitTimeoutError("the GPU is busy"),
        CancelledError("job 2 was cancelled"),
        NodeError("the driver is gone"),
    ],
)
def test_a_finished_profile_is_shown_though_nothing_runs_under_ncu(
    answer: PgpuError, run: Run, client: Crowded, capfd: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(FAKES))
    profile_runs(client, 500_000)
    client.answer = answer
    page = tmp_path / "page.html"
    assert run("profile", "--ncu", "--html", str(page), "--memory", "2GiB", "--", "train") == 0
    [line] = [line for line in capfd.readouterr().out.splitlines() if "not measured" in line]
    assert f"hardware counters: {answer}" in line
    assert page.exists()


def test_of_a_program_that_never_stops_talking_the_end_is_kept_and_no_more() -> None:
    ending = OutputTail()
    piece = b"x" * (1 << 20)
    for _ in range(5 * MOST_KEPT_BYTES // len(piece)):
        ending.write(piece)
    ending.write(b"the table")
    kept = ending.getvalue()
    assert MOST_KEPT_BYTES <= len(kept) <= 2 * MOST_KEPT_BYTES
    assert kept.endswith(b"xthe table")
