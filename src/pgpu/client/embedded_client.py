"""The client whose engine runs in this very process: no daemon, the ledger joins all of them."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import starmap
from typing import BinaryIO

from pgpu.advising.advice import Advice
from pgpu.advising.contention import Constants
from pgpu.client.following import FROM_NOW_ON, EngineHand, Follower
from pgpu.client.grant_wait import require_grant
from pgpu.client.job_report import report_job
from pgpu.client.protocol import GpuReport, JobReport, QueueReport
from pgpu.client.terminal import attach
from pgpu.engine.admission.queue_view import read_queue
from pgpu.engine.admission.wait_reasons import add_wait_reasons
from pgpu.engine.engine import Engine
from pgpu.engine.history.job_profiles import add_findings, read_profiled
from pgpu.engine.history.sharing_advice import advise_jobs, check_calibration, keep_constants
from pgpu.engine.history.usage_history import read_history, read_waste
from pgpu.engine.history.usage_records import CallHistory, Findings, ProfiledJob, Waste
from pgpu.engine.keeper.doorstep import Doorstep
from pgpu.engine.leases.idle_leases import mark_evictable, park, reacquire
from pgpu.engine.leases.lease_resize import resize
from pgpu.engine.leases.recovery import recover
from pgpu.engine.process.control_messages import send_signal
from pgpu.engine.streams.records import Record
from pgpu.engine.watch.watchdog import find_outsiders_once, read_reported_outsiders
from pgpu.errors import RequestError
from pgpu.ledger import Entry
from pgpu.model import Bandwidths, Gpu, Job, JobSpec, JobState, Outsider, Profile, Request, Resize, Submission


class EmbeddedClient:
    """The `Client` of one engine."""

    def __init__(self, engine: Engine, engine_of: Callable[[str | None], Engine] | None = None) -> None:
        """Join an engine.

        Args:
            engine: Grants the GPUs that this caller asks for.
            engine_of: Makes the engine of another `EngineSettings.gpu_model` on the same ledger, for jobs that run on
                other GPUs; None where there are no others.
        """
        self._engine = engine
        self._engine_of = engine_of
        self._doorsteps: dict[str, Doorstep] = {}

    def submit(self, spec: JobSpec, request: Request, *, wait_timeout_seconds: float | None) -> Job:
        """Accept a request; see `Client.submit`."""
        recover(self._engine)
        return self._engine.submit(spec, request, wait_timeout_seconds=wait_timeout_seconds)

    def submit_all(self, submissions: Sequence[Submission]) -> Sequence[Job]:
        """Accept several jobs, all or none; see `Client.submit_all`."""
        recover(self._engine)
        return self._engine.submit_all(submissions)

    def attach(self, job_id: str, stdin: BinaryIO | None, stdout: BinaryIO, stderr: BinaryIO) -> Job:
        """Stay with a job to its end; see `Client.attach`."""
        found = self._engine.ledger.job(job_id)
        line = Follower(self._engine, job_id, holds_back=True)
        attach(line, EngineHand(self._engine, job_id), found.spec, stdin=stdin, stdout=stdout, stderr=stderr)
        job = self._engine.ledger.job(job_id)
        return require_grant(job)

    def jobs(self, *, include_final: bool) -> Sequence[JobReport]:
        """List jobs; see `Client.jobs`."""
        recover(self._engine)
        entries = self._engine.ledger.entries(include_final=include_final)
        return self._reports([entry for entry in entries if include_final or not entry.job.state.is_final])

    def job(self, id_or_name: str) -> JobReport:
        """Find one job; see `Client.job`."""
        return self._reports([self._engine.ledger.find(id_or_name)])[0]

    def members(self, id_or_name: str) -> Sequence[JobReport]:
        """Find an array's jobs, or one; see `Client.members`."""
        ledger = self._engine.ledger
        return self._reports([ledger.entry(job_id) for job_id in ledger.members(id_or_name)])

    def queue(self) -> Sequence[QueueReport]:
        """List the jobs that wait; see `Client.queue`."""
        recover(self._engine)
        line, held = read_queue(self._engine)
        return [*starmap(QueueReport, enumerate(line, 1)), *(QueueReport(None, job) for job in held)]

    def cancel(self, ids_or_names: Sequence[str], *, grace_seconds: float) -> Sequence[Job]:
        """End several jobs; see `Client.cancel`."""
        recover(self._engine)
        ids = dict.fromkeys(job_id for word in ids_or_names for job_id in self._engine.ledger.members(word))
        self._engine.ask_all_to_stop(list(ids), grace_seconds)
        return [self.wait(job_id) for job_id in ids]

    def still_waits(self, job_id: str, *, timeout_seconds: float) -> str | None:
        """Rest until a job waits no longer; see `Client.still_waits`."""
        deadline = time.monotonic() + timeout_seconds
        while (job := self._engine.ledger.job(job_id)).state is JobState.WAITING:
            doorstep = self._doorsteps.setdefault(job_id, Doorstep(self._engine, job_id, job.gpu_model))
            left_seconds = deadline - time.monotonic()
            if left_seconds <= 0:
                return doorstep.reason
            doorstep.rest(left_seconds)
        if job_id in self._doorsteps:
            self._doorsteps.pop(job_id).close()
        return None

    def wait(self, id_or_name: str) -> Job:
        """Wait for a job's end; see `Client.wait`."""
        job_id = self._engine.ledger.find(id_or_name).job.id
        for _ in Follower(self._engine, job_id, offset=FROM_NOW_ON).records():
            pass
        return self._engine.ledger.job(job_id)

    def logs(self, id_or_name: str, *, follow: bool, tail_lines: int | None = None) -> Iterator[tuple[str, bytes]]:
        """Read a job's output; see `Client.logs`."""
        entry = self._engine.ledger.find(id_or_name)
        follower = Follower(self._engine, entry.job.id)
        if tail_lines is not None:
            yield from last_lines(follower.stored_records(), tail_lines)
        elif not follow:
            yield from _pairs(follower.stored_records())
        if follow:
            yield from _pairs(follower.records())

    def stop(self, id_or_name: str, *, grace_seconds: float) -> Job:
        """End a job; see `Client.stop`."""
        recover(self._engine)
        job = self._engine.ask_to_stop(self._engine.ledger.find(id_or_name).job.id, grace_seconds)
        return self.wait(job.id)

    def signal(self, id_or_name: str, number: int) -> None:
        """Send a signal to a running job; see `Client.signal`."""
        job = self._engine.ledger.find(id_or_name).job
        if job.state not in {JobState.STARTING, JobState.RUNNING}:
            raise RequestError(f"job {job.id} does not run: it is {job.state.value}")
        send_signal(self._engine, job.id, number)

    def resize(
        self,
        id_or_name: str,
        memory_bytes: int | None = None,
        *,
        compute_share: float | None = None,
        is_strict: bool | None = None,
    ) -> Job:
        """Change a job's slices; see `Client.resize`."""
        job = self._engine.ledger.find(id_or_name).job
        return resize(self._engine_of_job(job), job.id, Resize(memory_bytes, compute_share, is_strict))

    def offer(self, id_or_name: str, value: float) -> Job:
        """Let a lease be taken; see `Client.offer`."""
        return mark_evictable(self._engine, self._engine.ledger.find(id_or_name).job.id, value)

    def park(self, id_or_name: str) -> Job:
        """Have a job do without its lease; see `Client.park`."""
        return park(self._engine, self._engine.ledger.find(id_or_name).job.id)

    def claim(self, id_or_name: str) -> Job:
        """Keep an offered lease; see `Client.claim`."""
        return reacquire(self._engine, self._engine.ledger.find(id_or_name).job.id)

    def history(self, word: str | None) -> Sequence[CallHistory]:
        """Tell what is known of calls; see `Client.history`."""
        return read_history(self._engine, word)

    def profiled(self, id_or_name: str) -> ProfiledJob:
        """Return what a traced job did; see `Client.profiled`."""
        return read_profiled(self._engine, self._engine.ledger.find(id_or_name).job.id)

    def add_findings(self, id_or_name: str, findings: Findings) -> Profile:
        """Add to a profile; see `Client.add_findings`."""
        return add_findings(self._engine, self._engine.ledger.find(id_or_name).job.id, findings)

    def waste(self) -> Sequence[Waste]:
        """Tell what was reserved for nothing; see `Client.waste`."""
        return read_waste(self._engine)

    def advise(
        self, jobs: Sequence[str | Profile], *, gpu_model: str | None = None, tolerance: float | None = None
    ) -> Advice:
        """Say how jobs should share a GPU; see `Client.advise`."""
        return advise_jobs(self._engine, jobs, gpu_model=gpu_model, tolerance=tolerance)

    def check_calibration(self) -> None:
        """Find out whether there is anything to calibrate; see `Client.check_calibration`."""
        check_calibration(self._engine)

    def keep_constants(self, gpu_uuid: str, constants: Constants, bandwidths: Bandwidths) -> None:
        """Keep what was calibrated; see `Client.keep_constants`."""
        keep_constants(self._engine, gpu_uuid, constants, bandwidths)

    def outsiders(self) -> Sequence[Outsider]:
        """Return who was told of; see `Client.outsiders`."""
        return read_reported_outsiders(self._engine)

    def gpus(self) -> Sequence[GpuReport]:
        """Report every GPU; see `Client.gpus`."""
        with self._engine.ledger.view() as view:
            entries = self._engine.queue_of(view.holding())
        snapshot = self._engine.snapshot()
        rooms = {room.gpu.uuid: room for room in snapshot.rooms(entries, self._engine.headroom)}
        outsiders = find_outsiders_once(self._engine)
        return [
            GpuReport(
                gpu=gpu,
                used_bytes=snapshot.used_bytes[gpu.uuid],
                granted_bytes=rooms[gpu.uuid].granted_bytes,
                capacity_bytes=rooms[gpu.uuid].capacity_bytes,
                enforcer=self._engine.enforcer.for_gpus([gpu]).name,
                does_not_cover=self._engine.enforcer.for_gpus([gpu]).does_not_cover,
                utilisation_percent=self._engine.gpus.utilisation_percent(gpu.uuid),
                jobs=_holders(gpu, entries),
                outsiders=tuple(each for each in outsiders if each.gpu_uuid == gpu.uuid),
                granted_compute=rooms[gpu.uuid].granted_compute,
                sharing=rooms[gpu.uuid].tenancy.mode,
            )
            for gpu in snapshot.gpus
        ]

    def _engine_of_job(self, job: Job) -> Engine:
        if self._engine_of is None or job.gpu_model == self._engine.settings.gpu_model:
            return self._engine
        return self._engine_of(job.gpu_model)

    def _reports(self, entries: Sequence[Entry]) -> list[JobReport]:
        return [
            self._report(entry) for entry in add_wait_reasons(entries, lambda job: self._engine_of_job(job).outlook())
        ]

    def _report(self, entry: Entry) -> JobReport:
        return report_job(self._engine, entry)


def _holders(gpu: Gpu, entries: Sequence[Entry]) -> tuple[str, ...]:
    return tuple(
        entry.job.id
        for entry in entries
        if entry.job.lease is not None
        and entry.is_counted
        and gpu.uuid in {part.gpu_uuid for part in entry.job.lease.slices}
    )


def _pairs(records: Iterator[Record]) -> Iterator[tuple[str, bytes]]:
    return ((record.stream, record.payload) for record in records)


def last_lines(records: Iterator[Record], count: int) -> Iterator[tuple[str, bytes]]:
    """Return the last lines of both streams together, in the order in which they were begun."""
    lines: deque[tuple[str, bytes]] = deque(maxlen=count)
    for record in records:
        for line in record.payload.splitlines(keepends=True):
            if lines and lines[-1][0] == record.stream and not lines[-1][1].endswith((b"\n", b"\r")):
                lines[-1] = (record.stream, lines[-1][1] + line)
            else:
                lines.append((record.stream, line))
    return iter(lines)
