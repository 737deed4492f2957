"""What each request does, for whoever asks: the words of the `Client` protocol with a caller before them.

Every method blocks on the ledger or on GPUs, so routes call it in threads. It refuses to know of HTTP, and to wait for
jobs: `following` does.
"""

import hashlib
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count, islice, starmap

from pgpu.advising.advice import Advice
from pgpu.client.embedded_client import EmbeddedClient, last_lines
from pgpu.client.following import Follower
from pgpu.client.job_report import report_job
from pgpu.client.protocol import GpuReport, JobReport, QueueReport
from pgpu.engine.admission.queue_view import read_queue
from pgpu.engine.admission.round_outcome import RoundOutcome
from pgpu.engine.admission.wait_reasons import add_wait_reasons
from pgpu.engine.engine import Engine
from pgpu.engine.history.job_profiles import add_findings, read_profiled
from pgpu.engine.history.sharing_advice import advise_jobs
from pgpu.engine.history.usage_history import read_history, read_waste
from pgpu.engine.history.usage_records import CallHistory, Findings, ProfiledJob, Waste
from pgpu.engine.leases.idle_leases import mark_evictable, park, reacquire
from pgpu.engine.leases.lease_resize import resize
from pgpu.engine.process.control_messages import send_signal, send_window
from pgpu.engine.submission.job_batch import check_count
from pgpu.engine.submission.submitter import Submitter
from pgpu.engine.watch.watchdog import read_reported_outsiders
from pgpu.errors import CapacityError, JobNotFoundError, RequestError
from pgpu.ledger import Entry
from pgpu.model import Job, JobState, Outsider, Profile, Resize
from pgpu.server.access import Access, Caller
from pgpu.server.anonymous_reports import anonymous_report
from pgpu.server.single_flight import SharedComputation
from pgpu.services.messages import Ask, Together

_KEY = re.compile(r"[0-9A-Za-z]{1,64}")
_MOST_SIGNAL = 64
_MOST_CHARACTERS = 65_535
_MOST_SECONDS = 10.0 * 365 * 86_400
"""Longer waits than ten years overflow the clocks that they are added to."""

_MOST_MODELS = 16


