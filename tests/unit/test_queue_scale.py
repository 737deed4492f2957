"""What the benchmark of a long queue calls a missed target."""

import copy
import json
from pathlib import Path

import pytest
from benchmarks.queue_scale import TARGETS, missed
from benchmarks.shim_overhead import RESULTS

RECORDED = max(Path(RESULTS).glob("queue-scale-*.json"))


def test_the_newest_record_misses_no_target() -> None:
    assert missed(json.loads(RECORDED.read_text("utf-8"))) == {}


@pytest.mark.parametrize("kind", ["round_where_nothing_fits", "round_that_ranks_everybody"])
def test_a_median_past_its_target_is_missed_and_a_maximum_is_not(kind: str) -> None:
    report = json.loads(RECORDED.read_text("utf-8"))
    report["queue"][kind]["wall_ms"]["max"] = 10 * TARGETS["round_ms"]
    assert missed(report) == {}
    slow = copy.deepcopy(report)
    slow["queue"][kind]["wall_ms"]["median"] = TARGETS["round_ms"] + 1
    slow["starts"]["shell_to_exec_ms"]["median"] = TARGETS["shell_to_exec_ms"] + 1
    slow["queue"]["agent_mib"] = [210.0]
    assert missed(slow) == {"round_ms": 101.0, "shell_to_exec_ms": 301.0, "resident_mib": 210.0}
