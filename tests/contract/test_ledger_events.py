"""The ledger's bulletin: what changes is told in order, whoever changed it."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.ledger_entries import add, waiting

from pgpu.errors import RequestError
from pgpu.ledger import ChangeWatch, Ledger
from pgpu.model import JobState
from pgpu.structs import replace


def test_a_job_s_life_is_told_in_order(ledger: Ledger) -> None:
    entry = waiting()
    with ledger.decision() as decision:
        decision.add(entry, ())
    with ledger.decision() as decision:
        decision.put(replace(entry, job=replace(entry.job, state=JobState.RUNNING)))
        decision.put(replace(entry, job=replace(entry.job, state=JobState.RUNNING, warning="too much")))
    events = ledger.events.after(0, 10)
    assert [(event.kind, event.state) for event in events] == [
        ("job", "waiting"),
        ("job", "running"),
        ("warned", "running"),
    ]
    assert {(event.job_id, event.owner_uid) for event in events} == {(entry.job.id, entry.job.owner_uid)}
    assert events[-1].message == "too much"
    assert [event.sequence for event in events] == sorted({event.sequence for event in events})


def test_what_is_undone_was_never_told(ledger: Ledger) -> None:
    def add_two_of_one_name() -> None:
        with ledger.decision() as decision:
            decision.add(waiting(name="one"), ())
            decision.add(waiting("another00000", name="one"), ())

    with pytest.raises(RequestError):
        add_two_of_one_name()
    assert ledger.events.newest() == 0


def test_who_was_away_reads_what_came_meanwhile(ledger: Ledger, ledger_path: Path) -> None:
    ledger.events.note("first", "one")
    seen = ledger.events.newest()
    other = Ledger(ledger_path)
    other.events.note("second", "two", owner_uid=7)
    other.close()
    assert [(event.kind, event.owner_uid) for event in ledger.events.after(seen, 10)] == [("second", 7)]
    assert not ledger.events.after(ledger.events.newest(), 10)


def test_the_oldest_are_forgotten(ledger: Ledger) -> None:
    with ledger.decision() as decision:
        decision._connection.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10050)"
            " INSERT INTO events (at, kind) SELECT i, 'flood' FROM n"
        )
    assert ledger.events.after(0, 1)[0].sequence == 51


def test_a_watch_reports_what_another_process_commits_and_no_transaction_that_changes_nothing(ledger: Ledger) -> None:
    add(ledger, waiting())
    with ChangeWatch(ledger.path) as watch:
        watch.clear()
        with ledger.decision():
            ledger.events.after(0, 10)
        assert not watch.wait(0.0)
        program = (
            "import sys, pathlib, pgpu.ledger as it; it.Ledger(pathlib.Path(sys.argv[1])).facts.put('key', 'value')"
        )
        subprocess.run([sys.executable, "-c", program, str(ledger.path)], check=True)
        assert watch.wait(0.0)
        watch.clear()
        assert not watch.wait(0.0)


def test_a_watch_follows_a_ledger_that_was_replaced(ledger: Ledger) -> None:
    add(ledger, waiting())
    with ChangeWatch(ledger.path) as watch:
        watch.clear()
        for path in ledger.path.parent.glob(f"{ledger.path.name}*"):
            path.unlink()
        add(ledger, waiting())
        watch.clear()
        assert not watch.wait(0.0)
        ledger.facts.put("key", "value")
        assert watch.wait(0.0)


def test_without_inotify_a_watch_reports_a_possible_change_all_the_time(tmp_path: Path) -> None:
    program = """
import resource, sys, pathlib
from pgpu.ledger import ChangeWatch
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
with ChangeWatch(pathlib.Path(sys.argv[1])) as watch:
    watch.clear()
    assert watch.descriptor is None
    assert watch.wait(60.0)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "ledger")], check=True)


def test_a_cached_read_is_repeated_after_a_commit_alone(ledger: Ledger) -> None:
    reads: list[str | None] = []

    def read() -> str | None:
        reads.append(ledger.facts.get("key"))
        return reads[-1]

    add(ledger, waiting())  # makes the file
    cached = ledger.cached(read)
    assert [cached.get() for _ in range(3)] == [None] * 3
    ledger.facts.put("key", "value")
    assert [cached.get() for _ in range(3)] == ["value"] * 3
    assert reads == [None, "value"]
    ledger.close()
    assert cached.get() == "value"
    assert len(reads) == 3  # commits while no watch was there may have been missed