class JobService:
    """Answers callers from one ledger."""

    def __init__(self, engine: Engine, access: Access, engine_of: Callable[[str], Engine] | None = None) -> None:
        """Answer from now on.

        Args:
            engine: Grants the server's GPUs.
            access: Says what callers may.
            engine_of: Makes the engine of other, simulated GPUs on the same ledger; None where there are no others.
        """
        self.engine = engine
        self.access = access
        self._engine_of = engine_of
        self._others: dict[str, Engine] = {}
        self._guard = threading.Lock()
        self._outlooks: dict[str | None, SharedComputation[RoundOutcome]] = {}

    def engine_for(self, simulate: str | None) -> Engine:
        """Return the engine of some simulated GPUs; None stands for the server's own.

        Raises:
            RequestError: There can be none.
        """
        if simulate is None or simulate == self.engine.settings.gpu_model:
            return self.engine
        if self._engine_of is None or self.engine.settings.gpu_model is None:
            raise RequestError(
                "this server grants real GPUs and simulates none", hint="PGPU_HOST=embedded uses no server"
            )
        with self._guard:
            if simulate not in self._others and len(self._others) >= _MOST_MODELS:
                raise RequestError("this server simulates too many kinds of GPUs already")
            if simulate not in self._others:
                made = self._engine_of(simulate)
                is_own = made.settings.gpu_model == self.engine.settings.gpu_model
                self._others[simulate] = self.engine if is_own else made
            return self._others[simulate]

    def engine_of_job(self, job: Job) -> Engine:
        """Return the engine whose GPUs a job uses."""
        return self.engine_for(job.gpu_model)

    def _outlook_of(self, job: Job) -> RoundOutcome:
        """Look at a whole queue once for all who ask for reasons at a time: pages, and those who wait."""
        engine = self.engine_of_job(job)
        with self._guard:
            shared = self._outlooks.setdefault(engine.settings.gpu_model, SharedComputation(engine.outlook))
        return shared.answer()

    def submit(self, caller: Caller, ask: Ask) -> Sequence[Job]:
        """Accept jobs, all or none; asked twice with one key, return those that were accepted.

        Raises:
            RequestError: One of them can never be met; nothing was stored.
            CapacityError: Too many of the caller's would wait; nothing was stored.
        """
        _check_ask(ask)
        submissions = [replace(each, spec=self.access.check_submission(caller, each.spec)) for each in ask.submissions]
        for each in ask.submissions:
            self.access.check_request(caller, each.request)
        asker = Submitter(caller.uid, ask.environment, self.access.inherited(caller, ask.inherited))
        engine = self.engine_for(ask.simulate)
        if ask.key is None:
            return engine.submit_all(submissions, asker)
        ids = _ids_of(caller, ask.key)
        if accepted := self._accepted(caller, ask, ask.key):
            return accepted
        try:
            return engine.submit_all(submissions, asker, lambda: next(ids))
        except (RequestError, CapacityError):
            # The same question may have been under way beside this one.
            if accepted := self._accepted(caller, ask, ask.key):
                return accepted
            raise

    def _accepted(self, caller: Caller, ask: Ask, key: str) -> Sequence[Job]:
        """Return the caller's jobs of a key; ids are short enough to be sought until they meet another user's."""
        most = sum(1 if each.array is None else 1 + len(each.array.indices) for each in ask.submissions)
        found: list[Job] = []
        for job_id in islice(_ids_of(caller, key), most):
            with suppress(JobNotFoundError):  # An array's id is no job's.
                found.append(self.engine.ledger.job(job_id))
        return [job for job in found if job.owner_uid == caller.uid]

    def jobs(
        self, caller: Caller, *, include_final: bool, after: int = 0, most: int | None = None
    ) -> tuple[Sequence[JobReport], int | None]:
        """List the jobs that the caller sees, oldest first; of others' that are not final, what they hold alone.

        Args:
            caller: Who asks.
            include_final: Whether their own jobs that ended are listed, too.
            after: Begin behind this place.
            most: At most so many; None for all.

        Returns:
            The jobs, and the place behind which there are more; None where there are not.
        """
        room = None if most is None else most + 1
        found = self.engine.ledger.page(after, room, ended_of=caller.sees_uid, include_final=include_final)
        entries = add_wait_reasons(found[:most], self._outlook_of)
        reports = [
            self.report(entry) if caller.sees_uid in {None, entry.job.owner_uid} else anonymous_report(entry)
            for entry in entries
        ]
        return reports, entries[-1].sequence if len(found) > len(entries) else None

    def find(self, caller: Caller, id_or_name: str) -> Entry:
        """Find a job that the caller sees.

        Raises:
            JobNotFoundError: There is none.
        """
        entry = self.engine.ledger.find(id_or_name, caller.sees_uid)
        self.access.check_sees(caller, entry.job)
        return entry

    def members(self, caller: Caller, word: str) -> Sequence[Entry]:
        """Find an array's jobs, or one job.

        Raises:
            JobNotFoundError: There is none that the caller sees.
        """
        entries = [self.engine.ledger.entry(job_id) for job_id in self.engine.ledger.members(word, caller.sees_uid)]
        for entry in entries:
            self.access.check_sees(caller, entry.job)
        return entries

    def queue(self, caller: Caller, simulate: str | None) -> Sequence[QueueReport]:
        """List the jobs that wait, each at its place among everybody's; only those that the caller sees."""
        line, held = read_queue(self.engine_for(simulate))
        reports = [*starmap(QueueReport, enumerate(line, 1)), *(QueueReport(None, job) for job in held)]
        return [report for report in reports if caller.sees_uid in {None, report.job.owner_uid}]

    def cancel(self, caller: Caller, words: Sequence[str], grace_seconds: float) -> Sequence[Job]:
        """Leave word that jobs and arrays must end, all told at once, and return them as they are now."""
        _check_seconds(grace_seconds)
        ids = list(dict.fromkeys(entry.job.id for word in words for entry in self.members(caller, word)))
        self.engine.ask_all_to_stop(ids, grace_seconds)
        return [self.engine.ledger.job(job_id) for job_id in ids]

    def report(self, entry: Entry) -> JobReport:
        """Return a job and what it holds now; one that waits says why."""
        if entry.job.state is JobState.WAITING and entry.job.reason is None:
            entry = add_wait_reasons([entry], self._outlook_of)[0]
        return report_job(self.engine, entry)

    def stop(self, caller: Caller, id_or_name: str, grace_seconds: float) -> Job:
        """Leave word that a job must end, and return it as it is now."""
        _check_seconds(grace_seconds)
        job = self.find(caller, id_or_name).job
        return self.engine_of_job(job).ask_to_stop(job.id, grace_seconds)

    def signal(self, caller: Caller, id_or_name: str, number: int) -> None:
        """Send a signal to a running job."""
        if not 1 <= number <= _MOST_SIGNAL:
            raise RequestError(f"there is no signal {number}")
        job = self.find(caller, id_or_name).job
        if job.state not in {JobState.STARTING, JobState.RUNNING}:
            raise RequestError(f"job {job.id} does not run: it is {job.state.value}")
        send_signal(self.engine, job.id, number)

    def window(self, caller: Caller, id_or_name: str, columns: int, rows: int) -> None:
        """Tell a job the size of its asker's terminal."""
        if not (0 <= columns <= _MOST_CHARACTERS and 0 <= rows <= _MOST_CHARACTERS):
            raise RequestError("a terminal has 0 to 65535 columns and rows")
        send_window(self.engine, self.find(caller, id_or_name).job.id, columns, rows)

    def resize(self, caller: Caller, id_or_name: str, change: Resize) -> Job:
        """Change the slices of a job."""
        job = self.find(caller, id_or_name).job
        return resize(self.engine_of_job(job), job.id, change)

    def offer(self, caller: Caller, id_or_name: str, value: float) -> Job:
        """Let the lease of a job be taken; for the gateway alone, as the next two: what a lease is worth decides whose goes."""
        job = self._serving(caller, id_or_name)
        return mark_evictable(self.engine_of_job(job), job.id, value)

    def park(self, caller: Caller, id_or_name: str) -> Job:
        """Have a job do without its lease."""
        job = self._serving(caller, id_or_name)
        return park(self.engine_of_job(job), job.id)

    def claim(self, caller: Caller, id_or_name: str) -> Job:
        """Keep an offered lease."""
        job = self._serving(caller, id_or_name)
        return reacquire(self.engine_of_job(job), job.id)

    def _serving(self, caller: Caller, id_or_name: str) -> Job:
        job = self.find(caller, id_or_name).job
        self.access.check_administers(caller)
        return job

    def profiled(self, caller: Caller, id_or_name: str) -> ProfiledJob:
        """Return what one of the caller's traced jobs did."""
        return read_profiled(self.engine, self.find(caller, id_or_name).job.id)

    def add_findings(self, caller: Caller, id_or_name: str, findings: Findings) -> Profile:
        """Add to the profile of one of the caller's jobs."""
        return add_findings(self.engine, self.find(caller, id_or_name).job.id, findings)

    def advise(self, caller: Caller, together: Together, simulate: str | None) -> Advice:
        """Say how jobs should share a GPU, from profiles that the caller sees."""
        tolerance = together.tolerance
        if tolerance is not None and not (math.isfinite(tolerance) and tolerance >= 1):
            raise RequestError("nobody gets faster by company: a tolerance is 1 or more")
        return advise_jobs(
            self.engine_for(simulate),
            together.jobs,
            gpu_model=together.gpu_model,
            tolerance=tolerance,
            owner_uid=caller.sees_uid,
        )

    def history(self, caller: Caller, word: str | None) -> Sequence[CallHistory]:
        """Tell what is known of the calls whose runs the caller sees."""
        return read_history(self.engine, word, caller.sees_uid)

    def waste(self, caller: Caller) -> Sequence[Waste]:
        """Tell what was reserved for nothing by the jobs that the caller sees."""
        return read_waste(self.engine, caller.sees_uid)

    def gpus(self, caller: Caller, simulate: str | None) -> Sequence[GpuReport]:
        """Report every GPU; of the jobs and of the processes outside on it only those that the caller sees."""
        reports = EmbeddedClient(self.engine_for(simulate)).gpus()
        if caller.sees_uid is None:
            return reports
        live = self.engine.ledger.entries(include_final=False)
        seen = {entry.job.id for entry in live if entry.job.owner_uid == caller.sees_uid}
        return [
            replace(
                report,
                jobs=tuple(job for job in report.jobs if job in seen),
                outsiders=tuple(each for each in report.outsiders if each.uid == caller.sees_uid),
            )
            for report in reports
        ]

    def outsiders(self, caller: Caller, simulate: str | None) -> Sequence[Outsider]:
        """Return whom the watchdog has told of, of those that the caller sees."""
        found = read_reported_outsiders(self.engine_for(simulate))
        return [each for each in found if caller.sees_uid in {None, each.uid}]

    def log(self, caller: Caller, id_or_name: str) -> Iterator[tuple[str, bytes]]:
        """Read what is stored of a job's output."""
        follower = Follower(self.engine, self.find(caller, id_or_name).job.id)
        return ((record.stream, record.payload) for record in follower.stored_records())

    def log_end(self, caller: Caller, id_or_name: str, line_count: int) -> tuple[Sequence[tuple[str, bytes]], int]:
        """Return the last lines of what is stored, and where in the log they end."""
        follower = Follower(self.engine, self.find(caller, id_or_name).job.id)
        return list(last_lines(follower.stored_records(), line_count)), follower.reading.offset


def _check_ask(ask: Ask) -> None:
    if ask.key is not None and not _KEY.fullmatch(ask.key):
        raise RequestError("a key is up to 64 letters and digits")
    check_count(ask.submissions)
    for each in ask.submissions:
        _check_seconds(each.wait_timeout_seconds)
        _check_seconds(each.spec.wait_for_memory_seconds)


def _ids_of(caller: Caller, key: str) -> Iterator[str]:
    """Yield the ids of the jobs that one caller asks for with one key, the same each time and nobody else's."""
    for number in count():
        yield hashlib.sha256(f"{caller.uid} {key} {number}".encode()).hexdigest()[:12]


def _check_seconds(seconds: float | None) -> None:
    if seconds is not None and not (math.isfinite(seconds) and 0 <= seconds <= _MOST_SECONDS):
        raise RequestError(f"{seconds} is no time to wait", hint="0 to ten years, in seconds")
