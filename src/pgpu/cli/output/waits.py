"""Why jobs wait: the queue, the rule that decides for one job, with its figures, and when each starts, as far as that is known."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pgpu.cli.output.console import user_name
from pgpu.cli.output.gpu_tables import short_gpu_name, simulated_heading
from pgpu.cli.output.job_tables import reason_text, simulated_model, slice_text
from pgpu.cli.output.plain_table import NEVER_DROPPED, Column, FittedTable, PlainTable
from pgpu.client import GpuReport, QueueReport
from pgpu.model import Request
from pgpu.units import format_duration, format_memory, format_share

RULES = {
    "memory": "a slice is granted only where its memory is really free",
    "compute": "the shares on one GPU sum to 100 % at most",
    "sharing": "all jobs on one GPU share it in one mode",
    "turn": "it fits, but memory is kept for a job before it, which it would delay",
    "plan": "it fits, but its batch ends sooner if it starts later",
    "wave": "it fits, but the jobs of its batch start in even waves",
    "busy": "it fits, but jobs end earlier on average if it waits for a less busy GPU",
    "quota": "its owner's quota is used up",
    "quota turn": "its owner's quota has room, but is kept for another job of the same owner",
    "family": "of a new family few jobs run at once, until the first runs show what it needs",
    "crowd": "only so many jobs without a GPU run at a time",
    "dependency": "it waits for other jobs, or for a place of its array",
    "begin": "it was submitted to start no earlier (--begin)",
    "held": "a user holds it: pgpu release lets it start",
    "fits": "nothing keeps it: the next round starts it",
}
"""What each rule of a `QueueReport` means."""

PLACES = {
    "first": "no job goes before it",
    "reserved": "GPUs are kept for the job before it until that one starts",
    "late": "overdue jobs of lower priorities go first until they have had a quarter of the machine",
    "priority": "the job before it has a higher priority",
    "plan": "the job before it is of the plan for the soonest end",
    "shares": "its user has had {more} more of the whole machine, by weight, than the user before",
    "size": "its owner's job before it is smaller or older: a wait of ten minutes makes up for twice the size",
}
"""What each rule of a place in the queue means."""

DOUBTS = {
    "far": "only the first 200 jobs of the queue are looked at",
    "after": "the start of a job that it waits for is unknown itself",
    "held": "what holds it, such as a user or the limit of its array, has no predicted end",
    "no end": "no end of a job that pgpu knows of makes room for it",
    "overdue": "{job}, which ends before, has run longer than its earlier runs",
    "unmeasured": "{job} ends before, and no earlier run of its program has ended here",
}
"""What each doubt of a `QueueReport` means."""

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
_ROOM = (
    Column("GPU", NEVER_DROPPED, is_always=True),
    Column("GRANTABLE", 95, is_always=True),
    Column("GRANTED", 90, is_always=True),
    Column("OUTSIDE", 80),
    Column("COMPUTE", 85),
    Column("MODE", 70),
    Column("NAME", 60, least=8, is_always=True),
)


def of_queue(reports: Iterable[QueueReport], *, is_uncut: bool, now_seconds: float | None = None) -> FittedTable:
    """Lay out waiting jobs, one on each line."""
    now = time.time() if now_seconds is None else now_seconds
    found = list(reports)
    models = [simulated_model(report.job) for report in found]
    table = FittedTable(_QUEUE, heading=simulated_heading(models), is_uncut=is_uncut)
    for report in found:
        job = report.job
        table.add_row(
            report.rule if report.position is None else str(report.position),
            job.id,
            job.spec.name or "",
            user_name(job.owner_uid),
            str(job.request.priority),
            slice_text(job),
            "" if job.request.compute_share is None else format_share(job.request.compute_share),
            format_duration(now - job.created_at_seconds),
            start_text(report, now),
            reason_text(job),
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
            slice_text(job),
            report.rule if report.position is None else str(report.position),
            start_text(report, now),
            ",".join(places.get(uuid, uuid[:12]) for uuid in job.expected_gpu_uuids),
            reason_text(job),
        )
    return table


def start_text(report: QueueReport, now_seconds: float) -> str:
    """Return when a waiting job starts: `soon`, `in about 5m`, or where that would rest on an assumed duration its bounds.

    They are `in 5m or later`, `within 30m`, `in 5m to 30m`, or `unknown` without any.
    """
    expected_seconds = report.job.expected_start_seconds
    if expected_seconds is not None and expected_seconds - now_seconds < 1:
        return "soon"
    if expected_seconds is not None and report.is_start_known:
        return f"in about {format_duration(expected_seconds - now_seconds)}"
    first, last = (
        None if bound is None or bound - now_seconds < 1 else format_duration(bound - now_seconds)
        for bound in (report.not_before_seconds, report.by_seconds)
    )
    if first is None:
        return "unknown" if last is None else f"within {last}"
    return f"in {first} or later" if last is None else f"in {first} to {last}"


def start_basis(report: QueueReport) -> str:
    """Return what the expected start rests on, or why it is unknown."""
    if report.is_start_known:
        begin = "its begin, " if report.rule == "begin" else ""
        return f"from {begin}the durations of earlier runs and time limits"
    job = "a job" if report.doubted is None else f"job {report.doubted}"
    return DOUBTS.get(report.doubt, "for a reason that this version does not know").format(job=job)


def explain(report: QueueReport, count: int, gpus: Iterable[GpuReport]) -> Iterator[PlainTable]:
    """Lay out why one job waits, and what is free on each GPU.

    Args:
        report: Of the job.
        count: Number of waiting jobs with a place.
        gpus: Of its queue.
    """
    job, now_seconds = report.job, time.time()
    place = "no place" if report.position is None else f"place {report.position} of {count}"
    start = start_text(report, now_seconds)
    facts = PlainTable(has_header=False, heading=simulated_heading([job.gpu_model if job.is_simulated else None]))
    for name, text in (
        ("job", f"{job.id} {job.spec.name or ''}".rstrip()),
        (
            "waits",
            f"{format_duration(now_seconds - job.created_at_seconds)}, {place}, priority {job.request.priority}",
        ),
        ("needs", _needs(job.request)),
        *_order(report),
        ("rule", f"{report.rule}: {RULES[report.rule]}" if report.rule in RULES else "unknown to this version"),
        ("figures", job.reason or ""),
        ("starts", start if start == "soon" else f"{start}: {start_basis(report)}"),
    ):
        facts.add_row(name, text)
    yield facts
    if not job.request.is_without_gpu:
        yield _room_of(gpus)


def _order(report: QueueReport) -> Iterator[tuple[str, str]]:
    # None of a held job, of one without a GPU, and from an older server.
    if report.place_rule in PLACES:
        more = format_duration(report.place_seconds or 0.0)
        yield "order", f"{report.place_rule}: {PLACES[report.place_rule].format(more=more)}"


def _needs(request: Request) -> str:
    if request.is_without_gpu:
        return "no GPU"
    where = "one GPU" if request.gpu_count == 1 else f"each of {request.gpu_count} GPUs"
    share = f", {format_share(request.compute_share)} of its time" if request.compute_share else ""
    limit = "" if request.time_limit_seconds is None else f", for {format_duration(request.time_limit_seconds)} at most"
    return f"{format_memory(request.memory_bytes)} on {where}{share}, {request.sharing.value}{limit}"


def _room_of(gpus: Iterable[GpuReport]) -> FittedTable:
    table = FittedTable(_ROOM)
    for each in gpus:
        known_bytes = [outsider.used_bytes or 0 for outsider in each.outsiders]
        table.add_row(
            each.gpu.place,
            format_memory(max(0, each.capacity_bytes - each.granted_bytes)),
            format_memory(each.granted_bytes),
            format_memory(sum(known_bytes)) if known_bytes else "",
            format_share(each.granted_compute) if each.granted_compute else "",
            "" if each.sharing is None else each.sharing.value,
            short_gpu_name(each.gpu.name),
        )
    return table
