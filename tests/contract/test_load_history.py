"""What a gateway learnt of its functions outlives it, and never keeps the next one from starting."""

import asyncio
import time
from pathlib import Path

import pytest

from pgpu.functions.requests.prometheus_metrics import GatewayMetrics
from pgpu.functions.router.function_router import RouterTable
from pgpu.functions.router.version_load import LearnedLoad, LoadHistory, learned_loads, restore_loads
from pgpu.functions.scaling.call_history import WarmWindow
from pgpu.model import Function, Share, Version, VersionState


def halls_of(created_at_seconds: float = 1.0) -> RouterTable:
    words = '{"keep_warm": "auto"}'
    version = Version("it", 1, 7, "a:F", "0", words, "process", None, None, VersionState.READY, None, 1.0)
    made = RouterTable(GatewayMetrics())
    made.adopt([Function("it", 7, created_at_seconds, (version,), (Share(1, 100),))])
    return made


def test_a_gateway_goes_on_from_what_the_one_before_learnt(tmp_path: Path) -> None:
    asyncio.run(going_on(tmp_path))


async def going_on(tmp_path: Path) -> None:
    before, now = halls_of(), time.monotonic()
    hall = before.get("it")
    assert hall is not None
    load = hall.loads[1]
    for number in range(12):
        load.note_call(now - 600.0 * (12 - number))
    load.note_ready(3.5)
    load.prefetch.learn(2.0)
    LoadHistory(tmp_path / "learned.db").write(learned_loads(before))

    after = halls_of()
    restore_loads(after, LoadHistory(tmp_path / "learned.db").read())
    again = after.get("it")
    assert again is not None
    learned = again.loads[1]
    assert learned.arrivals.warmth(5.0) == load.arrivals.warmth(5.0) != WarmWindow(0.0, 5.0)
    assert learned.last_call_seconds == pytest.approx(load.last_call_seconds, abs=0.1)
    assert learned.frequency.at(now) == pytest.approx(load.frequency.at(now), rel=1e-3)
    assert (learned.cold_seconds, learned.prefetch.exec_seconds) == (3.5, load.prefetch.exec_seconds)

    other = halls_of(created_at_seconds=2.0)  # which got the name later
    restore_loads(other, LoadHistory(tmp_path / "learned.db").read())
    assert not learned_loads(other)


def test_a_file_that_is_none_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "learned.db"
    path.write_bytes(b"nonsense" * 1000)
    memory = LoadHistory(path)
    assert memory.read() == {}
    lessons = {("it@1.0", 1): LearnedLoad(1.0, 2.0, 3.0, 4.0, (5,))}
    memory.write(lessons)
    assert LoadHistory(path).read() == lessons
    LoadHistory(tmp_path / "nowhere" / "learned.db").write(lessons)


def test_those_that_were_called_last_are_remembered(tmp_path: Path) -> None:
    memory = LoadHistory(tmp_path / "learned.db", most=2)
    memory.write({("it", number): LearnedLoad(float(number), 0.0, 0.0, 0.0, ()) for number in range(5)})
    assert sorted(memory.read()) == [("it", 3), ("it", 4)]
