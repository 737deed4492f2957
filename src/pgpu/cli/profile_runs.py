"""The jobs behind a profile: one run of the command, or with `--sensitivity` several under changed conditions.

Each run is a job of its own in the queue. A contest is a run beside an antagonist, a workload that uses up one resource;
it has a slice of its own on the same GPU and is traced like the command. Contests run only under MPS, so that both
overlap: under time slices, a neighbour takes turns with the job and slows it down, whatever the job needs.
"""

import io
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from pgpu.cli.attachment import attach, deferred_signals
from pgpu.cli.output import console
from pgpu.client import Client
from pgpu.distribution import require_workloads
from pgpu.enforcement import trace
from pgpu.engine.history.usage_records import Findings, Profiled, unpack_log
from pgpu.errors import NodeError, PgpuError, RequestError
from pgpu.model import Antagonist, Contest, Job, JobSpec, JobState, Request, SharingWish, Submission
from pgpu.profiling.counters import PROGRAM, command_of, demands_of, read_counters, refusal
from pgpu.profiling.measurement import Measurement, summarise_log
from pgpu.profiling.profile_page import ProfileResult
from pgpu.profiling.sensitivity import Beside, contest, loss, sensitivity
from pgpu.structs import Struct, replace
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


SMALLEST_SHARED, LARGEST_SHARED = 0, 100
"""Preferred carve-out in percent: shared memory as a part of L1 and shared memory; the largest leaves the least L1."""

MOST_KEPT_BYTES = 16 << 20
"""How much output under ncu is kept: its table follows nearly all output of the program, one line for each launch."""


class Neighbour(Struct, frozen=True):
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


class NeighbourAlone(Struct, frozen=True):
    """An antagonist alone on the GPU."""

    measurement: Measurement
    bytes_per_second: float | None


def run_alone(client: Client, neighbour: Neighbour, beside: Submission) -> NeighbourAlone:
    """Measure an antagonist alone, for a second.

    Raises:
        PgpuError: There is no MPS, or no room.
    """
    # First alone: what the antagonist reaches then is the reference for its run beside the command.
    [job] = client.submit_all([neighbour.submission(beside, _ALONE_SECONDS)])
    ended = client.wait(job.id)
    _check(client, ended)
    try:
        rate = read_result(client, job.id)["bytes_per_second"]
    except (ValueError, KeyError, TypeError):  # an antagonist without a bandwidth of its own
        rate = None
    return NeighbourAlone(measurement_of(client, job.id), float(rate) if isinstance(rate, int | float) else None)


def longest_seconds(runs_alone_seconds: float) -> int:
    """Return the limit of an antagonist beside runs that took this long alone, all together."""
    return math.ceil(_SPARE_SECONDS + _TIMES_AS_LONG * runs_alone_seconds)


@contextmanager
def keep_running(client: Client, neighbour: Neighbour, beside: Submission, seconds: int) -> Iterator[str]:
    """Keep an antagonist running for at most this many seconds, and yield its job's id once it runs.

    Raises:
        PgpuError: It did not start.
    """
    [job] = client.submit_all([neighbour.submission(beside, seconds)])
    try:
        # The log can split the line anywhere, so all of stderr up to now is searched.
        errors = b""
        for stream, piece in client.logs(job.id, follow=True):
            errors += piece if stream == "stderr" else b""
            # Workloads write this line once their buffers are allocated: from now on they disturb the command.
            if b": running\n" in errors:
                break
        else:
            _check(client, client.job(job.id).job)
        yield job.id
    finally:
        client.stop(job.id, grace_seconds=_STOP_GRACE_SECONDS)


class NeighbourRuns(Struct, frozen=True):
    """An antagonist alone, and beside the command."""

    alone: NeighbourAlone
    together: Measurement


