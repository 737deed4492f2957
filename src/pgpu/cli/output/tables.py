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
from pgpu.cli.output.plain_table import NEVER_DROPPED, Column, FittedTable, PlainTable, Styled
from pgpu.client import CallHistory, GpuReport, JobReport, QueueReport, Waste
from pgpu.model import SIMULATED_PREFIX, Gpu, GpuSeries, Job, JobSpec, JobState, Outsider, SharingMode
from pgpu.units import format_duration, format_memory, format_share, format_use

if TYPE_CHECKING:
    from pgpu.kubernetes.pod_shares import SeenShare

_COMMAND_CHARACTERS = 32
_JOBS = (
    Column("JOB", NEVER_DROPPED, is_always=True, is_id=True),
    Column("NAME", 68, least=8),
    Column("USER", 70, least=6, is_always=True),
    Column("GPU", 90, is_always=True),
    Column("MEMORY", 95, is_always=True),
    Column("SHARE", 65),
    Column("STATE", NEVER_DROPPED, is_always=True),
    # Not dropped on any terminal: SECURITY.md promises that a limit which does not bind is shown.
    Column("LIMIT", NEVER_DROPPED),
    Column("SIMULATED", NEVER_DROPPED, least=8),
    Column("AGE", 75, is_always=True),
    Column("REASON", 80, least=14),
    Column("PEAK", 30),
    Column("REFUSED", 25),
    Column("GOT 1s/10s/60s", 20),
    Column("MODE", 40),
    Column("TURN", 45),
    Column("IMAGE", 15, least=12),
    Column("COMMAND", 35, least=16, is_always=True),
)
_QUEUE = (
    Column("PLACE", 95, is_always=True),
    Column("JOB", NEVER_DROPPED, is_always=True, is_id=True),
    Column("NAME", 60, least=8),
    Column("USER", 70, least=6, is_always=True),
    Column("PRIORITY", 50, is_always=True),
    Column("MEMORY", 90, is_always=True),
    Column("SHARE", 55),
    Column("WAITED", 75, is_always=True),
    Column("STARTS", 85, is_always=True),
    Column("REASON", 80, least=14, is_always=True),
)
_DRY_RUN = (
    Column("JOB", NEVER_DROPPED, least=8, is_always=True),
    Column("MEMORY", 90, is_always=True),
    Column("PLACE", 95, is_always=True),
    Column("STARTS", 85, is_always=True),
    Column("GPU", 70, is_always=True),
    Column("REASON", 80, least=14, is_always=True),
)
_GPUS = (
    Column("GPU", NEVER_DROPPED, is_always=True),
    Column("NAME", 70, least=12, is_always=True),
    Column("UUID", 20, is_always=True),
    Column("MEMORY used/all", 95, is_always=True),
    Column("GRANTED", 85, is_always=True),
    Column("GRANTABLE", 80, is_always=True),
    Column("OUTSIDE", 90),
    Column("BUSY", 75, is_always=True),
    Column("COMPUTE", 55),
    Column("MODE", 50),
    Column("JOBS", 65, is_always=True),
    Column("ENFORCER", 60, is_always=True),
)
_CALLS = (
    Column("PROGRAM", NEVER_DROPPED, least=20, is_always=True),
    Column("GPU", 60, least=10, is_always=True),
    Column("RUNS", 70, is_always=True),
    Column("PEAK", 90, is_always=True),
    Column("LASTS", 80, is_always=True),
    Column("LAST RUN", 65, is_always=True),
    Column("AUTO", 85, is_always=True),
    Column("BY", 50, least=8, is_always=True),
)
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
    *(
        "LASTS",
        "LASTED",
        "LAST RUN",
        "RESERVED PER GPU",
        "USED PER GPU",
        "AUTO",
        "SHOULD ASK",
        "DAY",
        "IN USE",
        "MOST USED",
        "BUSY",
    ),
}
"""Columns of earlier runs that are never wrapped; programs, GPUs and explanations are."""

_BASES = {
    Basis.HISTORY: "history",
    Basis.GROWTH: "growth with a number",
    Basis.SUFFICED: "it sufficed before",
    Basis.UNKNOWN: "unknown: measured when it runs",
}


