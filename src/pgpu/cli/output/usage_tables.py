"""Tables of `pgpu history` and `pgpu waste`."""

import pwd
import statistics
import time
from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from pgpu.cli.output.plain_table import PlainTable
from pgpu.client import CallHistory, Waste
from pgpu.model import OWNER_NAMES
from pgpu.scheduling.demand import Basis
from pgpu.units import format_duration, format_memory

_MOST_JOBS = 40
_ONE_LINE = {
    *("JOB", "JOBS", "USER", "RUNS", "SLICE", "RESERVED", "USED", "TIMES", "PEAK", "CONTEXT", "REFUSED", "EXIT"),
    *("LASTS", "LASTED", "LAST RUN", "AUTO", "SHOULD ASK"),
}
"""Columns that are never wrapped; programs, GPUs and explanations are."""

_BASES = {
    Basis.HISTORY: "history",
    Basis.GROWTH: "growth with a number",
    Basis.SUFFICED: "it sufficed before",
    Basis.UNKNOWN: "unknown: measured when it runs",
}


def of_calls(calls: Iterable[CallHistory], now_seconds: float | None = None) -> Table:
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
        no_wrap=_ONE_LINE,
    )
    for call in calls:
        memory_bytes = call.estimate.memory_bytes
        table.add_row(
            Text(call.signature),
            call.gpu_name,
            str(len(call.runs)),
            format_memory(max(run.peak_bytes for run in call.runs)),
            format_duration(statistics.median(run.duration_seconds for run in call.runs)),
            f"{format_duration(now - call.runs[-1].ended_at_seconds)} ago",
            "?" if memory_bytes is None else format_memory(memory_bytes),
            _BASES.get(call.estimate.basis, call.estimate.basis.value),
        )
    return table


def of_runs(call: CallHistory) -> Table:
    """Lay out the runs of one program, one on each line."""
    table = PlainTable(
        "JOB",
        "SLICE",
        "PEAK",
        "CONTEXT",
        "REFUSED",
        "LASTED",
        "EXIT",
        no_wrap=_ONE_LINE,
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


def of_waste(found: Sequence[Waste]) -> Table:
    """Lay out the newest jobs, one on each line."""
    table = PlainTable(
        "JOB",
        "USER",
        "RESERVED",
        "USED",
        "TIMES",
        "SHOULD ASK",
        "PROGRAM",
        no_wrap=_ONE_LINE,
    )
    for each in found[-_MOST_JOBS:]:
        table.add_row(
            each.job_id,
            user_name(each.owner_uid),
            format_memory(each.reserved_bytes),
            format_memory(each.peak_bytes),
            "" if each.factor is None else f"{each.factor:.1f}x",
            _advice(each),
            Text(each.signature),
        )
    return table


def of_users(found: Sequence[Waste]) -> Table:
    """Lay out each user's memory over time, one on each line."""
    table = PlainTable("USER", "JOBS", "RESERVED", "USED", "TIMES", no_wrap=_ONE_LINE)
    for uid in sorted({each.owner_uid for each in found}):
        theirs = [each for each in found if each.owner_uid == uid]
        reserved, used = gib_hours(theirs)
        times = f"{reserved / used:.1f}x" if used else ""
        table.add_row(user_name(uid), str(len(theirs)), f"{reserved:.2f} GiB h", f"{used:.2f} GiB h", times)
    return table


def gib_hours(found: Iterable[Waste]) -> tuple[float, float]:
    """Return the reserved memory of ended jobs and their peaks, both multiplied by their durations, in GiB h."""
    ended = [(each, each.duration_seconds / 3600 / 2**30) for each in found if each.duration_seconds is not None]
    return sum(each.reserved_bytes * scale for each, scale in ended), sum(
        each.peak_bytes * scale for each, scale in ended
    )


def user_name(uid: int) -> str:
    """Return a user's name, or the number of a user without one."""
    if uid in OWNER_NAMES:
        return OWNER_NAMES[uid]
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _advice(each: Waste) -> str:
    if each.was_too_small:
        return "more: it hit its limit"
    if each.is_greedy:
        return "auto: it took all it saw"
    if each.should_ask_bytes is not None:
        return format_memory(each.should_ask_bytes)
    return "it runs" if each.duration_seconds is None else "no GPU memory"
