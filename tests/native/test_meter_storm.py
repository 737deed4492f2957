"""Processes die at every point inside the meter's protocol, and the count stays what the living hold.

A smaller storm than benchmarks/meter_storm, over the same client. The control leaves one step of the protocol out and
must be caught, so that a storm that cannot fail would show.
"""

import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.native_clients import client_path
from tests.waiting import DEADLINE_SECONDS

_RARE = {"RECOVER_DECIDED", "RECOVER_SETTLED"}
"""Reached only where a process meets another that died in the middle; several births are armed for each."""

_MOST_STORMS = 5
"""How often the rare points are sought: whether two processes meet is up to the machine's scheduler."""


@pytest.fixture
def usage() -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(prefix="pgpu-storm-", dir="/dev/shm") as file:
        yield Path(file.name)


def _storm(kind: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(client_path("meter", f"meter-storm-{kind}")), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)


def _result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr + done.stdout
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("survivors", [(), ("forks",)])
def test_killed_from_outside_at_any_moment_the_count_is_the_sum_of_the_living(
    usage: Path, survivors: tuple[str, ...]
) -> None:
    result = _result(_storm("faults", "run", str(usage), "4", "200", "outside", *survivors))
    assert result["kills"] >= 200
    assert result["checks"] > 0
    assert result["over_limit"] == 0
    assert result["operations"] > result["kills"]


def test_killed_at_every_point_inside_an_operation_the_count_is_the_sum_of_the_living(usage: Path) -> None:
    reached: Counter[str] = Counter()
    for _ in range(_MOST_STORMS):
        result = _result(_storm("faults", "run", str(usage), "4", "630", "points", "forks"))
        assert {name for name, times in result["points"].items() if times == 0} <= _RARE
        assert result["over_limit"] == 0
        reached.update(result["points"])
        if any(reached[name] for name in _RARE):
            return
    pytest.fail(f"none of {sorted(_RARE)} was reached in {_MOST_STORMS} storms")


def test_a_protocol_with_a_step_left_out_is_caught(usage: Path) -> None:
    done = _storm("control", "run", str(usage), "4", "2000", "points")
    assert done.returncode == 1
    assert "counts" in done.stderr


def test_nobody_waits_for_a_process_that_is_frozen_at_any_point(usage: Path) -> None:
    """A reservation looks at the total once, once more after a reap, and once for each GPU's corpse: three times."""
    result = _result(_storm("faults", "freeze", str(usage)))
    assert result["passed_frozen"] == result["points"]
    assert result["largest_loops"] <= 3


def test_one_that_is_refused_while_another_takes_a_corpse_s_bytes_back_looks_once_more(usage: Path) -> None:
    assert _storm("faults", "overtake", str(usage)).returncode == 0


def test_two_storms_share_one_file_and_leave_nothing(usage: Path) -> None:
    command = [str(client_path("meter", "meter-storm-faults")), "run", str(usage), "3", "100", "points", "forks"]
    storms = [subprocess.Popen(command, env={"STORM_SHARED": "1"}, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for storm in storms:
        output, _ = storm.communicate(timeout=DEADLINE_SECONDS)
        assert storm.returncode == 0
        assert json.loads(output)["over_limit"] == 0
    assert _storm("faults", "check", str(usage), "0").returncode == 0


def test_a_file_that_was_truncated_hurts_only_its_own_processes(usage: Path) -> None:
    """The storm's workers may die of it; a fresh file serves as if nothing had been."""
    usage.write_bytes(b"\xff" * 100)
    assert _storm("faults", "check", str(usage), "0").returncode == 1
    usage.write_bytes(b"")
    _result(_storm("faults", "run", str(usage), "2", "20", "outside"))
