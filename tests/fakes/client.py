"""A client that keeps jobs in memory and runs nothing.

It replaces `pgpu.client.embedded_client.EmbeddedClient` behind the command line; tests/contract/test_client.py runs on
both, and tests/unit/test_route_table.py holds it to the operations of the table. A job is granted at once where its slice fits the one GPU; its command is not run: a
submitted job ends with `outcome` on `attach` or `wait`.
"""

import itertools
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from pgpu.advising.advice import Advice, advise
from pgpu.advising.contention import Constants
from pgpu.advising.memory_demand import UNKNOWN
from pgpu.client import CallHistory, Client, GpuReport, GpuTime, JobReport, QueueReport, UsageReport, Waste
from pgpu.enforcement import SliceUse
from pgpu.engine.history.sharing_advice import kind_of
from pgpu.engine.history.usage_history import waste_of
from pgpu.engine.history.usage_records import Findings, Profiled, UserShare
from pgpu.engine.submission_expansion import Element, expand
from pgpu.errors import CancelledError, CapacityError, JobNotFoundError, NodeError, RequestError, WaitTimeoutError
from pgpu.model import (
    Bandwidths,
    Gpu,
    GpuSeries,
    Job,
    JobState,
    Lease,
    Outsider,
    Profile,
    Request,
    Resize,
    Run,
    SharingWish,
    Slice,
    Submission,
)
from pgpu.model.validation import check_request, check_submission
from pgpu.structs import replace
from pgpu.units import MIB, composed

GPU = Gpu(
    uuid="GPU-00000000-0000-0000-0000-000000000000",
    name="NVIDIA GeForce RTX 3090",
    index=0,
    memory_bytes=24_265 * MIB,
    driver_version="615.42.01",
    is_simulated=True,
)
NOW_SECONDS = 1_700_000_000.0
OWNER_UID = 0


@dataclass
class Outcome:
    """How a fake's jobs end."""

    exit_code: int | None = 0
    error: str | None = None
    warning: str | None = None
    is_advisory: bool = False
    stdout: bytes = b""
    stderr: bytes = b""


