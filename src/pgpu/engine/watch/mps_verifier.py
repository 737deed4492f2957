"""Sees to it, while jobs with `--sharing auto` are together under MPS, that they are faster so, and has them take turns if not.

Of the supervisors of the jobs on one GPU one does it, whoever holds a lock that dies with it. Turns are made by holding all but
one at their next launch: what one job has of the GPU is then its own, caches too, and the same processes go on. Whoever
takes over lets everybody go on whom somebody before held so, and begins anew; the limit files remember who is held. It
refuses to hold a job that asked for MPS by name, or one that oversubscribes: on a GPU with such a job nothing is tried, and
who was held when it came goes on.

What is found is remembered for these programs, so that the next of them start in the better mode.
"""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pgpu.advising.verification import DEFAULT_RULES, Trial, Verdict, VerificationRules, Way, advance, begin
from pgpu.enforcement.compute_word import Hold
from pgpu.engine.admission.sharing_facts import keep_verdict, verdict_of
from pgpu.engine.engine import Engine
from pgpu.engine.process.event_loop import EventLoop, Timer
from pgpu.errors import EnforcementError, PgpuError
from pgpu.host.file_lock import try_lock
from pgpu.ledger import Entry
from pgpu.model import Gpu, Job, JobState, SharingMode, SharingWish

_LOG = logging.getLogger(__name__)


TURN_SECONDS = 0.1
"""How long one job goes on alone; long beside the launches that the others end meanwhile."""

LOOK_SECONDS = 0.02
"""Between looks while jobs take turns."""

_NANOSECONDS = 1e9
_LATELY_SECONDS = 0.05


class MpsVerifier:
    """One supervisor's part in it."""

    def __init__(self, engine: Engine, loop: EventLoop, job: Job, rules: VerificationRules = DEFAULT_RULES) -> None:
        """Do nothing until `tick`."""
        lease = job.lease
        is_concerned = (
            job.request.sharing is SharingWish.AUTO and lease is not None and lease.sharing is SharingMode.MPS
        )
        self._duty = (
            _Duty(engine, loop, lease.slices[0].gpu_uuid, rules) if is_concerned and lease is not None else None
        )

    def tick(self) -> None:
        """Look at who is there and how they get on; called about once a second.

        Raises:
            NodeError: The ledger or a GPU cannot be read.
        """
        if self._duty is not None and self._duty.is_taken():
            self._duty.look()

    def close(self) -> None:
        """Let everybody go on and leave the duty to somebody else."""
        if self._duty is not None:
            self._duty.close()


