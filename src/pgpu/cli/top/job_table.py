"""The table of jobs: its columns for a width, its rows, their order and the filter. Pure.

Widths depend on the terminal alone, not on the cells, so that a changed cell changes no other one. A job that waits shows its
expected start, as far as it is known, and its reason where running ones have their sparklines.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pgpu.cli.output.console import user_name, visible
from pgpu.cli.output.job_tables import job_cells, simulated_model
from pgpu.cli.output.plain_table import Styled, cell_width, cut
from pgpu.cli.output.waits import start_basis, start_text
from pgpu.cli.top.drawing import Line, Span, joined, sparkline, tinted
from pgpu.cli.top.picture import Picture
from pgpu.client import JobReport
from pgpu.model import JobState
from pgpu.palette import DARK
from pgpu.structs import Struct

_NEVER_DROPPED = {"JOB": 8, "NAME": 8, "GPU": 3, "MEMORY": 14, "STATE": 9}
_OPTIONAL = (("AGE", 7), ("USER", 8), ("MEM", 6), ("TIME", 6), ("SHARE", 6), ("REASON", 16))
"""What is added with its least width while there is room, in this order."""

_GROWTH = (
    *(("NAME", 12), ("MEM", 8), ("TIME", 8), ("REASON", 30)),
    *(("MEMORY", 18), ("NAME", 20), ("MEM", 16), ("TIME", 16), ("REASON", 1000), ("NAME", 1000)),
)
"""What then becomes wider, up to a width."""

_ORDER = (
    *("JOB", "NAME", "USER", "GPU", "MEMORY", "SHARE", "STATE", "LIMIT", "SIMULATED", "AGE"),
    *("MEM", "TIME", "REASON"),
)
_RIGHT = {"GPU", "MEMORY", "SHARE", "AGE"}
_COLOURS = {"yellow": DARK.warning, "cyan": DARK.accent, "green": DARK.good, "red": DARK.bad, "dim": DARK.muted}
_SELECTED = tinted(DARK.accent)


class SortOrder(Struct, frozen=True):
    """One order of the jobs."""

    key: str
    """The key that chooses it; empty for one that only cycling reaches."""

    name: str
    sort_key: Callable[[JobReport], Any]


SORT_ORDERS = (
    SortOrder("", "GPU", lambda report: (not report.gpus, report.gpus, report.job.state is JobState.WAITING)),
    SortOrder("u", "use", lambda report: -sum(use.used_bytes for use in report.use)),
    SortOrder("m", "memory asked", lambda report: -report.job.request.memory_bytes * report.job.request.gpu_count),
    SortOrder("a", "age", lambda report: report.job.created_at_seconds),
    SortOrder("n", "name", lambda report: (report.job.is_anonymous, report.job.spec.name or "", report.job.id)),
    SortOrder("", "user", lambda report: (report.job.is_anonymous, user_name(report.job.owner_uid))),
)


def rows(picture: Picture, order: SortOrder, pattern: str) -> list[JobReport]:
    """Return the jobs that match a filter, sorted; equal ones stay in the order of their submission.

    Args:
        picture: What is shown.
        order: Of the jobs.
        pattern: Words that must all occur in a job's id, name, user, state, GPU, image or command, in any case.
    """
    words = pattern.lower().split()
    return sorted(
        (report for report in picture.jobs if not words or all(word in _searched(report) for word in words)),
        key=order.sort_key,
    )


def _searched(report: JobReport) -> str:
    job = report.job
    user = "" if job.is_anonymous else user_name(job.owner_uid)
    parts = (job.id, job.spec.name or "", user, job.state.value, ",".join(report.gpus), job.spec.image or "")
    return " ".join((*parts, *job.spec.command)).lower()


def widths(picture: Picture, width: int) -> dict[str, int]:
    """Return the columns that fit a terminal, with their widths; an advisory limit and a simulated job always have theirs."""
    found = dict(_NEVER_DROPPED)
    if any(report.job.lease is not None and report.job.lease.is_advisory for report in picture.jobs):
        found["LIMIT"] = 8
    models = {simulated_model(report.job) for report in picture.jobs if not report.job.request.is_without_gpu}
    if len(models) > 1:
        found["SIMULATED"] = 9

    def room() -> int:
        return width - sum(found.values()) - len(found) + 1

    for column, least in _OPTIONAL:
        if room() <= least:
            break
        found[column] = least
    for column, most in _GROWTH:
        if column in found:
            found[column] += max(0, min(room(), most - found[column]))
    return {column: found[column] for column in _ORDER if column in found}


def titles(columns: Mapping[str, int]) -> Line:
    """Lay out the line above the rows."""
    words = {"MEM": "MEM USED", "TIME": "TIME GOT"}
    shown = {
        column: words[column] if width > len(column) + 4 and column in words else column
        for column, width in columns.items()
    }
    cells = (_padded(shown[column], column, width) for column, width in columns.items())
    return (Span(" ".join(cells), DARK.muted, is_bold=True),)


def row(
    report: JobReport,
    picture: Picture,
    columns: Mapping[str, int],
    colour: str | None,
    *,
    is_selected: bool,
) -> Line:
    """Lay out one job.

    Args:
        report: Of the job.
        picture: It is part of.
        columns: From `widths`.
        colour: Of its slices; None without any.
        is_selected: Whether it is the one that keys act on.
    """
    cells = job_cells(report, picture.at_seconds, set(), is_uncut=False)
    back = _SELECTED if is_selected else DARK.paper
    spans: list[Span] = []
    trends = columns.get("MEM", 0) + columns.get("TIME", 0) + 1
    samples = picture.samples.get(report.job.id, ())
    reason = _text(cells["REASON"]) or (_text(cells["COMMAND"]) if samples else "")
    wait = picture.waits.get(report.job.id)
    if wait is not None and (start := start_text(wait, picture.at_seconds)) != "unknown":
        reason = f"{start}: {reason}"
    for column, width in columns.items():
        if not samples and column in {"MEM", "TIME", "REASON"}:
            if column == "MEM":
                rest = trends + (1 + columns["REASON"] if "REASON" in columns else 0)
                spans.append(Span(_padded(cut(visible(reason), rest), column, rest), DARK.muted, back))
            continue
        text, tone = _cell(column, cells, samples, reason, width)
        if column == "GPU" and colour is not None:
            tone = colour
        spans.append(Span(_padded(cut(visible(text), width), column, width), tone, back))
    gap = Span(" ", back=back)
    return joined(part for number, span in enumerate(spans) for part in ((gap, span) if number else (span,)))


def _cell(
    column: str,
    cells: Mapping[str, Styled | str],
    samples: Sequence[tuple[float | None, float | None]],
    reason: str,
    width: int,
) -> tuple[str, str]:
    """Return the text and the colour of a cell."""
    if column == "MEM":
        return sparkline([memory for memory, _ in samples], width), DARK.used
    if column == "TIME":
        return sparkline([share for _, share in samples], width), DARK.share
    if column == "REASON":
        return reason, DARK.muted
    cell = cells[column]
    if column == "JOB":
        return _text(cell)[:width], DARK.ink
    return _text(cell), _COLOURS[cell.style] if isinstance(cell, Styled) else DARK.ink


def _text(cell: Styled | str) -> str:
    return cell if isinstance(cell, str) else cell.text


def _padded(text: str, column: str, width: int) -> str:
    padding = " " * (width - cell_width(text))
    return padding + text if column in _RIGHT else text + padding


def facts(report: JobReport, picture: Picture) -> list[tuple[str, str]]:
    """Return what is known of a job, as names and values."""
    job = report.job
    cells = job_cells(report, picture.at_seconds, set(), is_uncut=True)
    names = {
        "JOB": "job",
        "NAME": "name",
        "USER": "user",
        "STATE": "state",
        "AGE": "for",
        "REASON": "reason",
        "GPU": "GPU",
        "MEMORY": "memory",
        "PEAK": "peak",
        "REFUSED": "refused allocations",
        "SHARE": "share asked",
        "GOT 1s/10s/60s": "share got 1s/10s/60s",
        "TURN": "turn",
        "MODE": "mode",
        "LIMIT": "limit",
        "IMAGE": "image",
        "COMMAND": "command",
    }
    found = [(name, text) for column, name in names.items() if (text := _text(cells[column]))]
    if (wait := picture.waits.get(job.id)) is not None:
        start = start_text(wait, picture.at_seconds)
        found.append(("starts", start if start == "soon" else f"{start}: {start_basis(wait)}"))
    if job.lease is not None and job.lease.is_advisory:
        found.append(("", "The job could remove its limit: see SECURITY.md, advisory leases."))
    if (model := simulated_model(job)) is not None:
        found.append(("simulated", f"{model}: kernels compute nothing"))
    return found
