"""Tables of jobs, queue, GPUs, pods, earlier runs and wasted memory, and the notes below them.

Only verbs that print a table import this module.
"""

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from pgpu.advising.memory_demand import Basis
from pgpu.cli.output.console import user_name
from pgpu.cli.output.plain_table import PlainTable, Styled
from pgpu.client import CallHistory, GpuReport, JobReport, QueueReport, Waste
from pgpu.model import GpuSeries, Job, JobState, Outsider, SharingMode
from pgpu.units import format_duration, format_memory, format_share

if TYPE_CHECKING:
    from pgpu.kubernetes.pod_shares import SeenShare

_COMMAND_CHARACTERS = 32
_JOB_COLUMNS = (
    *("JOB", "NAME", "STATUS", "SLICE", "USED", "PEAK", "REFUSED"),
    *("SHARE", "GOT 1s/10s/60s", "MODE", "TURN", "GPU", "IMAGE", "COMMAND"),
)
_ONE_LINE = {"JOB", "SLICE", "USED", "PEAK", "GPU", "UUID"}
_ALWAYS = {"JOB", "STATUS", "SLICE", "GPU", "COMMAND"}
_STATE_STYLES = {
    JobState.WAITING: "yellow",
    JobState.STARTING: "cyan",
    JobState.RUNNING: "green",
    JobState.EXITED: "dim",
    JobState.FAILED: "red",
    JobState.CANCELLED: "dim",
}


_MOST_JOBS = 40
"""How many jobs `pgpu waste` lists, the newest ones."""

_USAGE_ONE_LINE = {
    *("JOB", "JOBS", "USER", "RUNS", "SLICE", "RESERVED", "USED", "TIMES", "PEAK", "CONTEXT", "REFUSED", "EXIT"),
    *("LASTS", "LASTED", "LAST RUN", "AUTO", "SHOULD ASK", "DAY", "IN USE", "MOST USED", "BUSY"),
}
"""Columns of earlier runs that are never wrapped; programs, GPUs and explanations are."""

_BASES = {
    Basis.HISTORY: "history",
    Basis.GROWTH: "growth with a number",
    Basis.SUFFICED: "it sufficed before",
    Basis.UNKNOWN: "unknown: measured when it runs",
}


def of_jobs(reports: Sequence[JobReport], *, is_uncut: bool, now_seconds: float | None = None) -> PlainTable:
    """Lay out jobs, one on each line, without empty columns."""
    now = time.time() if now_seconds is None else now_seconds
    # GPUs on which a job is held: there jobs take turns, and one that is not held has the turn.
    turns = {each.gpu_uuid for report in reports for each in report.time if each.is_held}
    rows = [_job_cells(report, now, turns, is_uncut=is_uncut) for report in reports]
    names = [name for name in _JOB_COLUMNS if name in _ALWAYS or any(row[name] for row in rows)]
    table = PlainTable(*names, no_wrap=_ONE_LINE)
    for row in rows:
        table.add_row(*(row[name] for name in names))
    return table


def _job_cells(report: JobReport, now_seconds: float, turns: set[str], *, is_uncut: bool) -> dict[str, Styled | str]:
    job, spec = report.job, report.job.spec
    if job.is_anonymous:
        status = f"{job.state.value}, another user's"
    else:
        status = _state(job, now_seconds) + (f"; {job.warning}" if job.warning else "")
    granted = [] if job.lease is None else [piece.gpu_uuid[:12] for piece in job.lease.slices]
    simulated = [f"simulated {job.gpu_model}"] if job.gpu_model and job.is_simulated else []
    is_advisory = job.lease is not None and job.lease.is_advisory and not job.state.is_final
    return {
        "JOB": job.id,
        "NAME": spec.name or "",
        "STATUS": Styled(status, _STATE_STYLES[job.state]),
        "SLICE": _slice(job),
        "USED": _largest(use.used_bytes for use in report.use),
        "PEAK": _largest(use.peak_bytes for use in report.use) or _largest(filter(None, [job.peak_bytes])),
        "REFUSED": str(sum(use.refusals for use in report.use)) if report.use else "",
        **_time_cells(report, turns, now_seconds),
        "GPU": ", ".join(simulated or granted) + (" (advisory)" if is_advisory else ""),
        "IMAGE": spec.image or "",
        # The command of a replica is pgpu's own; its function is more useful.
        "COMMAND": _command(spec.command, is_uncut) if spec.serves is None or is_uncut else f"serves {spec.serves}",
    }


