"""What the kernel counts of a control group is read as it is, and nothing is made of what is not there."""

from pathlib import Path

import pytest

from pgpu.functions.replica.worker_process import OomKillCounter


def test_one_more_is_told_once(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 3\noom_kill 2\n")
    kills = OomKillCounter([tmp_path / "none", events])
    assert not kills.is_another()
    events.write_text("low 0\noom 4\noom_kill 3\n")
    assert (kills.is_another(), kills.is_another()) == (True, False)


@pytest.mark.parametrize("text", [None, "", "oom_kill", "oom_kill many", "oom_kill_disable 0\nunder_oom 0\n"])
def test_what_is_not_counted_ended_nobody(tmp_path: Path, text: str | None) -> None:
    place = tmp_path / "memory.oom_control"
    if text is not None:
        place.write_text(text)
    assert not OomKillCounter([place]).is_another()
