"""What each request does, for whoever asks: the words of the `Client` protocol with a caller before them.

Every method blocks on the ledger or on GPUs, so routes call it in threads. It refuses to know of HTTP, and to wait for
jobs: `following` does.
"""

import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from pgpu.client.asking import Ask
from pgpu.client.embedded import EmbeddedClient
from pgpu.client.protocol import GpuReport, JobReport
from pgpu.engine.asker import Asker
from pgpu.engine.engine import Engine
from pgpu.engine.talking import send_signal, send_window
from pgpu.errors import JobNotFoundError, RequestError
from pgpu.ledger import Entry
from pgpu.model import Job, JobState
from pgpu.server.access import Access, Caller

_ID = re.compile(r"[0-9a-f]{12}")
_MOST_SIGNAL = 64
_MOST_CHARACTERS = 65_535
_MOST_SECONDS = 10.0 * 365 * 86_400
"""Longer waits than ten years overflow the clocks that they are added to."""

_MOST_MODELS = 16


class Desk:
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

    def submit(self, caller: Caller, ask: Ask) -> Job:
        """Accept a job; asked twice with one id, return the one that was accepted.

        Raises:
            RequestError: It can never be met, or the id is another job's.
        """
        if ask.id is not None and not _ID.fullmatch(ask.id):
            raise RequestError("an id is twelve hexadecimal digits")
        _check_seconds(ask.wait_timeout_seconds)
        spec = self.access.check_submission(caller, ask.spec)
        accepted = self._accepted(caller, ask)
        if accepted is not None:
            return accepted
        return self.engine_for(ask.simulate).submit(
            spec,
            ask.request,
            wait_timeout_seconds=ask.wait_timeout_seconds,
            asker=Asker(caller.uid, ask.environment, ask.inherited),
            job_id=ask.id,
        )

    def _accepted(self, caller: Caller, ask: Ask) -> Job | None:
        if ask.id is None:
            return None
        try:
            job = self.engine.ledger.job(ask.id)
        except JobNotFoundError:
            return None
        is_it = job.owner_uid == caller.uid and job.spec.command == ask.spec.command
        if not is_it:
            raise RequestError(f"the id {ask.id} is another job's")
        return job

    def jobs(self, caller: Caller, *, include_final: bool) -> Sequence[JobReport]:
        """List the jobs that the caller sees, oldest first."""
        return [
            self.report(entry)
            for entry in self.engine.ledger.entries(include_final=include_final)
            if (include_final or not entry.job.state.is_final) and caller.sees_uid in {None, entry.job.owner_uid}
        ]

    def find(self, caller: Caller, id_or_name: str) -> Entry:
        """Find a job that the caller sees.

        Raises:
            JobNotFoundError: There is none.
        """
        entry = self.engine.ledger.find(id_or_name)
        self.access.check_sees(caller, entry.job)
        return entry

    def report(self, entry: Entry) -> JobReport:
        """Return a job and what it holds now."""
        lease = entry.job.lease if entry.is_lease_held else None
        return JobReport(entry.job, tuple(self.engine.enforcer.use(lease)) if lease is not None else ())

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

    def resize(self, caller: Caller, id_or_name: str, memory_bytes: int) -> Job:
        """Change the slices of a job."""
        job = self.find(caller, id_or_name).job
        return self.engine_of_job(job).resize(job.id, memory_bytes)

    def gpus(self, caller: Caller, simulate: str | None) -> Sequence[GpuReport]:
        """Report every GPU; of the jobs on it only those that the caller sees."""
        reports = EmbeddedClient(self.engine_for(simulate)).gpus()
        if caller.sees_uid is None:
            return reports
        seen = {report.job.id for report in self.jobs(caller, include_final=False)}
        return [replace(report, jobs=tuple(job for job in report.jobs if job in seen)) for report in reports]

    def logs(self, caller: Caller, id_or_name: str, tail_lines: int | None) -> Iterator[tuple[str, bytes]]:
        """Read what is stored of a job's output."""
        job = self.find(caller, id_or_name).job
        return EmbeddedClient(self.engine).logs(job.id, follow=False, tail_lines=tail_lines)


def _check_seconds(seconds: float | None) -> None:
    if seconds is not None and not (math.isfinite(seconds) and 0 <= seconds <= _MOST_SECONDS):
        raise RequestError(f"{seconds} is no time to wait", hint="0 to ten years, in seconds")