@dataclass
class FakeClient(Client):
    """Jobs in memory."""

    outcome: Outcome = field(default_factory=Outcome)
    stored: dict[str, Job] = field(default_factory=dict)
    waits: list[float | None] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    usages: list[UsageReport] = field(default_factory=list)
    series: list[GpuSeries] = field(default_factory=list)
    users: list[UserShare] = field(default_factory=list)
    ids: int = 0
    outside: list[Outsider] = field(default_factory=list)
    constants: Constants | None = None
    profiles: dict[str, Profiled] = field(default_factory=dict)
    has_mps: bool = True
    may_calibrate: bool = True
    reasons: list[str | None] = field(default_factory=list)
    """What `still_waits` returns at its next calls, whatever the job's state."""

    interruption: int | None = None
    """A signal that this process gets while a request is written."""

    def _add(self, element: Element) -> Job:
        spec, request = element.spec, element.submission.request
        self.waits.append(element.submission.wait_timeout_seconds)
        if request.memory_bytes > GPU.memory_bytes:
            raise RequestError("no GPU here has that much memory", nearest_bytes=GPU.memory_bytes)
        if any(job.spec.name == spec.name and not job.state.is_final for job in self.stored.values() if spec.name):
            raise RequestError(f"a job named {spec.name} exists")
        job = Job(
            element.job_id,
            spec,
            request,
            JobState.WAITING,
            NOW_SECONDS,
            place=element.place,
            gpu_model="rtx-3090",
            begin_at_seconds=element.submission.begin_at_seconds,
            held_by_uid=OWNER_UID if element.submission.is_held else None,
        )
        if any(not self.stored[job_id].state.is_final for job_id in element.place.after):
            self.stored[job.id] = replace(job, reason="waits for the end of others")
        elif job.held_by_uid is not None or job.begin_at_seconds is not None:
            self.stored[job.id] = replace(job, reason="held by its owner until it is released")
        else:
            self._reclaim(request)
            self.stored[job.id] = self._granted(job) if self._fits(request) else replace(job, reason="no room")
        if self.interruption is not None:
            signal.raise_signal(self.interruption)
        return self.stored[job.id]

    def submit_all(self, submissions: Sequence[Submission]) -> Sequence[Job]:
        if not self.has_mps and any(each.request.sharing is SharingWish.MPS for each in submissions):
            raise NodeError("there is no MPS here")
        before = dict(self.stored)
        for submission in submissions:
            check_submission(submission)
        try:
            made = expand(submissions, lambda word: [report.job.id for report in self.members(word)], self._new_id)
            return [self._add(element) for element in made]
        except RequestError:
            self.stored = before
            raise

    def dry_run(self, submissions: Sequence[Submission]) -> Sequence[QueueReport]:
        before = dict(self.stored)
        try:
            jobs = self.submit_all(submissions)
        finally:
            self.stored = before
        return [
            QueueReport(
                at,
                replace(job, expected_start_seconds=NOW_SECONDS, expected_gpu_uuids=(GPU.uuid,)),
                "memory",
                is_start_known=True,
            )
            for at, job in enumerate(jobs, 1)
        ]

    def _new_id(self) -> str:
        self.ids += 1
        return f"{self.ids:012x}"

    def members(self, id_or_name: str) -> Sequence[JobReport]:
        found = [job for job in self.stored.values() if job.place.array_id and job.place.array_id == id_or_name]
        return [_report(job) for job in found] or [self.job(id_or_name)]

    def queue(self, simulate: str | None = None) -> Sequence[QueueReport]:
        waiting = [job for job in self.stored.values() if job.state is JobState.WAITING]
        kept = {
            job.id: "held" if job.held_by_uid is not None else "dependency"
            for job in waiting
            if job.held_by_uid is not None or any(not self.stored[name].state.is_final for name in job.place.after)
        }
        line = [replace(job, expected_start_seconds=NOW_SECONDS + 60) for job in waiting if job.id not in kept]
        reports = itertools.starmap(QueueReport, enumerate(line, 1))
        known = [replace(each, rule="memory", is_start_known=True, place_rule="first") for each in reports]
        return [*known, *(QueueReport(None, job, kept[job.id]) for job in waiting if job.id in kept)]

    def hold(self, jobs: Sequence[str]) -> Sequence[Job]:
        return self._set_holder(jobs, OWNER_UID, "held by its owner until it is released")

    def release(self, jobs: Sequence[str]) -> Sequence[Job]:
        return self._set_holder(jobs, None, "no room")

    def _set_holder(self, jobs: Sequence[str], uid: int | None, reason: str) -> Sequence[Job]:
        found: list[Job] = []
        for word in jobs:
            members = [self._find(report.job.id) for report in self.members(word)]
            waiting = [job for job in members if job.state is JobState.WAITING]
            if not waiting:
                raise RequestError(f"job {members[0].id} does not wait: it is {members[0].state.value}")
            found += waiting
        self.stored |= {job.id: replace(job, held_by_uid=uid, reason=reason) for job in found}
        return [self.stored[job.id] for job in found]

    def usage(self, since_seconds: float, uid: int | None = None, simulate: str | None = None) -> Sequence[UsageReport]:
        return [each for each in self.usages if uid in {None, each.usage.uid}]

    def request_cancel(self, jobs: Sequence[str], grace_seconds: float) -> Sequence[Job]:
        ids = [report.job.id for name in jobs for report in self.members(name)]
        return [self.request_stop(job_id, grace_seconds) for job_id in ids]

    def attach(self, job_id: str, stdin: BinaryIO | None, stdout: BinaryIO, stderr: BinaryIO) -> Job:
        stdout.write(self.outcome.stdout)
        stderr.write(self.outcome.stderr)
        job = self.wait(job_id)
        if job.state is JobState.CANCELLED:
            raise CancelledError(f"job {job_id} was cancelled")
        return job

    def jobs(self, *, include_final: bool) -> Sequence[JobReport]:
        return [_report(job) for job in self.stored.values() if include_final or not job.state.is_final]

    def job(self, id_or_name: str) -> JobReport:
        return _report(self._find(id_or_name))

    def still_waits(self, job_id: str, *, timeout_seconds: float) -> str | None:
        job = self._find(job_id)
        if self.reasons:
            return self.reasons.pop(0)
        return (job.reason or "") if job.state is JobState.WAITING else None

    def wait(self, id_or_name: str) -> Job:
        job = self._find(id_or_name)
        if job.state is JobState.WAITING and self.waits[-1] is not None:
            raise WaitTimeoutError(f"job {job.id} was not granted in time")
        if not job.state.is_final:
            state = JobState.FAILED if self.outcome.error else JobState.EXITED
            job = replace(
                job,
                state=state,
                exit_code=self.outcome.exit_code,
                error=self.outcome.error,
                warning=self.outcome.warning,
            )
        self.stored[job.id] = job
        return job

    def wait_all(self, job_ids: Sequence[str]) -> Iterator[Job]:
        return map(self.wait, job_ids)

    def logs(self, id_or_name: str, *, follow: bool, tail_lines: int | None = None) -> Iterator[tuple[str, bytes]]:
        self._find(id_or_name)
        lines = self.outcome.stdout.splitlines(keepends=True)
        kept = lines if tail_lines is None else lines[len(lines) - tail_lines :]
        yield "stdout", b"".join(kept)
        yield "stderr", self.outcome.stderr

    def request_stop(self, id_or_name: str, grace_seconds: float) -> Job:
        job = self._find(id_or_name)
        if not job.state.is_final:
            is_waiting = job.state is JobState.WAITING
            ended = JobState.CANCELLED if is_waiting else JobState.EXITED
            job = replace(job, state=ended, exit_code=None if is_waiting else 143)
        self.stored[job.id] = job
        return job

    def signal(self, id_or_name: str, number: int) -> None:
        self._find(id_or_name)
        self.signals.append(number)

    def resize(
        self,
        id_or_name: str,
        memory_bytes: int | None = None,
        compute_share: float | None = None,
        is_strict: bool | None = None,
    ) -> Job:
        job = self._find(id_or_name)
        request = Resize(memory_bytes, compute_share, is_strict).of(job.request)
        if request.memory_bytes > GPU.memory_bytes:
            raise RequestError("no GPU here has that much memory", nearest_bytes=GPU.memory_bytes)
        check_request(request)
        self.stored[job.id] = replace(job, request=request)
        return self.stored[job.id]

    def history(self, word: str | None = None) -> Sequence[CallHistory]:
        calls = [CallHistory(run.signature, run.gpu_name, run.owner_uid, (run,), UNKNOWN) for run in self.runs]
        found = [call for call in calls if word is None or call.signature.startswith(word)]
        if word is not None and not found:
            raise RequestError(f"no run of {word!r} is known")
        return found

    def waste(self) -> Sequence[Waste]:
        return [waste_of(run) for run in self.runs]

    def shares(self, simulate: str | None = None) -> Sequence[UserShare]:
        return self.users

    def gpu_history(self, since_seconds: float, gpu_uuid: str | None = None) -> Sequence[GpuSeries]:
        return [
            each for each in self.series if gpu_uuid in {None, each.gpu_uuid} and each.at_seconds[-1] >= since_seconds
        ]

    def advise(
        self,
        jobs: Sequence[str | Profile],
        gpu_model: str | None = None,
        tolerance: float | None = None,
        simulate: str | None = None,
    ) -> Advice:
        if unknown := [job for job in jobs if isinstance(job, str)]:
            raise RequestError(f"there is no profile of {unknown[0]!r} on {gpu_model or GPU.name}")
        profiles = [job for job in jobs if isinstance(job, Profile)]
        if len(profiles) < 2:
            raise RequestError("advice is about jobs together")
        return advise(profiles, kind_of(profiles[0].gpu_name, [GPU]), tolerance=tolerance)

    def profiled(self, id_or_name: str) -> Profiled:
        job = self._find(id_or_name)
        if job.id not in self.profiles:
            raise RequestError(f"job {job.id} was not profiled")
        return self.profiles[job.id]

    def add_findings(self, id_or_name: str, findings: Findings) -> Profile:
        found = self.profiled(id_or_name)
        profile = findings.merge_into(found.profile)
        self.profiles[found.job_id] = replace(found, profile=profile)
        return profile

    def check_calibration(self) -> None:
        if not self.may_calibrate:
            raise RequestError("these GPUs are a server's")

    def keep_constants(self, gpu_uuid: str, constants: Constants, bandwidths: Bandwidths) -> None:
        self.check_calibration()
        if gpu_uuid != GPU.uuid:
            raise RequestError(f"there is no GPU {gpu_uuid} here")
        self.constants, self.bandwidths = constants, bandwidths

    def outsiders(self, simulate: str | None = None) -> Sequence[Outsider]:
        return self.outside

    def gpus(self, simulate: str | None = None) -> Sequence[GpuReport]:
        running = [job for job in self.stored.values() if job.lease and not job.state.is_final]
        granted = sum(job.request.memory_bytes for job in running)
        ids = tuple(job.id for job in running)
        return [GpuReport(GPU, 0, granted, GPU.memory_bytes, "shim", "raw ioctl", None, ids)]

    def offer(self, id_or_name: str, value: float) -> Job:
        job = self._running(id_or_name)
        if job.spec.serves is None or value < 0:
            raise RequestError(f"job {job.id} offers nothing")
        self.stored[job.id] = replace(job, offered_value=value)
        return self.stored[job.id]

    def park(self, id_or_name: str) -> Job:
        job = self._running(id_or_name)
        if not job.can_park:
            raise RequestError(f"job {job.id} cannot be parked")
        self.stored[job.id] = replace(job, parked_at_seconds=time.time())
        return self.stored[job.id]

    def claim(self, id_or_name: str) -> Job:
        job = self._running(id_or_name)
        self.stored[job.id] = replace(job, offered_value=None)
        return self.stored[job.id]

    def _running(self, id_or_name: str) -> Job:
        job = self._find(id_or_name)
        if job.state is not JobState.RUNNING:
            raise CapacityError(f"job {job.id} has no lease")
        return job

    def _reclaim(self, request: Request) -> None:
        offered = [job for job in self.stored.values() if job.is_offered and job.request.priority <= request.priority]
        for job in sorted(offered, key=lambda each: (each.offered_value or 0) / each.request.memory_bytes):
            if not self._fits(request):
                taken = replace(job, reclaimed_at_seconds=NOW_SECONDS, warning="its lease was taken")
                self.stored[job.id] = replace(taken, state=JobState.EXITED, exit_code=143)

    def _fits(self, request: Request) -> bool:
        return request.memory_bytes <= GPU.memory_bytes - self.gpus()[0].granted_bytes

    def _granted(self, job: Job) -> Job:
        lease = Lease(
            job.id,
            (Slice(GPU.uuid, job.request.memory_bytes),) * job.request.gpu_count,
            NOW_SECONDS,
            "shim" if job.request.gpu_count else "none",
            self.outcome.is_advisory,
        )
        return replace(job, state=JobState.RUNNING, lease=lease, started_at_seconds=NOW_SECONDS)

    def _find(self, id_or_name: str) -> Job:
        id_or_name = composed(id_or_name)
        named = [job for job in self.stored.values() if job.spec.name == id_or_name]
        found = named[-1:] or [job for job in self.stored.values() if job.id.startswith(id_or_name)]
        if len(found) != 1:
            raise JobNotFoundError(f"{len(found)} jobs are called {id_or_name}", hint="see pgpu ps --all")
        return found[0]


def _report(job: Job) -> JobReport:
    is_running = job.state is JobState.RUNNING
    if not is_running:
        return JobReport(job, ())
    return JobReport(job, (SliceUse(GPU.uuid, 0, 0, 0),), (GpuTime(GPU.uuid, 1.5, 0.5, 7, 0.3, 0.25),))
