"""What must hold of jobs that share GPUs while anybody is killed: read from the ledger, the slices, the GPUs, and the jobs' own files.

What is wrong at once is a failed assertion; what others need a moment to put right (a hold of somebody who is gone, say) may
not stay so. The books refuse to repair, and to wait: they are looked into again and again.
"""

import contextlib
import os
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.sharing_worker import PROGRESS, WHOLE, WORKS

from pgpu.enforcement.compute_word import Hold
from pgpu.engine.engine import Engine
from pgpu.engine.leases.recovery import LOST
from pgpu.engine.watch.turn_arbiter import load_turns, turn_paths
from pgpu.engine.watch.watchdog import find_outsiders_once
from pgpu.errors import EnforcementError
from pgpu.ledger import Entry
from pgpu.model import Job, JobState, SharingMode, Slice

PATIENCE_SECONDS = 20.0
"""What must not stay may be there so long: several times what whoever puts it right takes on a busy machine."""

GRANT_SECONDS = 150.0
"""Nobody waits longer: everybody else's work has ended several times by then."""

STILL_SECONDS = 60.0
"""Who may launch has launched something in this time: several turns of others are shorter."""

_ORDER = [JobState.WAITING, JobState.STARTING, JobState.RUNNING]


@dataclass
class Member:
    """One job of the storm, and what was done to it."""

    name: str
    asked_seconds: float
    hits: set[str] = field(default_factory=set)
    """`job`, `supervisor`, and `mps` where somebody of its GPU's MPS was killed."""

    launches: int = 0
    moved_seconds: float = 0.0
    """When it had launched more than before, or was not free to."""

    is_judged: bool = False