def simulated_heading(models: Iterable[str | None]) -> str | None:
    """Return the line above a table of what is on simulated GPUs; None if nothing is.

    Args:
        models: Of the rows, None for a real GPU.
    """
    found = sorted({model for model in models if model is not None})
    return f"simulated GPUs ({', '.join(found)}): kernels compute nothing" if found else None


def of_jobs(reports: Sequence[JobReport], *, is_uncut: bool, now_seconds: float | None = None) -> FittedTable:
    """Lay out jobs, one on each line, without empty columns."""
    now = time.time() if now_seconds is None else now_seconds
    # GPUs on which a job is held: there jobs take turns, and one that is not held has the turn.
    turns = {each.gpu_uuid for report in reports for each in report.time if each.is_held}
    # Jobs without a GPU compute as anywhere; a column tells simulated jobs from others where both are in one table.
    models = [simulated_model(report.job) for report in reports]
    is_mixed = any(models) and any(
        not model and not report.job.request.is_without_gpu for model, report in zip(models, reports, strict=True)
    )
    table = FittedTable(_JOBS, heading=simulated_heading(models), is_uncut=is_uncut)
    for model, report in zip(models, reports, strict=True):
        cells = job_cells(report, now, turns, is_uncut=is_uncut)
        cells["SIMULATED"] = model or "" if is_mixed else ""
        table.add_row(*(cells[column.title] for column in _JOBS))
    return table


def simulated_model(job: Job) -> str | None:
    return job.gpu_model if job.is_simulated else None


def job_cells(report: JobReport, now_seconds: float, turns: set[str], *, is_uncut: bool) -> dict[str, Styled | str]:
    job, spec = report.job, report.job.spec
    granted = [] if job.lease is None else [piece.gpu_uuid[:12] for piece in job.lease.slices]
    is_advisory = job.lease is not None and job.lease.is_advisory and not job.state.is_final
    state, since_seconds = _state(job)
    return {
        "JOB": job.id,
        "NAME": spec.name or "",
        "USER": "" if job.is_anonymous else user_name(job.owner_uid),
        "GPU": ",".join(report.gpus or granted),
        "MEMORY": _memory(report),
        "STATE": Styled(state, _STATE_STYLES[job.state]),
        "LIMIT": Styled("advisory", "red") if is_advisory else "",
        # In its largest unit: an age is compared at a glance.
        "AGE": "" if job.is_anonymous else format_duration(now_seconds - since_seconds).partition(" ")[0],
        "REASON": _reason(job),
        "PEAK": _largest(use.peak_bytes for use in report.use) or _largest(filter(None, [job.peak_bytes])),
        "REFUSED": str(sum(use.refusals for use in report.use)) if report.use else "",
        **_time_cells(report, turns, now_seconds),
        "IMAGE": spec.image or "",
        "COMMAND": _command_cell(spec, is_uncut),
    }


def _command_cell(spec: JobSpec, is_uncut: bool) -> str:
    # The command of a replica and of an end are pgpu's own; what they are for is more useful.
    if spec.notifies is not None:
        return f"notify of {spec.notifies}" + (f": {spec.command[-1]}" if is_uncut else "")
    return _command(spec.command, is_uncut) if spec.serves is None or is_uncut else f"serves {spec.serves}"


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


def of_queue(reports: Iterable[QueueReport], *, is_uncut: bool, now_seconds: float | None = None) -> FittedTable:
    """Lay out waiting jobs, one on each line."""
    now = time.time() if now_seconds is None else now_seconds
    found = list(reports)
    models = [simulated_model(report.job) for report in found]
    table = FittedTable(_QUEUE, heading=simulated_heading(models), is_uncut=is_uncut)
    for report in found:
        job = report.job
        table.add_row(
            "held" if report.position is None else str(report.position),
            job.id,
            job.spec.name or "",
            user_name(job.owner_uid),
            str(job.request.priority),
            _slice(job),
            "" if job.request.compute_share is None else format_share(job.request.compute_share),
            format_duration(now - job.created_at_seconds),
            start_text(report, now),
            _reason(job),
        )
    return table


