"""Runs of a command beside a neighbour that uses up one resource: both under MPS, so that they really run side by side.

The neighbour is one of pgpu's own workloads, in a slice of its own on the same GPU, and is measured like the command. It
refuses to go on where MPS cannot be had: a neighbour that takes turns slows everybody, whatever they need.
"""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pgpu.client import Client
from pgpu.enforcement import trace
from pgpu.engine.history.usage_records import unpack_log
from pgpu.errors import NodeError
from pgpu.model import Antagonist, Contest, Job, JobSpec, JobState, Request, SharingWish, Submission
from pgpu.profiling.measurement import Measurement, summarise_log
from pgpu.profiling.sensitivity import Beside, contest
from pgpu.units import GIB, MIB

SM_PERCENTS = (10, 50)
"""Of the multiprocessors, for streams from memory: enough to use much of it up, and little enough to leave the command the rest."""

ALL_PERCENT = 100
"""For sweeps of the cache, since who reads a cache seldom keeps little of it and takes little away, and for what is taken of
each multiprocessor."""

_ALONE_SECONDS = 1
"""Five hundred launches of it."""

_SPARE_SECONDS = 60
_TIMES_AS_LONG = 10
"""As long as the command's runs alone took, so long at most a neighbour runs: it ends by itself where who started it was killed."""

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
"""Of the L2 cache: three sizes tell how much of it the command needs."""

_L2_PART_FOR_SPEED = 0.125
"""So little that it stays there whoever else reads: what is lost is the cache's bandwidth."""

_STEP_BYTES = MIB // 16
"""What a size is a multiple of; in MiB it is written with few digits."""

_LEAST_DRAM_BYTES = 64 * MIB
_DRAM_L2_TIMES = 8
_FALLBACK_L2_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One antagonist with its buffer."""

    kind: Antagonist
    swept_bytes: int = 0
    """Its buffer; 0 where it has none."""

    sm_percent: int = ALL_PERCENT

    @property
    def workload(self) -> str:
        """What it is called among the workloads."""
        return _WORKLOADS[self.kind]

    @property
    def command(self) -> tuple[str, ...]:
        """Without how long it runs."""
        size = ("--size-mib", f"{self.swept_bytes / MIB:g}") if self.swept_bytes else ()
        return (sys.executable, "-m", "pgpu.workloads", self.workload, *size, "--sms-percent", str(self.sm_percent))

    @property
    def words(self) -> str:
        """Which of them it is, for people."""
        size = f" of {self.swept_bytes / MIB:g} MiB" if self.swept_bytes else ""
        return f"{self.kind} antagonist{size}" + ("" if self.sm_percent == ALL_PERCENT else f" on {self.sm_percent} %")

    def submission(self, beside: Submission, seconds: int) -> Submission:
        """Return it as a job on the GPU that `beside` will have."""
        spec = JobSpec((*self.command, "--seconds", str(seconds)), "process", is_traced=True, working_directory="/")
        request = Request(_SLICE_BYTES, priority=beside.request.priority, sharing=SharingWish.MPS, measures=True)
        return Submission(spec, request, wait_timeout_seconds=beside.wait_timeout_seconds)


def neighbours_for(l2_bytes: int | None) -> list[Neighbour]:
    """Return those that are worth a run each, on a GPU with such a cache."""
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
    """Return the command's own job as it runs beside a neighbour."""
    return replace(submission, request=replace(submission.request, sharing=SharingWish.MPS, measures=True))


@dataclass(frozen=True, slots=True)
class NeighbourAlone:
    """A neighbour with the GPU for itself."""

    measurement: Measurement
    bytes_per_second: float | None


def run_alone(client: Client, neighbour: Neighbour, beside: Submission) -> NeighbourAlone:
    """Measure a neighbour for a moment.

    Raises:
        PgpuError: There is no MPS, or no room.
    """
    [job] = client.submit_all([neighbour.submission(beside, _ALONE_SECONDS)])
    ended = client.wait(job.id)
    _check(client, ended)
    return NeighbourAlone(measurement_of(client, job.id), _bytes_per_second(client, job.id))


def longest_seconds(runs_alone_seconds: float) -> int:
    """Return how long a neighbour of runs goes on at most that took so long alone, all together."""
    return math.ceil(_SPARE_SECONDS + _TIMES_AS_LONG * runs_alone_seconds)


@contextmanager
def running(client: Client, neighbour: Neighbour, beside: Submission, seconds: int) -> Iterator[str]:
    """Keep a neighbour running; gives its job's id once it sweeps, and ends it at the end, or after so many seconds.

    Raises:
        PgpuError: It did not come to run.
    """
    [job] = client.submit_all([neighbour.submission(beside, seconds)])
    try:
        said = b""
        for stream, piece in client.logs(job.id, follow=True):
            said += piece if stream == "stderr" else b""
            if b": running\n" in said:
                break
        else:
            _check(client, client.job(job.id).job)
        yield job.id
    finally:
        client.stop(job.id, grace_seconds=_STOP_GRACE_SECONDS)


@dataclass(frozen=True, slots=True)
class NeighbourRuns:
    """A neighbour alone, and while the command ran beside it."""

    alone: NeighbourAlone
    together: Measurement


def contest_with(
    runs_alone: Sequence[Measurement], jobs: Sequence[Measurement], neighbour: Neighbour, met: NeighbourRuns
) -> Contest | None:
    """Say who slowed whom; None where their kernels never met."""
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
    """Return what an antagonist used alone of the resource that it is there for, 0 to 1; None is not known.

    Args:
        neighbour: Which.
        l2_bytes: The GPU's cache.
        rate: What it read in a second, of what the memory does.
    """
    if neighbour.kind is Antagonist.DRAM:
        return None if rate is None else min(1.0, rate)
    if neighbour.kind is Antagonist.L2:
        return None if l2_bytes is None else min(1.0, neighbour.swept_bytes / l2_bytes)
    return 1.0


def measurement_of(client: Client, job_id: str) -> Measurement:
    """Return what a job did that was traced and has ended."""
    return summarise_log(trace.read(unpack_log(client.profiled(job_id).packed_log)))


def _bytes_per_second(client: Client, job_id: str) -> float | None:
    said = b"".join(piece for stream, piece in client.logs(job_id, follow=False) if stream == "stdout")
    try:
        value = json.loads(said.splitlines()[-1])["bytes_per_second"]
    except (ValueError, IndexError, KeyError, TypeError):
        return None
    return float(value) if isinstance(value, int | float) else None


def _check(client: Client, job: Job) -> None:
    if job.state is JobState.EXITED and job.exit_code == 0:
        return
    said = b"".join(piece for stream, piece in client.logs(job.id, follow=False) if stream == "stderr")
    lines = said.decode("utf-8", "replace").strip().splitlines()
    raise NodeError(job.error or job.reason or (lines[-1] if lines else f"the antagonist ended with {job.exit_code}"))
