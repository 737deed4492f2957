"""Verifies by trial that jobs with `--sharing auto` run faster together under MPS, and makes them take turns if they do not.

Of the threads that supervise the jobs on one GPU, the one that holds a file lock runs the trial on its event loop. A turn holds all
jobs but one at their next launch: that job then has the GPU and its caches alone, in the same processes. Holds are bits of
the limit files, so the next holder of the lock finds them; it releases all jobs and starts again. A GPU with a job that may
not be held (MPS by name, or oversubscribed) has no trial. Verdicts are stored in the ledger and choose the mode of later jobs.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress

from pgpu.advising.verification import DEFAULT_RULES, Trial, Verdict, VerificationRules, Way, advance, begin
from pgpu.enforcement.compute_word import Hold
from pgpu.engine.admission.auto_sharing import keep_verdict, verdict_of
from pgpu.engine.context import EngineContext
from pgpu.engine.event_loop import EventLoop, Timer
from pgpu.errors import EnforcementError, PgpuError
from pgpu.host.file_lock import try_lock
from pgpu.host.stderr_log import say
from pgpu.model import Gpu, Job, JobState, SharingMode, SharingWish

TURN_SECONDS = 0.1
"""Length of one turn; long beside the launches that the held jobs still finish."""

LOOK_SECONDS = 0.02
"""Polling interval while jobs take turns."""

_NANOSECONDS = 1e9
_LATELY_SECONDS = 0.05


class MpsVerifier:
    """The part of one job's thread in the trial on the job's GPU: runs it while it holds the GPU's lock."""

    def __init__(
        self, context: EngineContext, loop: EventLoop, job: Job, rules: VerificationRules = DEFAULT_RULES
    ) -> None:
        lease = job.lease
        self._context = context
        self._loop = loop
        self._rules = rules
        self._is_in_trial = (
            job.request.sharing is SharingWish.AUTO and lease is not None and lease.sharing is SharingMode.MPS
        )
        self._gpu_uuid = lease.slices[0].gpu_uuid if lease is not None and lease.slices else ""
        self._lock: int | None = None
        self._trial = Trial()
        self._jobs: Sequence[Job] = ()
        """Under trial; no other job is held."""

        self._holder: str | None = None
        """Id of the job that has the turn."""

        self._holder_since_seconds = 0.0
        self._timer: Timer | None = None

    def tick(self) -> None:
        """Take the lock if it is free, and advance the trial; called about once a second.

        Raises:
            NodeError: The ledger or a GPU cannot be read.
        """
        if not self._is_in_trial:
            return
        if self._lock is None:
            self._lock = try_lock(self._context.settings.runtime_directory / "verifying" / f"{self._gpu_uuid}.lock")
            if self._lock is None:
                return
            # Holds that the last holder of the lock left are bits of the limit files.
            self._release(self._running_jobs())
        self._advance()

    def _advance(self) -> None:
        """Read which jobs are there and their launches, and continue the trial."""
        present = self._running_jobs()
        running = [job for job in present if job.suspended_by is None]
        # Only jobs that left the mode open are held for a trial; paging jobs take turns of their own.
        may_hold = all(job.request.sharing is SharingWish.AUTO and not job.request.oversubscribes for job in running)
        self._jobs = running if may_hold else ()
        self._release([job for job in present if job not in self._jobs])
        now_seconds = self._loop.now_seconds()
        # A trial compares exactly these jobs; with any other set of jobs a new one begins.
        job_ids = frozenset(job.id for job in self._jobs)
        if job_ids != self._trial.job_ids:
            self._trial = self._new_trial(job_ids, now_seconds)
        before = self._trial
        launches = {}
        for job in self._jobs:
            with suppress(EnforcementError):
                boards = self._context.enforcer.boards(job.lease) if job.lease is not None else ()
                launches[job.id] = sum(board.launches for board in boards)
        self._trial = advance(before, launches, now_seconds, self._rules)
        if self._trial.is_over and self._trial.gain is not None and not before.is_over:
            self._keep_verdict(self._trial, self._trial.gain)
        if self._trial.way is Way.TOGETHER or len(self._jobs) < 2:  # noqa: PLR2004 - one job needs no turns
            self._stop_timer()
            self._holder = None
            self._release(self._jobs)
        elif self._timer is None:
            self._take_turns()

    def close(self) -> None:
        """Release all jobs and the lock."""
        self._stop_timer()
        if self._lock is not None:
            self._release(self._jobs)
            os.close(self._lock)
            self._lock = None

    def _running_jobs(self) -> Sequence[Job]:
        with self._context.ledger.view() as view:
            counted = [entry.job for entry in view.holding() if entry.is_counted and entry.job.lease is not None]
        return [
            job
            for job in counted
            if job.state is JobState.RUNNING
            and job.lease is not None
            and any(part.gpu_uuid == self._gpu_uuid for part in job.lease.slices)
        ]

    def _new_trial(self, job_ids: frozenset[str], now_seconds: float) -> Trial:
        # A recent verdict on the same programs saves the trial.
        gpu, known = self._gpu(), None
        if gpu is not None:
            with self._context.ledger.view() as view:
                known = verdict_of(view, gpu, [job.signature for job in self._jobs])
        age_seconds = 0.0 if known is None else time.time() - known.at_seconds
        return begin(job_ids, now_seconds, known, known_age_seconds=age_seconds, rules=self._rules)

    def _keep_verdict(self, trial: Trial, gain: float) -> None:
        gpu = self._gpu()
        if gpu is None:
            return
        verdict = Verdict(trial.way, gain, time.time())
        keep_verdict(self._context.ledger.facts, gpu, [job.signature for job in self._jobs], verdict)
        say(f"sharing auto: {len(self._jobs)} jobs are {gain:.2f} times as fast together as in turns: {trial.way}")

    def _gpu(self) -> Gpu | None:
        return next((gpu for gpu in self._context.gpus.gpus() if gpu.uuid == self._gpu_uuid), None)

    def _take_turns(self) -> None:
        now_seconds = self._loop.now_seconds()
        self._timer = self._loop.call_later(LOOK_SECONDS, self._take_turns)
        is_done = now_seconds - self._holder_since_seconds >= TURN_SECONDS
        if self._holder is None or is_done or not self._has_work(self._holder, now_seconds):
            self._give_turn(now_seconds)

    def _give_turn(self, now_seconds: float) -> None:
        """Release the next job in the round that has work, and hold the others."""
        ids = [job.id for job in self._jobs]
        start = ids.index(self._holder) + 1 if self._holder in ids else 0
        in_turn = ids[start:] + ids[:start]
        wanting = [job_id for job_id in in_turn if self._has_work(job_id, now_seconds)]
        # The others are held before the chosen one is released, so that no two jobs begin launches at a time.
        chosen = next(iter(wanting or in_turn), None)
        for job in self._jobs:
            if job.id != chosen:
                self._set_hold(job, is_held=True)
        self._release([job for job in self._jobs if job.id == chosen])
        self._holder, self._holder_since_seconds = chosen, now_seconds

    def _has_work(self, job_id: str, now_seconds: float) -> bool:
        # A held job writes its wish to launch once, and waits: that wish counts however old it is.
        job = next((each for each in self._jobs if each.id == job_id), None)
        if job is None or job.lease is None:
            return False
        with suppress(EnforcementError):
            for board in self._context.enforcer.boards(job.lease):
                wanted_lately = now_seconds - board.wanted_ns / _NANOSECONDS < _LATELY_SECONDS
                if board.in_flight_until_ns != 0 or wanted_lately or (board.wanted_ns != 0 and self._is_held(job)):
                    return True
        return False

    def _set_hold(self, job: Job, *, is_held: bool) -> None:
        if job.lease is None:
            return
        try:
            if self._is_held(job) != is_held:
                self._context.enforcer.hold(job.lease, self._gpu_uuid, Hold.TRIAL, is_held=is_held)
        except PgpuError as exc:
            say(f"sharing auto: job {job.id} could not be {'held' if is_held else 'released'}: {exc}")

    def _is_held(self, job: Job) -> bool:
        words = () if job.lease is None else self._context.enforcer.words(job.lease)
        parts = () if job.lease is None else job.lease.slices
        return any(
            part.gpu_uuid == self._gpu_uuid and bool(word.holds & Hold.TRIAL)
            for part, word in zip(parts, words, strict=False)  # there is no word before the slice is made
        )

    def _release(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._set_hold(job, is_held=False)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
