"""The table of jobs, and how a job's state, reason and memory read in any table.

Only verbs that print a table import this module.
"""

import shlex
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache

from pgpu.cli.output.console import user_name
from pgpu.cli.output.gpu_tables import simulated_heading
from pgpu.cli.output.plain_table import NEVER_DROPPED, Column, FittedTable, Styled
from pgpu.client import JobReport
from pgpu.model import Job, JobSpec, JobState, SharingMode
from pgpu.units import format_duration, format_memory, format_share, format_use

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
    Column("LEFT", 50),
    Column("IMAGE", 15, least=12),
    Column("COMMAND", 35, least=16, is_always=True),
)

_STATE_STYLES = {
    JobState.WAITING: "yellow",
    JobState.STARTING: "cyan",
    JobState.RUNNING: "green",
    JobState.EXITED: "dim",
    JobState.FAILED: "red",
    JobState.CANCELLED: "dim",
}


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
        "REASON": reason_text(job) if report.count == 1 else f"{report.count} of other users",
        "PEAK": _largest(use.peak_bytes for use in report.use) or _largest(filter(None, [job.peak_bytes])),
        "REFUSED": str(sum(use.refusals for use in report.use)) if report.use else "",
        "LEFT": _time_left(report),
        **_time_cells(report, turns, now_seconds),
        "IMAGE": spec.image or "",
        "COMMAND": _command_cell(spec, is_uncut),
    }


def _time_left(report: JobReport) -> str:
    limit_seconds, state = report.job.request.time_limit_seconds, report.job.state
    if limit_seconds is None or state.is_final:
        return ""
    return "none" if report.job.hit_time_limit else format_duration(limit_seconds - report.run_seconds)


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
        word = "leaving" if job.reclaimed_at_seconds is not None or job.is_aside else word
        word = "parked" if job.parked_at_seconds is not None else word
        return word, job.started_at_seconds or job.created_at_seconds
    return "held" if job.held_by_uid is not None else job.state.value, job.created_at_seconds


def reason_text(job: Job) -> str:
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


def slice_text(job: Job) -> str:
    if job.request.is_without_gpu:
        return "none"
    count = "" if job.request.gpu_count == 1 else f" x {job.request.gpu_count}"
    return format_memory(job.request.memory_bytes) + count


def _memory(report: JobReport) -> str:
    """Return used memory and the slice, `1.5/4 GiB`; of several slices the largest use."""
    if not report.use:
        return slice_text(report.job)
    most = max(report.use, key=lambda use: use.used_bytes)
    parts = {} if report.job.lease is None else {part.gpu_uuid: part for part in report.job.lease.slices}
    limit_bytes = parts[most.gpu_uuid].memory_bytes if most.gpu_uuid in parts else report.job.request.memory_bytes
    count = "" if report.job.request.gpu_count == 1 else f" x {report.job.request.gpu_count}"
    return format_use(most.used_bytes, limit_bytes) + count


def _largest(amounts: Iterable[int]) -> str:
    found = list(amounts)
    return format_memory(max(found)) if found else ""
