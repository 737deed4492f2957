"""A ledger of an older version is brought forward, one of a newer is left alone."""

import sqlite3
from pathlib import Path

import pytest
from tests.ledger_entries import Clock, add, waiting

from pgpu.errors import LedgerError
from pgpu.ledger import Ledger
from pgpu.ledger.schema import ADDITIONS, MIGRATIONS, NEW_OBJECTS, VERSION
from pgpu.model import JobState, Lease, Objective, Request, Slice, UserUsage
from pgpu.scheduling import NO_PRECEDENCE, VirtualTime
from pgpu.structs import replace

OLD = Path(__file__).with_name("ledger_version_1.sql")


def test_a_ledger_of_an_older_version_is_brought_forward_with_its_jobs(ledger_path: Path) -> None:
    ledger_path.parent.mkdir()
    with sqlite3.connect(ledger_path) as connection:
        connection.executescript(OLD.read_text())
        assert connection.execute("PRAGMA user_version").fetchone()[0] == 1
    connection.close()
    ledger = Ledger(ledger_path)
    running, queued = ledger.entries(include_final=False)
    assert (running.job.id, running.job.state, running.job.peak_bytes) == ("aaaaaaaaaaaa", JobState.RUNNING, None)
    assert running.job.lease == Lease("aaaaaaaaaaaa", (Slice("GPU-0", 1 << 30),), 2.0, "shim")
    assert (queued.job.spec.name, queued.wait_deadline_seconds) == ("queued", 99.0)
    assert ledger.inheritance("a" * 12)[0] == (("HOME", "/root"),)
    add(ledger, waiting("c" * 12, name="new"))
    ledger.close()


def make_version(path: Path, version: int, also: str = "") -> None:
    """Make the ledger of an older version with a running and a waiting job; `also` is SQL."""
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.executescript(OLD.read_text())
        for script in (*MIGRATIONS[1:version], also):
            connection.executescript(script)
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


@pytest.mark.parametrize("version", [26, 27])
def test_the_ledger_of_a_late_version_keeps_its_leases_and_a_copy_of_it_stays(ledger_path: Path, version: int) -> None:
    make_version(ledger_path, version)
    clock = Clock()
    ledger = Ledger(ledger_path, now=clock)
    running = ledger.entries(include_final=False)[0]
    assert running.job.lease == Lease("aaaaaaaaaaaa", (Slice("GPU-0", 1 << 30),), 2.0, "shim")
    with ledger.view() as view:
        assert view.precedence(None) == NO_PRECEDENCE
    copy = ledger_path.with_name(f"{ledger_path.name}.version-{version}")
    assert copy.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(copy) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == version
        assert connection.execute("SELECT id FROM jobs").fetchall() == [("a" * 12,), ("b" * 12,)]
    connection.close()
    # It is charged from its next write on, and its end is recorded as that of any other job.
    with ledger.decision() as decision:
        decision.put(running)
    clock.seconds += 60
    ended = replace(running.job, state=JobState.EXITED, exit_code=0, finished_at_seconds=9.0)
    for entry in (replace(running, job=ended), replace(running, job=ended, lease_released_at_seconds=9.0)):
        with ledger.decision() as decision:
            decision.put(entry)
    entry = ledger.entry(running.job.id)
    assert (entry.job.state, entry.ran_seconds, entry.is_live) == (JobState.EXITED, 60, False)
    with ledger.view() as view:
        assert view.holding() == []
        assert view.charges.usage(None, 0.0)[0].gpu_seconds == pytest.approx(60)
    ledger.close()


