"""What must hold at every moment of a storm, read from the ledger and from what the jobs wrote themselves.

Each job appends to a file of its own when it begins, when its memory fitted and when it ends, so the ledger is held against
somebody else's word. The books refuse to repair: the first thing that does not add up is a failed assertion.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pgpu.engine.leases.recovery import LOST
from pgpu.host.process_identity import is_alive
from pgpu.ledger import Entry, Ledger
from pgpu.model import JobState, ProcessHolder

WHOLE = "begin\nfits\nend\n"
"""What a job wrote that ran once, from its beginning to its end, and got its memory."""

KILLED_EXIT_CODE = 137

_ORDER = [JobState.WAITING, JobState.STARTING, JobState.RUNNING]


@dataclass
class Books:
    """One machine's ledger, and the jobs' own word for it."""

    ledger: Ledger
    fates: Path
    """A directory with one file for each job, named as the job."""

    capacity_bytes: int
    killed: set[str] = field(default_factory=set)
    """Ids of the jobs that the storm itself killed."""

    orphaned: set[str] = field(default_factory=set)
    """Ids of the jobs whose supervisor it killed, so that nobody may have seen their end."""

    _seen: dict[str, Entry] = field(default_factory=dict)

    def check(self) -> None:
        """See that nothing was lost, nothing ran twice, and no more is granted than there is."""
        written = sorted(self.fates.iterdir())  # before the ledger is read: a job may begin meanwhile
        with self.ledger.view() as view:
            held = view.holding()
        entries = {entry.job.id: entry for entry in self.ledger.entries(include_final=True)}
        granted = [part for entry in held if entry.job.lease is not None for part in entry.job.lease.slices]
        assert sum(part.memory_bytes for part in granted) <= self.capacity_bytes
        for job_id, before in self._seen.items():
            assert job_id in entries, f"lost: {before}"
            _check_step(before, entries[job_id])
        for entry in entries.values():
            _check_alone(entry)
        _check_words(written, {entry.job.spec.name or "" for entry in entries.values()})
        self._seen = entries

    def close(self) -> None:
        """See that every job is over, and that its end is the one that it had."""
        self.check()
        for entry in self._seen.values():
            assert not entry.is_live, entry
            self._check_end(entry)
        names = [entry.job.spec.name for entry in self._seen.values()]
        assert len(names) == len(set(names)), "one request became two jobs"

    def fate(self, name: str) -> str:
        """Return what a job wrote; nothing if it never began."""
        path = self.fates / name
        return path.read_text() if path.exists() else ""

    def states(self) -> list[JobState]:
        """Return the state of each job that was ever seen."""
        return [entry.job.state for entry in self._seen.values()]

    def _check_end(self, entry: Entry) -> None:
        job, ran = entry.job, self.fate(entry.job.spec.name or "")
        if job.state is JobState.FAILED:
            assert job.error == LOST, job
            assert job.id in self.orphaned, job
            assert job.id in self.killed or ran in {"", WHOLE}, (job, ran)
            return
        assert job.state is JobState.EXITED, job
        assert (job.exit_code, ran == WHOLE) == (0, True) or job.id in self.killed, (job, ran)
        assert job.exit_code in {0, KILLED_EXIT_CODE}, job


def _check_words(written: Sequence[Path], names: Collection[str]) -> None:
    """Each file is that of a job of the ledger, and holds no step twice or out of order."""
    for path in written:
        assert path.name in names, f"{path.name} ran, and the ledger does not know it"
        assert WHOLE.startswith(path.read_text()), f"{path.name}: {path.read_text()}"


def _check_step(before: Entry, after: Entry) -> None:
    """What ended stays ended, what began does not begin again, and memory that was given back stays so."""
    if before.job.state.is_final:
        assert (after.job.state, after.job.exit_code) == (before.job.state, before.job.exit_code), (before, after)
    elif not after.job.state.is_final:
        assert _ORDER.index(after.job.state) >= _ORDER.index(before.job.state), (before, after)
    assert before.lease_released_at_seconds is None or not after.is_lease_held, (before, after)
    assert before.job.holder in {None, after.job.holder}, (before, after)


def _check_alone(entry: Entry) -> None:
    """Who runs holds a lease, who gave theirs back is gone, and none held more than it was given."""
    job = entry.job
    assert job.state not in {JobState.STARTING, JobState.RUNNING} or entry.is_lease_held, entry
    assert entry.is_lease_held or not isinstance(job.holder, ProcessHolder) or not is_alive(job.holder), entry
    assert (job.peak_bytes or 0) <= job.request.memory_bytes, entry