@lru_cache(maxsize=1024)
def _command(words: Sequence[str], is_uncut: bool) -> str:
    # Cached, since the jobs of an array have equal ones.
    command = shlex.join(words)
    return command if is_uncut or len(command) <= _COMMAND_CHARACTERS else f"{command[: _COMMAND_CHARACTERS - 1]}…"


def _time_cells(report: JobReport, turns: set[str], now_seconds: float) -> dict[str, Styled | str]:
    """Return requested and actual shares; `turns` are the GPUs on which a job waits for its turn."""
    request, lease = report.job.request, report.job.lease
    share = "" if request.compute_share is None else format_share(request.compute_share)
    mode = request.sharing.value if lease is None else lease.sharing.value
    got, turn = [], []
    for each in report.time:
        spans = (each.got_over_1_second, each.got_over_10_seconds, each.got_over_60_seconds)
        got.append(" ".join("-" if span is None else f"{span:.0%}" for span in spans))
        if each.is_held:
            turn.append("waits")
        elif each.turn_until_seconds is not None and each.turn_until_seconds > now_seconds:
            turn.append(f"has it, {format_duration(each.turn_until_seconds - now_seconds)} left")
        elif request.oversubscribes and each.gpu_uuid in turns:
            turn.append("has it")
    return {
        "SHARE": f"{share} strict" if request.is_strict else share,
        "GOT 1s/10s/60s": ", ".join(got),
        "MODE": "" if mode == SharingMode.TIME_SLICE else mode,
        "TURN": ", ".join(dict.fromkeys(turn)),
    }


def of_queue(reports: Iterable[QueueReport], now_seconds: float | None = None) -> PlainTable:
    """Lay out waiting jobs, one on each line."""
    now = time.time() if now_seconds is None else now_seconds
    table = PlainTable("PLACE", "JOB", "NAME", "PRIORITY", "SLICE", "WAITED", "STARTS", "REASON", no_wrap=_ONE_LINE)
    for report in reports:
        job = report.job
        table.add_row(
            "held" if report.position is None else str(report.position),
            job.id,
            job.spec.name or "",
            str(job.request.priority),
            _slice(job),
            format_duration(now - job.created_at_seconds),
            _start(job, now),
            job.reason or "",
        )
    return table


def of_dry_run(reports: Sequence[QueueReport], now_seconds: float | None = None) -> PlainTable:
    """Lay out the jobs of a submission that was not made, by name or number, one on each line."""
    now = time.time() if now_seconds is None else now_seconds
    table = PlainTable("JOB", "SLICE", "PLACE", "STARTS", "GPU", "REASON", no_wrap=_ONE_LINE)
    for number, report in enumerate(reports, 1):
        job = report.job
        table.add_row(
            job.spec.name or str(number if job.place.array_index is None else job.place.array_index),
            _slice(job),
            "held" if report.position is None else str(report.position),
            _start(job, now),
            ", ".join(uuid[:12] for uuid in job.expected_gpu_uuids),
            job.reason or "",
        )
    return table


def _start(job: Job, now_seconds: float) -> str:
    if job.expected_start_seconds is None:  # no known event would let it start
        return "?"
    left_seconds = job.expected_start_seconds - now_seconds
    return "soon" if left_seconds < 1 else f"in about {format_duration(left_seconds)}"


def of_gpus(reports: Iterable[GpuReport]) -> PlainTable:
    """Lay out GPUs, one on each line."""
    table = PlainTable(
        *("GPU", "NAME", "UUID", "MEMORY", "USED", "GRANTED", "GRANTABLE", "OUTSIDE"),
        *("BUSY", "COMPUTE", "MODE", "JOBS", "ENFORCER"),
        no_wrap=_ONE_LINE,
    )
    for report in reports:
        gpu = report.gpu
        # The driver does not report the memory of every process; a partial sum would mislead.
        known = [each.used_bytes for each in report.outsiders if each.used_bytes is not None]
        held = format_memory(sum(known)) if len(known) == len(report.outsiders) else "?"
        outside_cell = f"{held} ({len(report.outsiders)})" if report.outsiders else ""
        table.add_row(
            gpu.place,
            f"{gpu.name} (simulated)" if gpu.is_simulated else gpu.name,
            gpu.uuid,
            format_memory(gpu.memory_bytes),
            format_memory(report.used_bytes),
            format_memory(report.granted_bytes),
            format_memory(max(0, report.capacity_bytes - report.granted_bytes)),
            Styled(outside_cell, "red"),
            "?" if report.utilisation_percent is None else f"{report.utilisation_percent} %",
            format_share(report.granted_compute) if report.granted_compute else "",
            "" if report.sharing is None else report.sharing.value,
            str(len(report.jobs)),
            report.enforcer,
        )
    return table


