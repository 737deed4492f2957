"""Runs of a command beside an antagonist, a workload that uses up one resource; both under MPS, so that they overlap.

The antagonist has a slice of its own on the same GPU and is traced like the command. Without MPS nothing is measured: a
neighbour that takes turns slows down every job, whatever it needs.
"""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pgpu.client import Client
from pgpu.enforcement import trace
from pgpu.engine.history.usage_records import unpack_log
from pgpu.errors import NodeError
from pgpu.model import Antagonist, Contest, Job, JobSpec, JobState, Request, SharingWish, Submission
from pgpu.profiling.measurement import Measurement, summarise_log
from pgpu.profiling.sensitivity import Beside, contest
from pgpu.units import GIB, MIB

SM_PERCENTS = (10, 50)
"""Share of the multiprocessors for streams from memory: they use much of the bandwidth and leave room for the command."""

ALL_PERCENT = 100
"""For sweeps of the cache, which evict little if they run seldom, and for antagonists on every multiprocessor."""

_ALONE_SECONDS = 1
"""Enough for 500 launches of an antagonist."""

_SPARE_SECONDS = 60
_TIMES_AS_LONG = 10
"""Limit of an antagonist's run, as a multiple of the command's runs alone: it ends even if this process was killed."""

_SLICE_BYTES = 2 * GIB
_STOP_GRACE_SECONDS = 5.0
_WORKLOADS = {
    Antagonist.L2: "l2_sweep",
    Antagonist.L2_BANDWIDTH: "l2_sweep",
    Antagonist.DRAM: "dram_stream",
    Antagonist.COMPUTE: "fma_chains",
    Antagonist.ROOM: "crowd",
}
_L2_PARTS = (0.25, 0.5, 1.0)
"""Sizes as parts of the L2 cache, from which the command's need of it is estimated."""

_L2_PART_FOR_SPEED = 0.125
"""Small enough to stay cached beside any job: it takes bandwidth of the cache, not room."""

_STEP_BYTES = MIB // 16
"""Sizes are multiples of it, so that they have few digits in MiB."""

_LEAST_DRAM_BYTES = 64 * MIB
_DRAM_L2_TIMES = 8
_FALLBACK_L2_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One antagonist with its buffer."""

    kind: Antagonist
    swept_bytes: int = 0
    """Size of the buffer; 0 without one."""

    sm_percent: int = ALL_PERCENT

    @property
    def workload(self) -> str:
        return _WORKLOADS[self.kind]

    @property
    def command(self) -> tuple[str, ...]:
        """The command without its duration."""
        size = ("--size-mib", f"{self.swept_bytes / MIB:g}") if self.swept_bytes else ()
        return (sys.executable, "-m", "pgpu.workloads", self.workload, *size, "--sms-percent", str(self.sm_percent))

    @property
    def description(self) -> str:
        """Kind, size and share of the multiprocessors, for messages."""
        size = f" of {self.swept_bytes / MIB:g} MiB" if self.swept_bytes else ""
        return f"{self.kind} antagonist{size}" + ("" if self.sm_percent == ALL_PERCENT else f" on {self.sm_percent} %")

    def submission(self, beside: Submission, seconds: int) -> Submission:
        """Return the antagonist as a job on the same GPU as `beside`."""
        spec = JobSpec((*self.command, "--seconds", str(seconds)), "process", is_traced=True, working_directory="/")
        request = Request(_SLICE_BYTES, priority=beside.request.priority, sharing=SharingWish.MPS, measures=True)
        return Submission(spec, request, wait_timeout_seconds=beside.wait_timeout_seconds)


def neighbours_for(l2_bytes: int | None) -> list[Neighbour]:
    """Return the antagonists to run on a GPU with an L2 cache of this size."""
    known_bytes = l2_bytes or _FALLBACK_L2_BYTES
    return [
        Neighbour(Antagonist.L2_BANDWIDTH, _part(known_bytes, _L2_PART_FOR_SPEED)),
        *(Neighbour(Antagonist.L2, _part(known_bytes, part)) for part in _L2_PARTS),
        *(
            Neighbour(Antagonist.DRAM, max(_LEAST_DRAM_BYTES, _DRAM_L2_TIMES * known_bytes), each)
            for each in SM_PERCENTS
        ),
        Neighbour(Antagonist.COMPUTE),
        Neighbour(Antagonist.ROOM),
    ]


def _part(whole_bytes: int, part: float) -> int:
    return max(_STEP_BYTES, int(whole_bytes * part) // _STEP_BYTES * _STEP_BYTES)


def under_mps(submission: Submission) -> Submission:
    """Return the command's job as it runs beside an antagonist."""
    return replace(submission, request=replace(submission.request, sharing=SharingWish.MPS, measures=True))