@dataclass
class SharingBooks:
    """One machine's."""

    engine: Engine
    fates: Path
    """A directory with one file for each job, named as the job."""

    members: dict[str, Member] = field(default_factory=dict)
    """By name."""

    ends: dict[str, int] = field(default_factory=dict)
    """How the jobs ended, in words, and how many."""

    _since_seconds: dict[Hashable, float] = field(default_factory=dict)

    def check(self) -> None:
        """See that all is well now, or was a moment ago."""
        with self.engine.ledger.view() as view:
            holding = list(view.holding())
        entries = self.engine.ledger.entries(include_final=True)
        self._check_granted(holding)
        for entry in entries:
            self._follow(entry)
        self._allow_for_a_moment(dict(self._amiss(entries, holding)))

    def close(self) -> None:
        """See that every job is over and how it ended."""
        self.check()
        for entry in self.engine.ledger.entries(include_final=True):
            assert not entry.is_live, entry
        for gpu in self.engine.gpus.gpus():
            assert self.engine.gpus.memory(gpu.uuid).used_bytes == 0, f"somebody holds memory of {gpu.uuid}"

    def progress(self, name: str) -> tuple[int, int]:
        """Return how often a job has launched, and its stage."""
        with contextlib.suppress(FileNotFoundError):
            data = (self.fates / name).read_bytes()
            return PROGRESS.unpack(data) if len(data) == PROGRESS.size else (0, 0)
        return 0, 0

    def _check_granted(self, holding: Sequence[Entry]) -> None:
        """No GPU is given away twice, and each is shared in one way. Who is suspended has lent its place."""
        for gpu in self.engine.gpus.gpus():
            parts = [(entry.job, part) for entry in holding for part in _parts(entry, gpu.uuid)]
            placed = [(job, part) for job, part in parts if job.suspended_by is None and not _has_no_place_yet(job)]
            assert sum(part.device_bytes for _, part in placed) <= gpu.memory_bytes, parts
            assert sum(part.compute_share or 0.0 for _, part in placed) <= 1.0 + 1e-6, parts
            assert len({job.lease.sharing for job, _ in parts if job.lease}) <= 1, parts

    def _follow(self, entry: Entry) -> None:
        """See that one job gets on, or how it ended."""
        job = entry.job
        member = self.members.get(job.spec.name or "")
        if member is None or member.is_judged:
            return
        now_seconds = time.monotonic()
        if job.state.is_final:
            member.is_judged = True
            self._judge(job, member)
            return
        launches, _ = self.progress(member.name)
        is_free = job.state is JobState.RUNNING and job.suspended_by is None
        if not is_free or launches > member.launches:
            member.launches, member.moved_seconds = launches, now_seconds
        assert now_seconds - member.moved_seconds < STILL_SECONDS, f"it launches nothing: {entry}\n{self._state(job)}"
        is_granted = job.state in {JobState.RUNNING, JobState.STARTING}
        assert is_granted or now_seconds - member.asked_seconds < GRANT_SECONDS, f"it waits and waits: {entry}"

    def _state(self, job: Job) -> str:
        words = [] if job.lease is None else self.engine.enforcer.words(job.lease)
        boards = [] if job.lease is None else self.engine.enforcer.boards(job.lease)
        log = self.engine.places(job.id).supervisor_log
        return f"{words}\n{boards}\n{log.read_text() if log.exists() else ''}"

    def _judge(self, job: Job, member: Member) -> None:
        """Whoever was not hit has run to its end; whoever lost its MPS says so."""
        _, stage = self.progress(member.name)
        said = f"{job}\n{member}, stage {stage}\n{self._said(job)}"
        if job.exit_code == 0:
            assert stage == WHOLE, said
            end = "ran to its end"
        elif "job" in member.hits:
            end = "was killed"
        elif job.error == LOST:
            assert "supervisor" in member.hits, said
            assert stage == WHOLE or "mps" in member.hits, said
            end = "ended while its supervisor was dead"
        else:
            assert "mps" in member.hits, said
            assert "MPS" in (job.warning or job.error or ""), said
            end = "lost its MPS, and says so"
        self.ends[end] = self.ends.get(end, 0) + 1

    def _said(self, job: Job) -> str:
        places = self.engine.places(job.id)
        return "".join(
            path.read_bytes().decode(errors="replace") for path in (places.log, places.supervisor_log) if path.exists()
        )

    def _allow_for_a_moment(self, amiss: dict[Hashable, str]) -> None:
        now_seconds = time.monotonic()
        self._since_seconds = {what: self._since_seconds.get(what, now_seconds) for what in amiss}
        for what, since_seconds in self._since_seconds.items():
            assert now_seconds - since_seconds < PATIENCE_SECONDS, amiss[what]

    def _amiss(self, entries: Sequence[Entry], holding: Sequence[Entry]) -> Iterator[tuple[Hashable, str]]:
        """Tell what may be so for a moment only."""
        for entry in holding:
            yield from self._holds(entry.job, holding)
        yield from self._left_files(entries, holding)
        yield from self._unexplained(holding)

    def _holds(self, job: Job, holding: Sequence[Entry]) -> Iterator[tuple[Hashable, str]]:
        """Nobody is held by somebody who is gone."""
        living = {entry.job.id for entry in holding}
        if job.suspended_by is not None and job.suspended_by not in living:
            yield (job.id, "suspended by", job.suspended_by), f"{job} is suspended for a job that is gone"
        if job.lease is None or job.state is not JobState.RUNNING:
            return
        try:
            words = self.engine.enforcer.words(job.lease)
        except EnforcementError:
            return
        for part, word in zip(job.lease.slices, words, strict=False):
            if word.holds & Hold.SUSPENSION and job.suspended_by is None:
                yield (job.id, "suspension"), f"{job} is held, and not suspended"
            if word.holds & Hold.TURNS and not self._waits_for_turn(job, part):
                yield (job.id, "turn"), f"{job} is held for turns that nobody does"
            if word.holds & Hold.TRIAL and not self._is_locked("verifying", part):
                yield (job.id, "trial"), f"{job} is held for a trial that nobody does"

    def _waits_for_turn(self, job: Job, part: Slice) -> bool:
        turns = load_turns(turn_paths(self.engine.settings, part.gpu_uuid).state)
        return not turns.may_run(job.id) and self._is_locked("turns", part)

    def _is_locked(self, duty: str, part: Slice) -> bool:
        return holder_of(self.engine.settings.runtime_directory / duty / f"{part.gpu_uuid}.lock") is not None

    def _left_files(self, entries: Sequence[Entry], holding: Sequence[Entry]) -> Iterator[tuple[Hashable, str]]:
        """Slices are those of jobs that hold a lease, and what stands on the board is theirs."""
        runtime = self.engine.settings.runtime_directory
        living = {entry.job.id for entry in entries if entry.is_live or entry.is_lease_held}
        for path in (*_listed(runtime / "slices"), *_listed(runtime / "jobs")):
            if path.name not in living and not path.name.startswith(("test", "context")):
                yield ("left", path), f"{path} is left of a job that is gone"
        told = set()
        for path in _listed(runtime / "slices"):
            with contextlib.suppress(OSError):
                told.add(Path((path / "meter" / "time").readlink()).name)
        for path in _listed(runtime / "board"):
            if path.name not in told:
                yield ("board", path.name), f"{path} counts for a job that is gone"
        in_mps = any(entry.job.lease and entry.job.lease.sharing is SharingMode.MPS for entry in holding)
        for path in _listed(runtime / "mps"):
            for generation in _listed(path):
                if generation.is_dir() and not in_mps:
                    yield ("mps", generation), f"{generation} is left of a daemon without jobs"

    def _unexplained(self, holding: Sequence[Entry]) -> Iterator[tuple[Hashable, str]]:
        """What the GPUs tell is what leases explain, and what slices count."""
        for outsider in find_outsiders_once(self.engine):
            yield (outsider.gpu_uuid, outsider.process), f"{outsider} holds memory outside of every lease"
        for entry in holding:
            if entry.job.lease is None or entry.job.state is not JobState.RUNNING:
                continue
            with contextlib.suppress(EnforcementError):
                for use in self.engine.enforcer.use(entry.job.lease):
                    _, stage = self.progress(entry.job.spec.name or "")
                    if stage == WORKS and use.used_bytes == 0:
                        yield (entry.job.id, "unmetered"), f"{entry.job} launches, and its slice counts nothing"
        for gpu in self.engine.gpus.gpus():
            counted = self._counted_bytes(gpu.uuid, holding)
            used_bytes = self.engine.gpus.memory(gpu.uuid).used_bytes
            if counted is not None and counted != used_bytes:
                yield (gpu.uuid, "books"), f"{gpu.uuid} has {used_bytes} in use, and its slices count {counted}"

    def _counted_bytes(self, gpu_uuid: str, holding: Sequence[Entry]) -> int | None:
        """Return what the slices of a GPU count of what is on it; None where some of it is on the host."""
        found = 0
        for entry in holding:
            for _ in _parts(entry, gpu_uuid):
                if entry.job.request.oversubscribes or entry.job.suspended_by or entry.job.lease is None:
                    return None
                if entry.job.lease.sharing is SharingMode.MPS:
                    return None  # Its server holds some, too.
                with contextlib.suppress(EnforcementError):
                    found += sum(
                        u.used_bytes for u in self.engine.enforcer.use(entry.job.lease) if u.gpu_uuid == gpu_uuid
                    )
        return found


def holder_of(path: Path) -> int | None:
    """Return who holds a lock on a file, without trying it: whoever tried would hold it for a moment."""
    with contextlib.suppress(OSError):
        inode = path.stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
                return int(fields[4])
    return None


def _has_no_place_yet(job: Job) -> bool:
    """One that was to be let in where somebody then could not leave gives its grant back: it holds nothing."""
    return job.request.preempts and job.holder is None


def _parts(entry: Entry, gpu_uuid: str) -> list[Slice]:
    lease = entry.job.lease
    return [] if lease is None else [part for part in lease.slices if part.gpu_uuid == gpu_uuid]


def _listed(path: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [Path(each.path) for each in os.scandir(path)]
    return []