def of_pods(seen: "Sequence[SeenShare]") -> PlainTable:
    """Lay out the slices of a node's containers, one on each line; `-` for a pod that the kubelet does not list."""
    table = PlainTable(
        *("NAMESPACE", "POD", "CONTAINER", "CLAIM", "GPU", "USED", "LIMIT", "PEAK", "REFUSED", "COMPUTE", "JOB")
    )
    for each in seen:
        share = each.share
        table.add_row(
            share.namespace or "-",
            share.pod or "-",
            share.container or "-",
            share.claim or "-",
            each.gpu or f"gone: {share.gpu_uuid}",
            _memory_or_unknown(share.memory_used_bytes),
            format_memory(share.memory_limit_bytes),
            _memory_or_unknown(share.memory_peak_bytes),
            "?" if share.refusals is None else str(share.refusals),
            "" if share.compute_share is None else format_share(share.compute_share),
            share.job_id,
        )
    return table


def _memory_or_unknown(amount_bytes: int | None) -> str:
    return "?" if amount_bytes is None else format_memory(amount_bytes)


def notes_of_outsiders(outsiders: Iterable[Outsider]) -> Sequence[str]:
    """Return a line for each process that holds memory without a lease."""
    return [
        f"process {each.process.pid} ({each.program or '?'}) of user {each.uid} holds "
        f"{'memory' if each.used_bytes is None else format_memory(each.used_bytes)} of {each.gpu_uuid} "
        "outside of every lease"
        for each in outsiders
    ]


def notes_of_enforcers(reports: Iterable[GpuReport]) -> Sequence[str]:
    """Return a line for each enforcer with what it does not limit."""
    return sorted({f"{report.enforcer} does not cover {report.does_not_cover}" for report in reports})


def _state(job: Job, now_seconds: float) -> str:
    if job.state is JobState.WAITING:
        waited = format_duration(now_seconds - job.created_at_seconds)
        return f"waiting {waited}: {job.reason}" if job.reason else f"waiting {waited}"
    if job.state is JobState.RUNNING and job.started_at_seconds is not None:
        # The last one that holds is shown: a parked job may have been idle and reclaimed before.
        word = "running" if job.suspended_by is None else f"suspended for {job.suspended_by}, running"
        word = "idle (offered), running" if job.is_offered else word
        word = "making room, running" if job.reclaimed_at_seconds is not None else word
        word = "parked, running" if job.parked_at_seconds is not None else word
        return f"{word} {format_duration(now_seconds - job.started_at_seconds)}"
    if job.state is JobState.EXITED:
        return "exited" if job.exit_code is None else f"exited ({job.exit_code})"
    if job.state is JobState.CANCELLED and job.wait_timed_out:
        return "not granted in time"
    if job.state in {JobState.STARTING, JobState.CANCELLED, JobState.FAILED} and (why := job.error or job.reason):
        return f"{job.state.value}: {why}"
    return job.state.value


def _slice(job: Job) -> str:
    if job.request.is_without_gpu:
        return "none"
    count = "" if job.request.gpu_count == 1 else f" x {job.request.gpu_count}"
    return format_memory(job.request.memory_bytes) + count


def _largest(amounts: Iterable[int]) -> str:
    found = list(amounts)
    return format_memory(max(found)) if found else ""


def of_calls(calls: Iterable[CallHistory], now_seconds: float | None = None) -> PlainTable:
    """Lay out programs with the summary of their runs, one on each line."""
    now = time.time() if now_seconds is None else now_seconds
    table = PlainTable(
        "PROGRAM",
        "GPU",
        "RUNS",
        "PEAK",
        "LASTS",
        "LAST RUN",
        "AUTO",
        "BY",
        no_wrap=_USAGE_ONE_LINE,
    )
    from statistics import median

    for call in calls:
        memory_bytes = call.estimate.memory_bytes
        table.add_row(
            call.signature,
            call.gpu_name,
            str(len(call.runs)),
            format_memory(max(run.peak_bytes for run in call.runs)),
            format_duration(median(run.duration_seconds for run in call.runs)),
            f"{format_duration(now - call.runs[-1].ended_at_seconds)} ago",
            "?" if memory_bytes is None else format_memory(memory_bytes),
            _BASES.get(call.estimate.basis, call.estimate.basis.value),
        )
    return table


