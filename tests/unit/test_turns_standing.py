"""How turns stand is read as it was written, and anything else as nothing."""

from pathlib import Path

import pytest

from pgpu.engine.settings import EngineSettings
from pgpu.engine.watch.gpu_time import GpuTime
from pgpu.engine.watch.turn_arbiter import add_turn, load_turns, save_turns, turn_paths
from pgpu.scheduling.gpu_turns import NO_TURNS, Contender, TurnRules, TurnState, advance
from pgpu.structs import replace

GB = 10**9


def played(steps: int) -> TurnState:
    """Turns that have been through everything: two jobs that do not fit together, one of them brief."""
    turns = NO_TURNS
    for step in range(steps):
        now_seconds = step * 0.1
        contenders = [
            Contender("a", 7 * GB, has_work=True, wanted_at_seconds=now_seconds),
            Contender("b", 7 * GB, has_work=step % 100 < 30, wanted_at_seconds=now_seconds - step % 100 / 20),
        ]
        turns = advance(turns, contenders, 9 * GB, now_seconds, TurnRules(bytes_per_second=50 * GB))
    return turns


@pytest.mark.parametrize("steps", [1, 40, 100, 500])
def test_they_are_read_as_they_were_written(tmp_path: Path, steps: int) -> None:
    save_turns(tmp_path / "turns", played(steps))
    assert load_turns(tmp_path / "turns") == played(steps)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"is_on": 1}', '{"is_on": true, "holders": 7}'])
def test_what_is_no_standing_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "turns").write_text(text)
    assert load_turns(tmp_path / "turns") == NO_TURNS
    assert load_turns(tmp_path / "missing") == NO_TURNS


def test_only_gpus_with_turns_are_shown(tmp_path: Path) -> None:
    settings = EngineSettings(tmp_path / "state", tmp_path)
    for uuid, turns in (("GPU-0", played(20)), ("GPU-1", NO_TURNS)):
        place = turn_paths(settings, uuid).state
        place.parent.mkdir(exist_ok=True)
        save_turns(place, turns)
    used = [GpuTime(uuid, 1.0, 0.0, 1) for uuid in ("GPU-0", "GPU-1", "GPU-2")]
    shown = [add_turn(settings, "a", each) for each in used]
    assert shown[1:] == used[1:]
    assert shown[0].turn_since_seconds is not None
    assert shown[0].turn_until_seconds is not None
    assert shown[0].turn_until_seconds > shown[0].turn_since_seconds
    assert add_turn(settings, "b", used[0]) == replace(used[0], is_held=True)