def of_dry_run(
    reports: Sequence[QueueReport], places: Mapping[str, str], now_seconds: float | None = None
) -> FittedTable:
    """Lay out the jobs of a submission that was not made, by name or number, one on each line.

    Args:
        reports: In their order.
        places: Index of each GPU by UUID, as nvidia-smi prints it.
        now_seconds: Seconds since the epoch.
    """
    now = time.time() if now_seconds is None else now_seconds
    table = FittedTable(_DRY_RUN, heading=simulated_heading(simulated_model(report.job) for report in reports))
    for number, report in enumerate(reports, 1):
        job = report.job
        table.add_row(
            job.spec.name or str(number if job.place.array_index is None else job.place.array_index),
            _slice(job),
            "held" if report.position is None else str(report.position),
            start_text(report, now),
            ",".join(places.get(uuid, uuid[:12]) for uuid in job.expected_gpu_uuids),
            _reason(job),
        )
    return table


def start_text(report: QueueReport, now_seconds: float) -> str:
    """Return when a waiting job starts: `soon`, `in about 5m`, or `unknown` where that would rest on an assumed duration."""
    expected_seconds = report.job.expected_start_seconds
    if expected_seconds is None:  # no known event would let it start
        return "unknown"
    left_seconds = expected_seconds - now_seconds
    if left_seconds < 1:
        return "soon"
    return f"in about {format_duration(left_seconds)}" if report.is_start_known else "unknown"


def short_gpu_name(name: str) -> str:
    return name.removeprefix("NVIDIA ").removeprefix("GeForce ")