@dataclass(slots=True)
class _Duty:
    """One GPU, while this process has it."""

    engine: Engine
    loop: EventLoop
    gpu_uuid: str
    rules: VerificationRules
    _lock: int | None = None
    _trial: Trial = field(default_factory=Trial)
    _jobs: Sequence[Job] = ()
    """Those under trial; nobody else is held."""

    _holder: str | None = None
    _holder_since_seconds: float = 0.0
    _timer: Timer | None = None

    def is_taken(self) -> bool:
        """Whether this process has the duty, which it takes if nobody has it; then nobody is held."""
        if self._lock is None:
            self._lock = try_lock(self.engine.settings.runtime_directory / "verifying" / f"{self.gpu_uuid}.lock")
            if self._lock is not None:
                self._let_go(self._present())
        return self._lock is not None

    def look(self) -> None:
        """See who is there, and go on with the trial."""
        present = self._present()
        self._jobs = _under_trial(present)
        self._let_go([job for job in present if job not in self._jobs])
        now_seconds = self.loop.now_seconds()
        company = frozenset(job.id for job in self._jobs)
        if company != self._trial.company:
            self._trial = self._begun(company, now_seconds)
        before = self._trial
        self._trial = advance(before, self._launches(), now_seconds, self.rules)
        if self._trial.is_over and self._trial.gain is not None and not before.is_over:
            self._remember(self._trial)
        self._follow()

    def close(self) -> None:
        """Let everybody go on, and let go of the lock."""
        self._stop_timer()
        if self._lock is not None:
            self._let_go(self._jobs)
            os.close(self._lock)
            self._lock = None

    def _present(self) -> Sequence[Job]:
        """Return who is on the GPU, may it be held or not."""
        with self.engine.ledger.view() as view:
            return [entry.job for entry in view.holding() if _is_there(entry, self.gpu_uuid)]

    def _begun(self, company: frozenset[str], now_seconds: float) -> Trial:
        gpu = self._gpu()
        known = None
        if gpu is not None:
            with self.engine.ledger.view() as view:
                known = verdict_of(view, gpu, [job.signature for job in self._jobs])
        age_seconds = 0.0 if known is None else time.time() - known.at_seconds
        return begin(company, now_seconds, known, known_age_seconds=age_seconds, rules=self.rules)

    def _remember(self, trial: Trial) -> None:
        gpu = self._gpu()
        if gpu is None or trial.gain is None:
            return
        verdict = Verdict(trial.way, trial.gain, time.time())
        keep_verdict(self.engine.ledger.facts, gpu, [job.signature for job in self._jobs], verdict)
        _LOG.warning(
            f"sharing auto: {len(self._jobs)} jobs are {trial.gain:.2f} times as fast together as in turns: {trial.way}"
        )

    def _gpu(self) -> Gpu | None:
        return next((gpu for gpu in self.engine.gpus.gpus() if gpu.uuid == self.gpu_uuid), None)

    def _launches(self) -> Mapping[str, int]:
        found = {}
        for job in self._jobs:
            with suppress(EnforcementError):
                boards = self.engine.enforcer.boards(job.lease) if job.lease is not None else ()
                found[job.id] = sum(board.launches for board in boards)
        return found

    def _follow(self) -> None:
        """Hold and let go as the trial says."""
        if self._trial.way is Way.TOGETHER or len(self._jobs) < 2:  # noqa: PLR2004 - one job takes turns with nobody
            self._stop_timer()
            self._holder = None
            self._let_go(self._jobs)
        elif self._timer is None:
            self._take_turns()

    def _take_turns(self) -> None:
        now_seconds = self.loop.now_seconds()
        self._timer = self.loop.call_later(LOOK_SECONDS, self._take_turns)
        is_done = now_seconds - self._holder_since_seconds >= TURN_SECONDS
        if self._holder is None or is_done or not self._wants(self._holder, now_seconds):
            self._give_turn(now_seconds)

    def _give_turn(self, now_seconds: float) -> None:
        """Let the next in the round go on that wants to, and hold the others."""
        ids = [job.id for job in self._jobs]
        start = ids.index(self._holder) + 1 if self._holder in ids else 0
        in_turn = ids[start:] + ids[:start]
        wanting = [job_id for job_id in in_turn if self._wants(job_id, now_seconds)]
        chosen = next(iter(wanting or in_turn), None)
        for job in self._jobs:
            if job.id != chosen:
                self._hold(job, is_held=True)
        self._let_go([job for job in self._jobs if job.id == chosen])
        self._holder, self._holder_since_seconds = chosen, now_seconds

    def _wants(self, job_id: str, now_seconds: float) -> bool:
        """Whether a job has something in flight, or something to launch as of late. Who is held says so once, and waits."""
        job = next((each for each in self._jobs if each.id == job_id), None)
        if job is None or job.lease is None:
            return False
        with suppress(EnforcementError):
            for board in self.engine.enforcer.boards(job.lease):
                wanted_lately = now_seconds - board.wanted_ns / _NANOSECONDS < _LATELY_SECONDS
                if board.in_flight_until_ns != 0 or wanted_lately or (board.wanted_ns != 0 and self._is_held(job)):
                    return True
        return False

    def _hold(self, job: Job, *, is_held: bool) -> None:
        if job.lease is None:
            return
        try:
            if self._is_held(job) != is_held:
                self.engine.enforcer.hold(job.lease, self.gpu_uuid, Hold.TRIAL, is_held=is_held)
        except PgpuError as exc:
            _LOG.warning(f"sharing auto: job {job.id} could not be {'held' if is_held else 'let go on'}: {exc}")

    def _is_held(self, job: Job) -> bool:
        words = () if job.lease is None else self.engine.enforcer.words(job.lease)
        parts = () if job.lease is None else job.lease.slices
        return any(
            part.gpu_uuid == self.gpu_uuid and bool(word.holds & Hold.TRIAL)
            for part, word in zip(parts, words, strict=False)  # none before the slice is made
        )

    def _let_go(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._hold(job, is_held=False)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_there(entry: Entry, gpu_uuid: str) -> bool:
    job = entry.job
    is_there = job.lease is not None and gpu_uuid in {part.gpu_uuid for part in job.lease.slices}
    return is_there and entry.is_counted and job.state is JobState.RUNNING


def _under_trial(present: Sequence[Job]) -> Sequence[Job]:
    """Return who may take turns: nobody where somebody who runs there may not be held. Who is suspended does not run."""
    running = [job for job in present if job.suspended_by is None]
    return running if all(_may_be_held(job) for job in running) else ()


def _may_be_held(job: Job) -> bool:
    return job.request.sharing is SharingWish.AUTO and not job.request.oversubscribes
