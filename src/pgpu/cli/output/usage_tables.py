"""Tables of earlier runs: programs with their runs, the minutes of GPUs, what users had, and reserved memory beside what was used."""

import time
from collections.abc import Iterable, Sequence

from pgpu.advising.memory_demand import Basis
from pgpu.cli.output.console import user_name
from pgpu.cli.output.gpu_tables import short_gpu_name, simulated_heading
from pgpu.cli.output.plain_table import NEVER_DROPPED, Column, FittedTable, PlainTable
from pgpu.client import CallHistory, UsageReport, UserShare, Waste
from pgpu.model import SIMULATED_PREFIX, Gpu, GpuSeries
from pgpu.units import GIB, format_duration, format_memory

_MOST_JOBS = 40
"""How many jobs `pgpu waste` lists, the newest ones."""

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

_USAGE = (
    Column("USER", NEVER_DROPPED, is_always=True),
    Column("RUNS", 70, is_always=True),
    Column("GPU HOURS", 95, is_always=True),
    Column("GIB HOURS", 90, is_always=True),
    Column("USED GIB HOURS", 60, is_always=True),
    Column("WASTE", 80, is_always=True),
    Column("GPU HOURS QUOTA", 85),
)

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
    Basis.FAMILY: "calls that differ in numbers",
    Basis.PROGRAM: "other calls of the program",
    Basis.SUFFICED: "it sufficed before",
    Basis.UNKNOWN: "unknown: measured when it runs",
}


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


def of_usage(reports: Sequence[UsageReport], *, is_uncut: bool = False) -> FittedTable:
    """Lay out the usage of users, one on each line."""
    table = FittedTable(_USAGE, is_uncut=is_uncut)
    for report in reports:
        usage, quota = report.usage, report.quota
        reserved, used = (each / 3600 / GIB for each in (usage.byte_seconds, usage.used_byte_seconds))
        table.add_row(
            user_name(usage.uid),
            str(usage.runs),
            f"{usage.gpu_seconds / 3600:.2f}",
            f"{reserved:.2f}",
            f"{used:.2f}",
            f"{1 - used / reserved:.0%}" if reserved else "",
            "" if quota is None else f"{quota.used:.2f} of {quota.most:g} this {quota.period}",
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


def of_shares(found: Sequence[UserShare]) -> PlainTable:
    """Lay out the users of a queue, one on each line, the next one first, each with the figure that decides its turn."""
    table = PlainTable("USER", "WEIGHT", "HOLDS", "WAITING", "TURN")
    for place, each in enumerate(found):
        if each.behind_seconds is None:
            turn = "no job of it waits for other jobs"
        elif not place:
            turn = "next: it has had least of the machine, by weight"
        else:
            turn = f"later: it has had {format_duration(each.behind_seconds)} more of the whole machine, by weight"
        name = "another user" if each.uid < 0 else user_name(each.uid)
        table.add_row(name, f"{each.weight:g}", f"{each.held_share:.0%}", str(each.waiting), turn)
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
