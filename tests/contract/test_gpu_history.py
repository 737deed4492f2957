"""The week of the GPUs, in its file and as an agent records it."""

import os
import sqlite3
import stat
from pathlib import Path

from tests.fakes.machine import make_machine

from pgpu.engine.agent.agents import Agents
from pgpu.engine.history.gpu_recorder import GpuRecorder
from pgpu.ledger import GpuHistory, GpuMinute
from pgpu.ledger.gpu_history import FILE_NAME, KEPT_SECONDS
from pgpu.model import GpuSeries, JobSpec, Request, Submission
from pgpu.units import GIB, MIB

ROW = GpuMinute("GPU-0", 4 * GIB, GIB, 50)
NOON = 28_000_000
"""A minute since the epoch."""


def test_what_is_written_is_read_and_a_minute_without_a_row_is_missing(tmp_path: Path) -> None:
    history = GpuHistory(tmp_path)
    history.add(NOON, [ROW, GpuMinute("GPU-1", 2 * GIB, 0, None)])
    history.add(NOON + 5, [ROW])
    first, second = history.series(0)
    assert first == GpuSeries("GPU-0", (NOON * 60, NOON * 60 + 300), (4 * GIB,) * 2, (GIB,) * 2, (50, 50))
    assert second == GpuSeries("GPU-1", (NOON * 60,), (2 * GIB,), (0,), (None,))
    assert history.series(NOON * 60 + 60, "GPU-0")[0].at_seconds == (NOON * 60 + 300,)
    assert history.total(0).reserved_bytes == (6 * GIB, 4 * GIB)
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600


def test_older_than_a_week_is_deleted(tmp_path: Path) -> None:
    history = GpuHistory(tmp_path)
    for minute in (0, 1, KEPT_SECONDS // 60 + 1):
        history.add(NOON + minute, [ROW])
    assert len(history.series(0)[0].at_seconds) == 2


def test_a_minute_of_a_wrong_clock_deletes_no_other_and_goes_with_the_next_one(tmp_path: Path) -> None:
    history = GpuHistory(tmp_path)
    for minute in (NOON, 2 * NOON, NOON + 1, 1, NOON + 2):
        history.add(minute, [ROW])
    assert history.series(0)[0].at_seconds == tuple((NOON + number) * 60 for number in range(3))


def test_a_damaged_file_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1000)
    history = GpuHistory(tmp_path)
    assert history.series(0) == []
    history.add(NOON, [ROW])
    assert history.series(0)[0].at_seconds == (NOON * 60,)


def test_a_full_file_drops_minutes_and_stays_readable(tmp_path: Path) -> None:
    history = GpuHistory(tmp_path, most_bytes=40_000)
    for number in range(40):
        history.add(NOON + number, [GpuMinute(f"GPU-{gpu}", GIB, GIB, 1) for gpu in range(50)])
    assert (tmp_path / FILE_NAME).stat().st_size <= 40_000
    assert 0 < len(history.total(0).at_seconds) < 40


def test_a_directory_that_is_gone_drops_minutes(tmp_path: Path) -> None:
    history = GpuHistory(tmp_path / "gone")
    history.add(NOON, [ROW])
    assert history.total(0).at_seconds == ()


def test_a_writer_does_not_wait_for_one_that_holds_the_file(tmp_path: Path) -> None:
    history = GpuHistory(tmp_path)
    history.add(NOON, [ROW])
    other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    history.add(NOON + 1, [ROW])
    other.close()
    assert history.total(0).at_seconds == (NOON * 60,)


def test_50_gpus_and_a_week_fit() -> None:
    # One row at its largest, in SQLite's own encoding: minute and memory in 4 bytes, the rest in 1 or 2, and the header.
    path = f"/dev/shm/pgpu-week-{os.getpid()}"
    connection = sqlite3.connect(path)
    try:
        connection.execute(
            "CREATE TABLE minutes (minute INTEGER, gpu INTEGER, reserved_mib INTEGER NOT NULL, used_mib INTEGER NOT NULL,"
            " busy_percent INTEGER, PRIMARY KEY (minute, gpu)) WITHOUT ROWID"
        )
        rows = ((NOON + minute, gpu, 81_559, 70_001, 100) for minute in range(1000) for gpu in range(50))
        connection.executemany("INSERT INTO minutes VALUES (?, ?, ?, ?, ?)", rows)
        connection.commit()
        [(bytes_of_1000,)] = connection.execute(
            "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        )
    finally:
        connection.close()
        Path(path).unlink()
    assert bytes_of_1000 * KEPT_SECONDS / 60 / 1000 < 60 * MIB


class Clock:
    seconds = NOON * 60.0


def test_an_agent_records_the_means_of_a_minute_once_it_is_over_and_nothing_while_nothing_runs(tmp_path: Path) -> None:
    engine = make_machine(tmp_path, [10 * GIB, 10 * GIB])
    clock = Clock()
    recorder = GpuRecorder(engine, lambda: clock.seconds)
    history = GpuHistory(engine.settings.state_directory)
    for _ in range(150):
        recorder.tick(is_used=False)
        clock.seconds += 1
    assert not history.path.exists()

    engine.agents = Agents(engine.settings, ("/bin/true",))  # ends at once, and its guard with it
    engine.submit_all([Submission(JobSpec(("true",), "process"), Request(4 * GIB))])
    engine.admissions.step()
    for _ in range(60):
        recorder.tick(is_used=True)
        clock.seconds += 1
    [series] = history.series(0)
    assert series.at_seconds == ((NOON + 2) * 60,)
    assert series.reserved_bytes == (4 * GIB,)
    recorder.flush()
    assert len(history.series(0)[0].at_seconds) == 2


def test_gpus_that_cannot_be_read_are_tried_again_after_ten_seconds(tmp_path: Path) -> None:
    engine = make_machine(tmp_path, [10 * GIB])
    (tmp_path / "gpus.json").unlink()
    clock, failed = Clock(), 0
    recorder = GpuRecorder(engine, lambda: clock.seconds)
    for _ in range(20):
        try:
            recorder.tick(is_used=True)
        except OSError:
            failed += 1
        clock.seconds += 1
    assert failed == 2
