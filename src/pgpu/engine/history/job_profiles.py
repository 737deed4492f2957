"""What a traced job leaves behind: its log in the job's own directory, and its profile in the ledger.

It refuses to hold up a job's end: where the log cannot be read or kept there is none, and the supervisor says why.
"""

import base64
import logging
import math
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from pgpu.enforcement import trace
from pgpu.engine.engine import Engine
from pgpu.engine.history.run_history import name_of_gpu
from pgpu.engine.history.usage_records import Findings, ProfiledJob, unpack_log
from pgpu.errors import PgpuError, RequestError
from pgpu.gpu import MetricsWatch
from pgpu.model import Job, Profile
from pgpu.profiling.measurement import Measurement, profile_of, summarise_log, with_metrics

_LOG = logging.getLogger(__name__)


_QUICKLY = 1
"""Of zlib's levels: a log shrinks to a fifth at 100 MB/s."""


@dataclass(frozen=True, slots=True)
class TraceMeasurement:
    """What was measured of one job."""

    measurement: Measurement

    def is_telling(self, job: Job) -> bool:
        """Whether the next run of the program will do likewise: it ended well, used the GPU and had its own caches."""
        is_itself = job.spec.carve_out_percent is None
        return is_itself and job.exit_code == 0 and self.measurement.duration_seconds > 0

    def profile(self, job: Job, gpu_name: str) -> Profile:
        """Return its profile, once the job is final."""
        return profile_of(self.measurement, job, gpu_name, time.time())


def begin_metrics(engine: Engine, job: Job) -> MetricsWatch | None:
    """Begin to ask the first GPU of a traced job for its own counters; None where it has none, or does not tell."""
    if not job.spec.is_traced or job.lease is None:
        return None
    try:
        return engine.gpus.watch_metrics(job.lease.slices[0].gpu_uuid)
    except PgpuError as exc:
        _LOG.warning("%s", exc)
        return None


def measure_trace(engine: Engine, job: Job, metrics: MetricsWatch | None = None) -> TraceMeasurement | None:
    """Read and keep the log of a job whose command ended; None of a job that was not traced."""
    if not job.spec.is_traced or job.lease is None:
        return None
    try:
        log = engine.enforcer.trace(job.lease)
        if log is None:
            return None
        engine.places(job.id).trace.write_bytes(zlib.compress(log, _QUICKLY))
        found = summarise_log(trace.read(log))
        return TraceMeasurement(found if metrics is None else with_metrics(found, *metrics.finish()))
    except (PgpuError, OSError) as exc:
        _LOG.warning(f"what job {job.id} did on the GPU cannot be told: {exc}")
        return None


def read_profiled(engine: Engine, job_id: str) -> ProfiledJob:
    """Return what is kept of a traced job that ended.

    Raises:
        RequestError: Nothing is.
    """
    try:
        packed = base64.b64encode(engine.places(job_id).trace.read_bytes()).decode("ascii")
    except OSError as exc:
        raise RequestError(f"job {job_id} was not profiled", hint="run it again with `pgpu profile`") from exc
    with engine.ledger.view() as view:
        job, profile = view.entry(job_id).job, view.profiles.of_job(job_id)
    return ProfiledJob(job_id, profile or _unremembered(engine, job, packed), packed)


def _unremembered(engine: Engine, job: Job, packed_log: str) -> Profile:
    """Make the profile of a run that tells nothing of the next, such as one that failed."""
    name = name_of_gpu(job, engine.gpus.gpus()) or "unknown"
    return TraceMeasurement(summarise_log(trace.read(unpack_log(packed_log)))).profile(job, name)


def add_findings(engine: Engine, job_id: str, findings: Findings) -> Profile:
    """Add what several runs told to the profile of one of them, which becomes the newest of its program.

    Raises:
        RequestError: That job has no profile, or what was told is no number.
    """
    if not all(math.isfinite(value) for value in _numbers(findings)):
        raise RequestError("what was found is no finite number")
    with engine.ledger.decision() as decision:
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