@dataclass(frozen=True, slots=True)
class NeighbourAlone:
    """An antagonist alone on the GPU."""

    measurement: Measurement
    bytes_per_second: float | None


def run_alone(client: Client, neighbour: Neighbour, beside: Submission) -> NeighbourAlone:
    """Measure an antagonist alone, for a second.

    Raises:
        PgpuError: There is no MPS, or no room.
    """
    [job] = client.submit_all([neighbour.submission(beside, _ALONE_SECONDS)])
    ended = client.wait(job.id)
    _check(client, ended)
    return NeighbourAlone(measurement_of(client, job.id), _bytes_per_second(client, job.id))


def longest_seconds(runs_alone_seconds: float) -> int:
    """Return the limit of an antagonist beside runs that took this long alone, all together."""
    return math.ceil(_SPARE_SECONDS + _TIMES_AS_LONG * runs_alone_seconds)


@contextmanager
def running(client: Client, neighbour: Neighbour, beside: Submission, seconds: int) -> Iterator[str]:
    """Keep an antagonist running, for at most this many seconds; yields its job's id once it runs.

    Raises:
        PgpuError: It did not start.
    """
    [job] = client.submit_all([neighbour.submission(beside, seconds)])
    try:
        errors = b""
        for stream, piece in client.logs(job.id, follow=True):
            errors += piece if stream == "stderr" else b""
            if b": running\n" in errors:
                break
        else:
            _check(client, client.job(job.id).job)
        yield job.id
    finally:
        client.stop(job.id, grace_seconds=_STOP_GRACE_SECONDS)


@dataclass(frozen=True, slots=True)
class NeighbourRuns:
    """An antagonist alone, and beside the command."""

    alone: NeighbourAlone
    together: Measurement


def contest_with(
    runs_alone: Sequence[Measurement], jobs: Sequence[Measurement], neighbour: Neighbour, met: NeighbourRuns
) -> Contest | None:
    """Compare command and antagonist alone and together; None if their kernels never overlapped."""
    alone = met.alone
    could = alone.measurement.memory_bytes_per_second
    rate = None if could is None or alone.bytes_per_second is None else alone.bytes_per_second / could
    beside = Beside(
        antagonist=neighbour.kind,
        swept_bytes=neighbour.swept_bytes,
        sm_fraction=neighbour.sm_percent / 100,
        jobs=tuple(jobs),
        neighbour=met.together,
        alone=alone.measurement,
        fraction=fraction_of(neighbour, alone.measurement.l2_bytes, rate),
    )
    found = contest(runs_alone, beside)
    return None if found is None else replace(found, antagonist_rate=rate)


def fraction_of(neighbour: Neighbour, l2_bytes: int | None, rate: float | None) -> float | None:
    """Return the fraction of its resource that an antagonist uses alone, 0 to 1; None if unknown.

    Args:
        neighbour: The antagonist.
        l2_bytes: Size of the GPU's L2 cache.
        rate: Its bandwidth as a fraction of the memory's.
    """
    if neighbour.kind is Antagonist.DRAM:
        return None if rate is None else min(1.0, rate)
    if neighbour.kind is Antagonist.L2:
        return None if l2_bytes is None else min(1.0, neighbour.swept_bytes / l2_bytes)
    return 1.0


def measurement_of(client: Client, job_id: str) -> Measurement:
    """Return the measurement of a traced job that ended."""
    return summarise_log(trace.read(unpack_log(client.profiled(job_id).packed_log)))


def read_result(client: Client, job_id: str) -> Any:
    """Return the last line of a workload's stdout, as JSON.

    Raises:
        ValueError: There is no such line.
    """
    output = b"".join(piece for stream, piece in client.logs(job_id, follow=False) if stream == "stdout")
    return json.loads((output.splitlines() or [b""])[-1])


def _bytes_per_second(client: Client, job_id: str) -> float | None:
    try:
        value = read_result(client, job_id)["bytes_per_second"]
    except (ValueError, KeyError, TypeError):
        return None
    return float(value) if isinstance(value, int | float) else None


def _check(client: Client, job: Job) -> None:
    if job.state is JobState.EXITED and job.exit_code == 0:
        return
    errors = b"".join(piece for stream, piece in client.logs(job.id, follow=False) if stream == "stderr")
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    raise NodeError(job.error or job.reason or (lines[-1] if lines else f"the antagonist ended with {job.exit_code}"))
