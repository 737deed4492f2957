"""The runs behind a profile: one, or with `--sensitivity` several of the same command under changed conditions.

Each is a job of its own in the queue. Antagonists run only under MPS: under time slices, a neighbour takes turns with the
job and slows it down whatever it does.
"""

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from pgpu.cli.measurement import antagonist_runs
from pgpu.cli.measurement.antagonist_runs import Neighbour, NeighbourRuns
from pgpu.cli.output import console
from pgpu.cli.submission.attachment import attach, deferred_signals, print_advisory, print_simulated
from pgpu.client import Client
from pgpu.distribution import require_workloads
from pgpu.enforcement import trace
from pgpu.engine.history.usage_records import Findings, Profiled, unpack_log
from pgpu.errors import NodeError, PgpuError, RequestError
from pgpu.model import Contest, Job, Submission
from pgpu.profiling.counters import PROGRAM, command_of, demands_of, read_counters, refusal
from pgpu.profiling.measurement import Measurement, summarise_log
from pgpu.profiling.profile_page import ProfileResult
from pgpu.profiling.sensitivity import loss, sensitivity

SMALLEST_SHARED, LARGEST_SHARED = 0, 100
"""Preferred carve-out in percent: shared memory as a part of L1 and shared memory; the largest leaves the least L1."""

MOST_KEPT_BYTES = 16 << 20
"""How much output under ncu is kept: its table follows nearly all output of the program, one line for each launch."""


class OutputTail(io.BytesIO):
    """A stream that keeps the end of its content, `MOST_KEPT_BYTES` to twice as much."""

    def write(self, piece: Any, /) -> int:
        """Append a piece, and drop the beginning once the content is too long."""
        written = super().write(piece)
        if self.tell() > 2 * MOST_KEPT_BYTES:
            kept = self.getvalue()[-MOST_KEPT_BYTES:]
            self.seek(0)
            self.truncate()
            super().write(kept)
        return written


@dataclass(frozen=True, slots=True)
class ProfilePlan:
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
        if kinds[-1][-1].failed is not None or not kinds[-1][-1].measurement.duration_seconds:
            return kinds[-1][-1]
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
    written = OutputTail()
    try:
        ended = _run(plan, replace(plan.submission, spec=spec), written)
    except PgpuError as exc:
        return _uncounted(finding, str(exc))
    output = written.getvalue().decode("utf-8", "replace")
    counters = read_counters(output)
    if not counters:
        return _uncounted(finding, refusal(output) or f"{PROGRAM} ended with {ended.exit_code} and counted no kernel")
    counted = Findings(finding.profile.sensitivity, finding.profile.contests, demands_of(counters))
    profile = finding.profile
    if finding.failed is None and counted.demands:
        profile = plan.client.add_findings(finding.job.id, counted)
    return replace(finding, profile=profile, counters=counters)


def _uncounted(finding: ProfileResult, why: str) -> ProfileResult:
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
    for neighbour in antagonist_runs.neighbours_for(alone[-1].measurement.l2_bytes):
        try:
            met = _contest(plan, runs, alone, neighbour)
        except PgpuError as exc:
            notes.append(f"arithmetic, room, the L2 cache and the memory's bandwidth, which need MPS: {exc}")
            break
        if met is None:
            notes.append(f"{neighbour.description}: its kernels and the job's never overlapped")
        else:
            found.append(met)
    return found


def _contest(plan: ProfilePlan, runs: int, alone: Sequence[ProfileResult], neighbour: Neighbour) -> Contest | None:
    alone_too = antagonist_runs.run_alone(plan.client, neighbour, plan.submission)
    under_mps = replace(plan, submission=antagonist_runs.under_mps(plan.submission))
    longest_seconds = antagonist_runs.longest_seconds(sum(_seconds(each.job) for each in alone))
    with antagonist_runs.running(plan.client, neighbour, plan.submission, longest_seconds) as neighbour_id:
        beside = _repeat(under_mps, runs, None)
    if (failed := beside[-1].failed) is not None:
        raise NodeError(f"the command ended with {failed.exit_code} under MPS")
    met = NeighbourRuns(alone_too, antagonist_runs.measurement_of(plan.client, neighbour_id))
    return antagonist_runs.contest_with(_measurements(alone), _measurements(beside), neighbour, met)


def _seconds(job: Job) -> float:
    # Wall-clock times: the clock may be set back during the run.
    if job.started_at_seconds is None or job.finished_at_seconds is None:
        return 0.0
    return max(0.0, job.finished_at_seconds - job.started_at_seconds)


def _measurements(findings: Sequence[ProfileResult]) -> list[Measurement]:
    return [each.measurement for each in findings]


def _run(plan: ProfilePlan, submission: Submission, output: BinaryIO) -> Job:
    """Run one job to its end; its output must not go to stdout, which is for the profile."""
    with deferred_signals() as came:
        [job] = plan.client.submit_all([submission])
        if not plan.is_quiet:
            print_simulated(job)
        ended = attach(plan.client, job, came, as_json=False, is_quiet=plan.is_quiet, stdout=output)
    if ended.error is not None:
        raise RequestError(f"job {ended.id} could not be profiled: {ended.error}")
    if not plan.is_quiet:
        print_advisory(ended)
    return ended


def _finding(job: Job, profiled: Profiled) -> ProfileResult:
    return ProfileResult(job, profiled.profile, summarise_log(trace.read(unpack_log(profiled.packed_log))))


def _print_note(plan: ProfilePlan, line: str) -> None:
    if not plan.is_quiet:
        console.print_note(line)