def of_gpus(reports: Iterable[GpuReport], *, is_uncut: bool = False) -> FittedTable:
    """Lay out GPUs, one on each line."""
    found = list(reports)
    heading = simulated_heading(report.gpu.name if report.gpu.is_simulated else None for report in found)
    table = FittedTable(_GPUS, heading=heading, is_uncut=is_uncut)
    for report in found:
        gpu = report.gpu
        # The driver does not report the memory of every process; a partial sum would mislead.
        known = [each.used_bytes for each in report.outsiders if each.used_bytes is not None]
        held = format_memory(sum(known)) if len(known) == len(report.outsiders) else "?"
        outside_cell = f"{held} ({len(report.outsiders)})" if report.outsiders else ""
        table.add_row(
            gpu.place,
            short_gpu_name(gpu.name),
            gpu.uuid,
            format_use(report.used_bytes, gpu.memory_bytes),
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
        *("NAMESPACE", "POD", "CONTAINER", "CLAIM", "GPU", "USED", "LIMIT", "PEAK", "REFUSED", "COMPUTE", "JOB"),
        heading=simulated_heading((each.gpu or "").partition(" ")[2] if each.is_simulated else None for each in seen),
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


def _state(job: Job) -> tuple[str, float]:
    """Return the state in a word or two, and since when it is in it."""
    if job.state.is_final:
        word = job.state.value
        if job.state is JobState.EXITED and job.exit_code is not None:
            word = f"exited {job.exit_code}"
        return word, job.finished_at_seconds or job.created_at_seconds
    if job.state is JobState.RUNNING and not job.is_anonymous:
        # The last one that holds is shown: a parked job may have been idle and reclaimed before.
        word = "running" if job.suspended_by is None else "suspended"
        word = "idle" if job.is_offered else word
        word = "leaving" if job.reclaimed_at_seconds is not None else word
        word = "parked" if job.parked_at_seconds is not None else word
        return word, job.started_at_seconds or job.created_at_seconds
    return job.state.value, job.created_at_seconds


def _reason(job: Job) -> str:
    """Return why a job is in its state, with what the other columns show left out."""
    if job.is_anonymous:
        return "another user's"
    if job.state is JobState.CANCELLED and job.wait_timed_out:
        return "not granted in time"
    why = job.error or job.reason or job.warning or ""
    if job.suspended_by is not None and not job.state.is_final:
        return f"for job {job.suspended_by}"
    memory = format_memory(job.request.memory_bytes)
    return (
        why.removeprefix(f"waits for {memory} on one GPU: ").removeprefix("waits for ").removeprefix("waits its turn: ")
    )


def _slice(job: Job) -> str:
    if job.request.is_without_gpu:
        return "none"
    count = "" if job.request.gpu_count == 1 else f" x {job.request.gpu_count}"
    return format_memory(job.request.memory_bytes) + count


def _memory(report: JobReport) -> str:
    """Return used memory and the slice, `1.5/4 GiB`; of several slices the largest use."""
    if not report.use:
        return _slice(report.job)
    most = max(report.use, key=lambda use: use.used_bytes)
    parts = {} if report.job.lease is None else {part.gpu_uuid: part for part in report.job.lease.slices}
    limit_bytes = parts[most.gpu_uuid].memory_bytes if most.gpu_uuid in parts else report.job.request.memory_bytes
    count = "" if report.job.request.gpu_count == 1 else f" x {report.job.request.gpu_count}"
    return format_use(most.used_bytes, limit_bytes) + count


def _largest(amounts: Iterable[int]) -> str:
    found = list(amounts)
    return format_memory(max(found)) if found else ""


def of_calls(calls: Iterable[CallHistory], *, is_uncut: bool = False, now_seconds: float | None = None) -> FittedTable:
    """Lay out programs with the summary of their runs, one on each line."""
    from statistics import median

    now = time.time() if now_seconds is None else now_seconds
    found = list(calls)
    table = FittedTable(_CALLS, heading=_heading_of_history(call.gpu_name for call in found), is_uncut=is_uncut)
    # Where all are simulated the heading says so; among real GPUs each row does.
    all_simulated = all(call.gpu_name.startswith(SIMULATED_PREFIX) for call in found)
    for call in found:
        memory_bytes = call.estimate.memory_bytes
        table.add_row(
            call.signature,
            short_gpu_name(call.gpu_name.removeprefix(SIMULATED_PREFIX))
            if all_simulated
            else short_gpu_name(call.gpu_name),
            str(len(call.runs)),
            format_memory(max(run.peak_bytes for run in call.runs)),
            format_duration(median(run.duration_seconds for run in call.runs)),
            f"{format_duration(now - call.runs[-1].ended_at_seconds)} ago",
            "?" if memory_bytes is None else format_memory(memory_bytes),
            _BASES.get(call.estimate.basis, call.estimate.basis.value),
        )
    return table


def _heading_of_history(gpu_names: Iterable[str]) -> str | None:
    return simulated_heading(
        name.removeprefix(SIMULATED_PREFIX) if name.startswith(SIMULATED_PREFIX) else None for name in gpu_names
    )


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


def of_gpu_history(found: Iterable[GpuSeries], gpus: Iterable[Gpu]) -> PlainTable:
    """Lay out the means of each GPU on each day of this machine's time zone, one on each line."""
    known = list(gpus)
    places = {gpu.uuid: gpu.place for gpu in known}
    table = PlainTable(
        *("GPU", "DAY", "IN USE", "RESERVED", "USED", "MOST USED", "BUSY"),
        no_wrap=_USAGE_ONE_LINE,
        heading=simulated_heading(gpu.name if gpu.is_simulated else None for gpu in known),
    )
    for series in sorted(found, key=lambda each: places.get(each.gpu_uuid, each.gpu_uuid)):
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
        heading=_heading_of_history(each.gpu_name for each in found),
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
    """Lay out each user's memory over time, one on each line; that of a job on several GPUs counts once."""
    table = PlainTable("USER", "JOBS", "RESERVED PER GPU", "USED PER GPU", "TIMES", no_wrap=_USAGE_ONE_LINE)
    for uid in sorted({each.owner_uid for each in found}):
        own = [each for each in found if each.owner_uid == uid]
        reserved, used = gib_hours(own)
        times = f"{reserved / used:.1f}x" if used else ""
        table.add_row(user_name(uid), str(len(own)), f"{reserved:.2f} GiB h", f"{used:.2f} GiB h", times)
    return table


def gib_hours(found: Iterable[Waste]) -> tuple[float, float]:
    """Return the memory that ended jobs reserved on each GPU and their peaks, both multiplied by their durations, in GiB h."""
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
