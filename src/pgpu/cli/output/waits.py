"""Why a job waits: the rule that decides, with its figures, and when it starts, as far as that is known."""

import time
from collections.abc import Iterable, Iterator

from pgpu.cli.output.plain_table import NEVER_DROPPED, Column, FittedTable, PlainTable
from pgpu.cli.output.tables import short_gpu_name, simulated_heading, start_text
from pgpu.client import GpuReport, QueueReport
from pgpu.model import Request
from pgpu.scheduling.forecast import MOST_JOBS
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
    "crowd": "only so many jobs without a GPU run at a time",
    "held": "it waits for other jobs, or for a place of its array",
    "fits": "nothing keeps it: the next round starts it",
}
"""What each rule of a `QueueReport` means."""

DOUBTS = {
    "far": f"only the first {MOST_JOBS} jobs of the queue are looked at",
    "after": "the start of a job that it waits for is unknown itself",
    "held": "what holds it, such as the limit of its array, has no predicted end",
    "no end": "no end of a job that pgpu knows of makes room for it",
    "overdue": "{job}, which ends before, has run longer than its earlier runs",
    "unmeasured": "{job} ends before, and no earlier run of its program has ended here",
}
"""What each doubt of a `QueueReport` means."""

_ROOM = (
    Column("GPU", NEVER_DROPPED, is_always=True),
    Column("GRANTABLE", 95, is_always=True),
    Column("GRANTED", 90, is_always=True),
    Column("OUTSIDE", 80),
    Column("COMPUTE", 85),
    Column("MODE", 70),
    Column("NAME", 60, least=8, is_always=True),
)


def start_basis(report: QueueReport) -> str:
    """Return what the expected start rests on, or why it is unknown."""
    if report.is_start_known:
        return "from the durations of earlier runs"
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
    place = "held" if report.position is None else f"{report.position} of {count}"
    start = start_text(report, now_seconds)
    facts = PlainTable(has_header=False, heading=simulated_heading([job.gpu_model if job.is_simulated else None]))
    for name, text in (
        ("job", f"{job.id} {job.spec.name or ''}".rstrip()),
        (
            "waits",
            f"{format_duration(now_seconds - job.created_at_seconds)}, place {place}, priority {job.request.priority}",
        ),
        ("needs", _needs(job.request)),
        ("rule", f"{report.rule}: {RULES[report.rule]}" if report.rule in RULES else "unknown to this version"),
        ("figures", job.reason or ""),
        ("starts", start if start == "soon" else f"{start}: {start_basis(report)}"),
    ):
        facts.add_row(name, text)
    yield facts
    if not job.request.is_without_gpu:
        yield _room_of(gpus)


def _needs(request: Request) -> str:
    if request.is_without_gpu:
        return "no GPU"
    where = "one GPU" if request.gpu_count == 1 else f"each of {request.gpu_count} GPUs"
    share = f", {format_share(request.compute_share)} of its time" if request.compute_share else ""
    return f"{format_memory(request.memory_bytes)} on {where}{share}, {request.sharing.value}"


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
