"""Entries as tests write them into a ledger."""

from pgpu.ledger import Entry, Ledger
from pgpu.model import Gpu, Job, JobSpec, JobState, Request


class Clock:
    """A monotonic clock that only the test moves."""

    def __init__(self) -> None:
        self.seconds, self.boot = 50.0, "first boot"

    def __call__(self) -> tuple[float, str]:
        return self.seconds, self.boot


def waiting(job_id: str = "0123456789ab", **words: object) -> Entry:
    spec = JobSpec(("true",), "process", **words)  # type: ignore[arg-type]
    return Entry(Job(job_id, spec, Request(5, 2), JobState.WAITING, 1.0))


def instance_of(uuid: str, memory_bytes: int) -> Gpu:
    return Gpu(uuid, "A100 MIG 2g.10gb", 0, memory_bytes, "1", is_simulated=False, parent_uuid="GPU", mig_index=0)


def add(ledger: Ledger, entry: Entry) -> Entry:
    with ledger.decision() as decision:
        return decision.add(entry, ())
