"""Deadlines of tests measure progress, not the wall."""

from pathlib import Path

import pytest
from tests import waiting


def test_a_second_in_which_a_task_waits_for_a_processor_counts_a_tenth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    pressure = tmp_path / "cpu"
    assert waiting.progress_seconds(pressure) == 1000.0
    pressure.write_text(
        "some avg10=98.92 avg60=85.42 avg300=77.05 total=100000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    )
    assert waiting.progress_seconds(pressure) == pytest.approx(910.0)


def test_what_never_comes_true_fails_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "DEADLINE_SECONDS", 0.0)
    with pytest.raises(AssertionError, match="not yet"):
        waiting.until(lambda: False, lambda: "not yet")