def test_hours_and_waiting_users_of_a_development_version_are_kept(ledger_path: Path) -> None:
    make_version(
        ledger_path,
        27,
        "INSERT INTO virtual_times VALUES ('', 5.0, NULL, NULL, 1, 1); INSERT INTO clocks VALUES ('', 7, 6.0, 1);"
        " CREATE TABLE usage_hours (uid, hour, runs, gpu_seconds, byte_seconds, used_byte_seconds);"
        " INSERT INTO usage_hours VALUES (7, 0, 2, 3.0, 4.0, 4.0)",
    )
    ledger = Ledger(ledger_path)
    with ledger.view() as view:
        assert view.charges.usage(None, 0.0)[7] == UserUsage(7, 2, 3.0, 4.0, 4.0)
        assert view.precedence(None).time == VirtualTime({7: 6.0, 0: 0.0}, {0: 5.0}, {(7, 0): True})
    ledger.close()


def test_a_new_ledger_leaves_no_copy(ledger: Ledger, ledger_path: Path) -> None:
    add(ledger, waiting())
    assert [each.name for each in ledger_path.parent.glob("*.version-*")] == []


def test_columns_that_the_release_before_did_not_have_are_added_without_a_new_version(
    ledger: Ledger, ledger_path: Path
) -> None:
    add(ledger, waiting())
    ledger.close()
    with sqlite3.connect(ledger_path) as connection:
        for name, made in NEW_OBJECTS.items():
            connection.execute(f"DROP {made.split()[1]} {name}")
        for table, name, _ in ADDITIONS:
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {name}")
    connection.close()
    with Ledger(ledger_path).view() as view:
        assert [each.request.objective for each in view.waiting(None)] == [Objective.RESPONSE]
        assert [entry.job.request.objective for entry in view.live()] == [Objective.RESPONSE]
        assert view.history.demands([("a call", 0)], ["RTX 3090"], 10) == {}
        assert view.conditional() == []
        assert view.charges.usage(None, 0.0) == {}


def test_the_oldest_tables_are_those_of_the_fixture() -> None:
    """A released migration is never changed: the fixture was written by the program that released it."""
    fixture, first = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    fixture.executescript(OLD.read_text())
    first.executescript(MIGRATIONS[0])
    query = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name"
    assert first.execute(query).fetchall() == fixture.execute(query).fetchall()
    fixture.close()
    first.close()


def test_a_ledger_of_a_newer_version_is_refused_untouched(ledger: Ledger, ledger_path: Path) -> None:
    add(ledger, waiting())
    ledger.close()
    with sqlite3.connect(ledger_path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(LedgerError, match="newer pgpu") as refusal:
        Ledger(ledger_path).entries(include_final=True)
    assert refusal.value.hint is not None


def test_a_failed_migration_leaves_the_old_version(ledger_path: Path) -> None:
    ledger_path.parent.mkdir()
    with sqlite3.connect(ledger_path) as connection:
        connection.executescript(OLD.read_text())
        connection.execute("ALTER TABLE jobs ADD COLUMN warning TEXT")
    connection.close()
    with pytest.raises(LedgerError):
        Ledger(ledger_path).entries(include_final=True)
    with sqlite3.connect(ledger_path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == 1
        assert "peak_bytes" not in str(connection.execute("SELECT sql FROM sqlite_schema").fetchall())
    connection.close()


def test_jobs_of_before_keep_their_amounts_where_new_ones_may_have_none(ledger_path: Path) -> None:
    ledger_path.parent.mkdir()
    with sqlite3.connect(ledger_path) as connection:
        connection.executescript(OLD.read_text())
    connection.close()
    ledger = Ledger(ledger_path)
    bare = waiting("c" * 12)
    add(ledger, replace(bare, job=replace(bare.job, request=Request(0, 0))))
    requests = [entry.job.request for entry in ledger.entries(include_final=True)]
    assert [(each.memory_bytes, each.gpu_count) for each in requests] == [(1 << 30, 1), (1 << 31, 2), (0, 0)]
    with ledger.decision() as decision:
        entry = decision.entry("a" * 12)
        decision.put(replace(entry, job=replace(entry.job, request=replace(entry.job.request, memory_bytes=5))))
    kinds = [(event.kind, event.message) for event in ledger.events.after(0, 99)]
    assert ("resized", "5") in kinds
    ledger.close()