def of_runs(call: CallHistory) -> PlainTable:
    """Lay out the runs of one program, one on each line."""
    table = PlainTable(
        "JOB",
        "SLICE",
        "PEAK",
        "CONTEXT",
        "REFUSED",
        "LASTED",
        "EXIT",
        no_wrap=_USAGE_ONE_LINE,
    )
    for run in call.runs:
        table.add_row(
            run.job_id,
            format_memory(run.slice_bytes),
            format_memory(run.peak_bytes),
            format_memory(run.context_bytes),
            str(run.refusals),
            format_duration(run.duration_seconds),
            "?" if run.exit_code is None else str(run.exit_code),
        )
    return table


def of_gpu_history(found: Iterable[GpuSeries], places: Mapping[str, str]) -> PlainTable:
    """Lay out the means of each GPU on each day of this machine's time zone, one on each line; see `Gpu.place`."""
    table = PlainTable("GPU", "DAY", "IN USE", "RESERVED", "USED", "MOST USED", "BUSY", no_wrap=_USAGE_ONE_LINE)
    for series in found:
        days: dict[str, list[int]] = {}
        for at, seconds in enumerate(series.at_seconds):
            days.setdefault(time.strftime("%Y-%m-%d", time.localtime(seconds)), []).append(at)
        for day, ats in days.items():
            busy = [percent for at in ats if (percent := series.busy_percent[at]) is not None]
            table.add_row(
                places.get(series.gpu_uuid, series.gpu_uuid),
                day,
                format_duration(60 * len(ats)),
                format_memory(sum(series.reserved_bytes[at] for at in ats) // len(ats)),
                format_memory(sum(series.used_bytes[at] for at in ats) // len(ats)),
                format_memory(max(series.used_bytes[at] for at in ats)),
                f"{sum(busy) / len(busy):.0f}%" if busy else "?",
            )
    return table


def of_waste(found: Sequence[Waste]) -> PlainTable:
    """Lay out the newest jobs, one on each line."""
    table = PlainTable(
        "JOB",
        "USER",
        "RESERVED",
        "USED",
        "TIMES",
        "SHOULD ASK",
        "PROGRAM",
        no_wrap=_USAGE_ONE_LINE,
    )
    for each in found[-_MOST_JOBS:]:
        table.add_row(
            each.job_id,
            user_name(each.owner_uid),
            format_memory(each.reserved_bytes),
            format_memory(each.peak_bytes),
            "" if each.factor is None else f"{each.factor:.1f}x",
            _advice(each),
            each.signature,
        )
    return table


def of_users(found: Sequence[Waste]) -> PlainTable:
    """Lay out each user's memory over time, one on each line."""
    table = PlainTable("USER", "JOBS", "RESERVED", "USED", "TIMES", no_wrap=_USAGE_ONE_LINE)
    for uid in sorted({each.owner_uid for each in found}):
        own = [each for each in found if each.owner_uid == uid]
        reserved, used = gib_hours(own)
        times = f"{reserved / used:.1f}x" if used else ""
        table.add_row(user_name(uid), str(len(own)), f"{reserved:.2f} GiB h", f"{used:.2f} GiB h", times)
    return table


def gib_hours(found: Iterable[Waste]) -> tuple[float, float]:
    """Return the reserved memory of ended jobs and their peaks, both multiplied by their durations, in GiB h."""
    # Running jobs have no duration yet, and their peak may still grow.
    ended = [(each, each.duration_seconds / 3600 / 2**30) for each in found if each.duration_seconds is not None]
    return sum(each.reserved_bytes * scale for each, scale in ended), sum(
        each.peak_bytes * scale for each, scale in ended
    )


def _advice(each: Waste) -> str:
    if each.was_too_small:
        return "more: it hit its limit"
    if each.is_greedy:
        return "auto: it took all it saw"
    if each.should_ask_bytes is not None:
        return format_memory(each.should_ask_bytes)
    return "it runs" if each.duration_seconds is None else "no GPU memory"
