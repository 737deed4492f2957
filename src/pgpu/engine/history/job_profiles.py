"""Profiles of traced jobs: the log goes into the job's directory, the profile into the ledger.

A log that cannot be read or written is reported in the log of the supervisor and does not delay the job's end.
"""

import base64
import logging
import math
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from pgpu.enforcement import trace
from pgpu.engine.context import EngineContext
from pgpu.engine.history.run_history import name_of_gpu
from pgpu.engine.history.usage_records import Findings, Profiled, unpack_log
from pgpu.errors import PgpuError, RequestError
from pgpu.gpu import MetricsWatch
from pgpu.model import Job, Profile
from pgpu.profiling.measurement import Measurement, profile_of, summarise_log, with_metrics

_LOG = logging.getLogger(__name__)


_QUICKLY = 1
"""zlib level: a log shrinks to a fifth, at 100 MB/s."""


@dataclass(frozen=True, slots=True)
class TraceMeasurement:
    """Metrics of one traced job."""

    measurement: Measurement

    def is_telling(self, job: Job) -> bool:
        """Whether the profile holds for the next run: the job succeeded, used the GPU and had the caches for itself."""
        is_itself = job.spec.carve_out_percent is None
        return is_itself and job.exit_code == 0 and self.measurement.duration_seconds > 0

    def profile(self, job: Job, gpu_name: str) -> Profile:
        """Return the profile of a final job."""
        return profile_of(self.measurement, job, gpu_name, time.time())


def begin_metrics(context: EngineContext, job: Job) -> MetricsWatch | None:
    """Start reading the counters of a traced job's first GPU; None where it has none or they cannot be read."""
    if not job.spec.is_traced or job.lease is None:
        return None
    try:
        return context.gpus.watch_metrics(job.lease.slices[0].gpu_uuid)
    except PgpuError as exc:
        _LOG.warning("%s", exc)
        return None


def measure_trace(context: EngineContext, job: Job, metrics: MetricsWatch | None = None) -> TraceMeasurement | None:
    """Read and store the log of a job after its command has ended; None for a job that was not traced."""
    if not job.spec.is_traced or job.lease is None:
        return None
    try:
        log = context.enforcer.trace(job.lease)
        if log is None:
            return None
        context.places(job.id).trace.write_bytes(zlib.compress(log, _QUICKLY))
        found = summarise_log(trace.read(log))
        return TraceMeasurement(found if metrics is None else with_metrics(found, *metrics.finish()))
    except (PgpuError, OSError) as exc:
        _LOG.warning(f"the trace of job {job.id} cannot be read: {exc}")
        return None


def read_profiled(context: EngineContext, job_id: str) -> Profiled:
    """Return the stored log and profile of a traced job that ended.

    Raises:
        RequestError: There is none.
    """
    try:
        packed = base64.b64encode(context.places(job_id).trace.read_bytes()).decode("ascii")
    except OSError as exc:
        raise RequestError(f"job {job_id} was not profiled", hint="run it again with `pgpu profile`") from exc
    with context.ledger.view() as view:
        job, profile = view.entry(job_id).job, view.profiles.of_job(job_id)
    if profile is None:  # a run that shows nothing about the next, such as one that failed, is not in the ledger
        name = name_of_gpu(job, context.gpus.gpus()) or "unknown"
        profile = TraceMeasurement(summarise_log(trace.read(unpack_log(packed)))).profile(job, name)
    return Profiled(job_id, profile, packed)


def add_findings(context: EngineContext, job_id: str, findings: Findings) -> Profile:
    """Complete the profile of one run by results of several; it becomes the newest of its program.

    Raises:
        RequestError: That job has no profile, or a result is no finite number.
    """
    if not all(math.isfinite(value) for value in _numbers(findings)):
        raise RequestError("what was found is no finite number")
    with context.ledger.decision() as decision:
        profile = decision.profiles.of_job(job_id)
        if profile is None:
            raise RequestError(f"job {job_id} was not profiled")
        profile = findings.added_to(profile)
        decision.profiles.add(profile, job_id)
    return profile


def _numbers(findings: Findings) -> Iterator[float]:
    sensitivity = findings.sensitivity
    yield from (each for each in (sensitivity.cache, sensitivity.l2, sensitivity.dram) if each is not None)
    yield from (demand.fraction for demand in findings.demands)
    for contest in findings.contests:
        yield from (contest.sm_fraction, contest.slowdown, contest.antagonist_slowdown)
        yield contest.antagonist_fraction or 0.0
