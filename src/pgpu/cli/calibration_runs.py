"""The runs of `pgpu calibrate`, and the fit of the constants of advice to them.

Each workload is profiled as `pgpu profile --sensitivity` does, and then runs beside each other one, in turns and under
MPS. The fit returns the constants with the smallest errors of prediction. All runs must be on one GPU.
"""

import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pgpu.advising.constants_fit import ColocatedRun, Errors, errors, fit
from pgpu.advising.contention import Constants
from pgpu.cli.output import console
from pgpu.cli.profile_runs import ProfilePlan, longest_seconds, read_result, run_sensitivity
from pgpu.client import Client
from pgpu.distribution import require_workloads
from pgpu.errors import NodeError, PgpuError
from pgpu.model import (
    Bandwidths,
    Job,
    JobSpec,
    JobState,
    Objective,
    Profile,
    Request,
    SharingMode,
    SharingWish,
    Submission,
)
from pgpu.structs import Struct, field, replace
from pgpu.units import GIB

PROGRAMS = (("matvec", "--size", "20480", "--ahead", "50"), ("nbody", "--size", "20480", "--ahead", "50"))
"""One bound by caches, one by arithmetic; both queue launches ahead, so that the host is not measured."""

_GRACE_SECONDS = 5.0
_TOGETHER = (SharingMode.TIME_SLICE, SharingMode.MPS)


class Calibration(Struct, frozen=True):
    """The result of a calibration."""

    gpu_uuid: str
    """The GPU on which all runs were."""

    constants: Constants
    before: Errors
    """Errors of predictions with the default constants."""

    after: Errors
    pairs: int
    bandwidths: Bandwidths


class _Bench(Struct, frozen=True):
    """How the workloads run, all on one GPU."""

    client: Client
    seconds: float
    """Length of each run."""

    is_quiet: bool
    gpu_uuids: set[str] = field(default_factory=set)
    """The GPU of the runs, once one has ended."""

    def note_gpu(self, job: Job) -> None:
        """Record the GPU of a job.

        Raises:
            NodeError: It ran on another GPU than the jobs before.
        """
        if job.lease is not None:
            self.gpu_uuids.update(each.gpu_uuid for each in job.lease.slices)
        if len(self.gpu_uuids) > 1:
            raise NodeError(
                "the workloads ran on several GPUs: measurements of different GPUs cannot be combined",
                hint="calibrate where pgpu has only one GPU",
            )


def run_calibration(client: Client, seconds: float, *, is_quiet: bool) -> Calibration:
    """Run each workload alone and every pair together, and fit.

    Args:
        client: Client of the machine with the GPU.
        seconds: Length of each run.
        is_quiet: Print nothing meanwhile.

    Raises:
        PgpuError: A run failed, not all were on one GPU, or no workload can run here.
    """
    require_workloads()
    bench = _Bench(client, seconds, is_quiet)
    # With the GPU alone: other jobs would take a part of the bandwidths.
    link = _run(bench, ("link",), SharingMode.EXCLUSIVE)
    memory = _run(bench, ("dram_stream", "--sms-percent", "100"), SharingMode.EXCLUSIVE)
    try:
        bandwidths = Bandwidths(
            float(link["to_device_bytes_per_second"]),
            float(link["to_host_bytes_per_second"]),
            float(memory["bytes_per_second"]),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise NodeError(f"the bandwidths could not be measured: {exc}") from exc
    measured = list(_measure_pairs(bench))
    constants = fit(measured, Constants())
    before, after = errors(measured, Constants()), errors(measured, constants)
    [gpu_uuid] = bench.gpu_uuids
    return Calibration(gpu_uuid, constants, before, after, len(measured), bandwidths)


def _measure_pairs(bench: _Bench) -> Iterator[ColocatedRun]:
    profiles: dict[Sequence[str], Profile] = {}
    for words in PROGRAMS:
        submission = _submission(words, bench.seconds, SharingMode.TIME_SLICE)
        found = run_sensitivity(ProfilePlan(bench.client, submission, is_quiet=bench.is_quiet), 1)
        bench.note_gpu(found.job)
        profiles[words] = found.profile
    alone = {words: _iteration_seconds(bench, words, SharingMode.TIME_SLICE) for words in PROGRAMS}
    for mode, pair in itertools.product(_TOGETHER, itertools.combinations_with_replacement(PROGRAMS, 2)):
        try:
            slowdowns = tuple(
                _seconds_beside(bench, words, other, mode) / alone[words] for words, other in (pair, pair[::-1])
            )
        except PgpuError as exc:
            # Time slices come first in _TOGETHER: without MPS, the constants are fitted to the pairs measured so far.
            if mode is not SharingMode.MPS or len(bench.gpu_uuids) > 1:
                raise
            console.print_note(f"without MPS: {exc}")
            return
        # A ratio below 1 is noise: a second job on the GPU cannot speed the first one up.
        yield ColocatedRun(tuple(profiles[words] for words in pair), mode, tuple(max(1.0, each) for each in slowdowns))


def _submission(words: Sequence[str], seconds: float, mode: SharingMode) -> Submission:
    command = (sys.executable, "-m", "pgpu.workloads", *words, "--seconds", f"{seconds:g}")
    request = Request(
        2 * GIB, sharing=SharingWish(mode.value), measures=mode is SharingMode.MPS, objective=Objective.SOONEST
    )
    return Submission(JobSpec(command, "process", working_directory="/"), request)


def _iteration_seconds(bench: _Bench, words: Sequence[str], mode: SharingMode) -> float:
    """Run one workload to its end and return how long an iteration took."""
    result = _run(bench, words, mode)
    try:
        return float(result["compute_seconds"]) / int(result["iterations"])
    except (ValueError, KeyError, TypeError, ZeroDivisionError) as exc:
        raise NodeError(f"{words[0]} could not be measured: it reported no iterations") from exc


def _run(bench: _Bench, words: Sequence[str], mode: SharingMode) -> dict[str, Any]:
    """Run one workload to its end and return its result."""
    [job] = bench.client.submit_all([_submission(words, bench.seconds, mode)])
    ended = bench.client.wait(job.id)
    bench.note_gpu(ended)
    try:
        return dict(read_result(bench.client, job.id))
    except (ValueError, TypeError) as exc:
        raise NodeError(
            f"{words[0]} could not be measured: {ended.error or ended.reason or 'it wrote no result'}"
        ) from exc


def _seconds_beside(bench: _Bench, words: Sequence[str], other: Sequence[str], mode: SharingMode) -> float:
    with _keep_running(bench.client, _submission(other, longest_seconds(bench.seconds), mode)) as beside:
        bench.note_gpu(beside)
        return _iteration_seconds(bench, words, mode)


@contextmanager
def _keep_running(client: Client, submission: Submission) -> Iterator[Job]:
    """Start a job, yield it once it runs, and stop it at the end of the block."""
    [job] = client.submit_all([submission])
    try:
        # Granted first, then its process starts; only then does it run.
        while client.still_waits(job.id, timeout_seconds=1.0) is not None:
            pass
        while (now := client.job(job.id).job).state is JobState.STARTING:
            client.still_waits(job.id, timeout_seconds=0.1)
        if now.state is not JobState.RUNNING:
            raise NodeError(now.error or f"job {job.id} ended at once")
        # The job that is measured is submitted after this one runs, so the two overlap from its first launch on.
        yield replace(now)
    finally:
        client.stop(job.id, grace_seconds=_GRACE_SECONDS)
