"""Entries as tests write them into a ledger."""

from pgpu.ledger import Entry, Ledger
from pgpu.model import Job, JobSpec, JobState, Request


def waiting(job_id: str = "0123456789ab", **words: object) -> Entry:
    spec = JobSpec(("true",), "process", **words)  # type: ignore[arg-type]
    return Entry(Job(job_id, spec, Request(5, 2), JobState.WAITING, 1.0))


def add(ledger: Ledger, entry: Entry) -> Entry:
    with ledger.decision() as decision:
        return decision.add(entry, ())
