"""Who watches whom among the supervisors: every death is noticed by somebody, and wakes only a few."""

from hypothesis import given
from hypothesis import strategies as st

from pgpu.engine.supervisor.ring import watched
from pgpu.ledger import Entry
from pgpu.model import Job, JobSpec, JobState, Lease, ProcessHolder, Request, Slice

KEEPER = ProcessHolder(1, 1, "b")


def entry(number: int, *, is_supervised: bool) -> Entry:
    lease = Lease(f"job{number}", (Slice("GPU-0", 1),), 0.0)
    job = Job(f"job{number}", JobSpec((), "process"), Request(1), JobState.RUNNING, 0.0, lease=lease)
    return Entry(job, number, supervisor=ProcessHolder(number + 2, 1, "b") if is_supervised else None)


ledgers = st.lists(st.booleans(), min_size=1, max_size=12).map(
    lambda parts: [entry(number, is_supervised=is_supervised) for number, is_supervised in enumerate(parts)]
)


@given(ledgers)
def test_every_supervisor_is_watched_by_another(entries: list[Entry]) -> None:
    supervised = [each for each in entries if each.supervisor is not None]
    if len(supervised) > 1:
        for each in supervised:
            assert any(each.supervisor in watched(other, entries) for other in supervised if other is not each)


@given(ledgers)
def test_a_supervisor_watches_one_other_and_the_keeper(entries: list[Entry]) -> None:
    for each in entries:
        if each.supervisor is not None:
            assert len(watched(each, entries)) <= 1
            assert KEEPER in watched(each, entries, KEEPER)


@given(ledgers)
def test_nobody_watches_itself(entries: list[Entry]) -> None:
    for each in entries:
        if each.supervisor is not None:
            assert each.supervisor not in watched(each, entries, KEEPER)


def test_a_job_alone_has_nobody_to_watch() -> None:
    alone = entry(1, is_supervised=True)
    assert watched(alone, [alone]) == set()