def contest_with(
    runs_alone: Sequence[Measurement], jobs: Sequence[Measurement], neighbour: Neighbour, runs: NeighbourRuns
) -> Contest | None:
    """Compare command and antagonist alone and together; None if their kernels never overlapped."""
    alone = runs.alone
    possible = alone.measurement.memory_bytes_per_second
    rate = None if possible is None or alone.bytes_per_second is None else alone.bytes_per_second / possible
    beside = Beside(
        antagonist=neighbour.kind,
        swept_bytes=neighbour.swept_bytes,
        sm_fraction=neighbour.sm_percent / 100,
        jobs=tuple(jobs),
        neighbour=runs.together,
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


def _check(client: Client, job: Job) -> None:
    if job.state is JobState.EXITED and job.exit_code == 0:
        return
    errors = b"".join(piece for stream, piece in client.logs(job.id, follow=False) if stream == "stderr")
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    raise NodeError(job.error or job.reason or (lines[-1] if lines else f"the antagonist ended with {job.exit_code}"))


class OutputTail(io.BytesIO):
    """A stream that keeps the end of its content, `MOST_KEPT_BYTES` to twice as much."""

    def write(self, piece: Any, /) -> int:
        """Append a piece, and drop the beginning once the content is too long."""
        written = super().write(piece)
        # Only at twice the size, so that each byte is moved about once.
        if self.tell() > 2 * MOST_KEPT_BYTES:
            kept = self.getvalue()[-MOST_KEPT_BYTES:]
            self.seek(0)
            self.truncate()
            super().write(kept)
        return written


class ProfilePlan(Struct, frozen=True):
    """A command to profile, and how."""

    client: Client
    submission: Submission
    is_quiet: bool
    """Whether stderr is for JSON alone."""


def load_finding(client: Client, id_or_name: str) -> ProfileResult:
    """Return the profile of a traced job that ended.

    Raises:
        RequestError: There is none.
    """
    return _finding(client.job(id_or_name).job, client.profiled(id_or_name))


def run_once(plan: ProfilePlan) -> ProfileResult:
    """Run the command once, traced.

    Raises:
        PgpuError: pgpu itself could not run it.
    """
    spec = replace(plan.submission.spec, is_traced=True)
    job = _run(plan, replace(plan.submission, spec=spec), sys.stderr.buffer)
    finding = _finding(job, plan.client.profiled(job.id))
    notes = () if finding.measurement.process_count else ("anything: the command never used the GPU",)
    return replace(finding, failed=job if job.exit_code else None, notes=notes)


def run_sensitivity(plan: ProfilePlan, runs: int) -> ProfileResult:
    """Run the command alone, with the smallest and the largest L1 cache, and beside antagonists.

    Args:
        plan: The command.
        runs: Number of runs alone, with each cache size and beside each antagonist.

    Returns:
        The first failed run in `failed`; nothing is compared then, nor if the command never used the GPU.

    Raises:
        PgpuError: pgpu itself could not run it, or cannot run an antagonist here.
    """
    require_workloads()
    _print_note(plan, f"the command runs {3 * runs} times alone, and {runs} times beside each antagonist")
    kinds: list[list[ProfileResult]] = []
    for carve_out_percent in (None, SMALLEST_SHARED, LARGEST_SHARED):
        kinds.append(_repeat(plan, runs, carve_out_percent))
        # A failed run, or one that never used the GPU, makes comparisons meaningless: its result is returned as it is.
        if kinds[-1][-1].failed is not None or not kinds[-1][-1].measurement.duration_seconds:
            return kinds[-1][-1]
    # The smallest carve-out for shared memory leaves the largest L1 cache.
    alone, large, small = kinds
    notes: list[str] = []
    cache = loss(_measurements(large), _measurements(small))
    if cache is None:
        notes.append("the L1 cache: the runs have no kernel in common")
    contests = _contests(plan, runs, alone, notes)
    last = alone[-1]
    profile = plan.client.add_findings(last.job.id, Findings(sensitivity(cache, contests), tuple(contests)))
    return replace(last, profile=profile, cache=cache, notes=tuple(notes))


def with_counters(plan: ProfilePlan, finding: ProfileResult, program: str) -> ProfileResult:
    """Run the command once more under Nsight Compute, and add its counters, or a note why there are none.

    Args:
        plan: The command.
        finding: The result of the runs before.
        program: Path of ncu.
    """
    _print_note(plan, f"the command runs once more under {PROGRAM}, which is slow: each kernel is replayed")
    spec = replace(plan.submission.spec, command=command_of(program, plan.submission.spec.command), is_traced=False)
    # ncu prints its table behind the output of the program; stdout of pgpu is for the profile alone.
    written = OutputTail()
    try:
        ended = _run(plan, replace(plan.submission, spec=spec), written)
    except PgpuError as exc:
        return _add_counter_note(finding, str(exc))
    output = written.getvalue().decode("utf-8", "replace")
    counters = read_counters(output)
    if not counters:
        return _add_counter_note(
            finding, refusal(output) or f"{PROGRAM} ended with {ended.exit_code} and counted no kernel"
        )
    counted = Findings(finding.profile.sensitivity, finding.profile.contests, demands_of(counters))
    profile = finding.profile
    if finding.failed is None and counted.demands:
        profile = plan.client.add_findings(finding.job.id, counted)
    return replace(finding, profile=profile, counters=counters)


def _add_counter_note(finding: ProfileResult, why: str) -> ProfileResult:
    return replace(finding, notes=(*finding.notes, f"hardware counters: {why}"))


def _repeat(plan: ProfilePlan, runs: int, carve_out_percent: int | None) -> list[ProfileResult]:
    """Run the command several times, up to the first failure."""
    spec = replace(plan.submission.spec, carve_out_percent=carve_out_percent)
    changed = replace(plan, submission=replace(plan.submission, spec=spec))
    found: list[ProfileResult] = []
    while len(found) < runs and not (found and found[-1].failed):
        found.append(run_once(changed))
    return found


def _contests(plan: ProfilePlan, runs: int, alone: Sequence[ProfileResult], notes: list[str]) -> list[Contest]:
    found = []
    for neighbour in neighbours_for(alone[-1].measurement.l2_bytes):
        try:
            result = _contest(plan, runs, alone, neighbour)
        except PgpuError as exc:
            # Without MPS none of the others can run either.
            notes.append(f"arithmetic, room, the L2 cache and the memory's bandwidth, which need MPS: {exc}")
            break
        if result is None:
            notes.append(f"{neighbour.description}: its kernels and the job's never overlapped")
        else:
            found.append(result)
    return found


def _contest(plan: ProfilePlan, runs: int, alone: Sequence[ProfileResult], neighbour: Neighbour) -> Contest | None:
    neighbour_alone = run_alone(plan.client, neighbour, plan.submission)
    # The command itself runs under MPS as well: only clients of one server overlap on the multiprocessors.
    plan_under_mps = replace(plan, submission=under_mps(plan.submission))
    took_seconds = 0.0
    for each in alone:
        begin, end = each.job.started_at_seconds, each.job.finished_at_seconds
        if begin is not None and end is not None:
            took_seconds += max(0.0, end - begin)  # wall-clock times: the clock may be set back during the run
    limit_seconds = longest_seconds(took_seconds)
    with keep_running(plan.client, neighbour, plan.submission, limit_seconds) as neighbour_id:
        beside = _repeat(plan_under_mps, runs, None)
    if (failed := beside[-1].failed) is not None:
        raise NodeError(f"the command ended with {failed.exit_code} under MPS")
    neighbour_runs = NeighbourRuns(neighbour_alone, measurement_of(plan.client, neighbour_id))
    return contest_with(_measurements(alone), _measurements(beside), neighbour, neighbour_runs)


def _measurements(findings: Sequence[ProfileResult]) -> list[Measurement]:
    return [each.measurement for each in findings]


def _run(plan: ProfilePlan, submission: Submission, output: BinaryIO) -> Job:
    """Run one job to its end; its output must not go to stdout, which is for the profile."""
    # A signal cancels the job while it waits, and is forwarded once it runs; the failed run then ends the series.
    with deferred_signals() as came:
        job = plan.client.submit_attached(submission)
        ended = attach(plan.client, job, came, as_json=False, is_quiet=plan.is_quiet, stdout=output)
    if ended.error is not None:
        raise RequestError(f"job {ended.id} could not be profiled: {ended.error}")
    return ended


def _finding(job: Job, profiled: Profiled) -> ProfileResult:
    return ProfileResult(job, profiled.profile, summarise_log(trace.read(unpack_log(profiled.packed_log))))


def _print_note(plan: ProfilePlan, line: str) -> None:
    if not plan.is_quiet:
        console.print_note(line)
