"""The ledger's bulletin: what changes is told in order, whoever changed it."""

import time
from pathlib import Path

import pytest
from tests.ledger_entries import add, waiting

from pgpu.errors import RequestError
from pgpu.ledger import Ledger
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


def test_the_stamp_of_a_ledger_stays_until_the_next_write_and_is_unknown_just_after_it(ledger: Ledger) -> None:
    def settled() -> tuple[int, ...]:
        deadline_seconds = time.monotonic() + 30
        while (stamp := ledger.events.stamp()) is None:
            assert time.monotonic() < deadline_seconds
        return stamp

    add(ledger, waiting())
    first = settled()
    ledger.events.after(0, 10)
    assert settled() == first
    ledger.facts.put("key", "value")
    assert ledger.events.stamp() != first
    assert settled() != first
