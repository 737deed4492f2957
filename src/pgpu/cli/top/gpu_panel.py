"""The upper part of the view: heading, GPUs with their bars, and the history of the chosen one. Pure."""

import time
from collections.abc import Mapping, Sequence

from pgpu.cli.output.console import visible
from pgpu.cli.output.gpu_tables import simulated_heading
from pgpu.cli.output.job_tables import simulated_model
from pgpu.cli.output.plain_table import cell_width
from pgpu.cli.top.drawing import Line, Slice, Span, bar, buckets, chart, line_width, spread, tinted
from pgpu.cli.top.picture import Picture
from pgpu.client import GpuReport, JobReport
from pgpu.model import JobState
from pgpu.palette import DARK
from pgpu.units import GIB, format_duration

WIDE = 120
"""From this width on, the history of the chosen GPU is shown."""

_GPU_WIDTH = 38
_FEW = 2
_GAP = Span("  ")
_AXIS = 9
"""Places of the labels beside the chart."""

_HOT_CELSIUS = 85


def heading(picture: Picture, place: str, notes: str, width: int) -> list[Line]:
    """Lay out the first lines: where, how many jobs, and what is simulated.

    Args:
        picture: What is shown.
        place: Name of the machine or address of the server.
        notes: Order and filter of the jobs.
        width: In places.
    """
    running = sum(report.job.state in {JobState.RUNNING, JobState.STARTING} for report in picture.jobs)
    waiting = sum(report.count for report in picture.jobs if report.job.state is JobState.WAITING)
    left = [
        Span("pgpu top", is_bold=True),
        Span(f"  {running} running · {waiting} waiting"),
        Span(f"  {visible(notes)}  {visible(place)}", DARK.muted),
    ]
    lines = [spread(left, [Span(time.strftime("%H:%M:%S", time.localtime(picture.at_seconds)))], width)]
    models = [report.gpu.name if report.gpu.is_simulated else None for report in picture.gpus]
    simulated = simulated_heading((*models, *(simulated_model(report.job) for report in picture.jobs if not models)))
    if simulated is not None:
        lines.append(spread([Span(visible(simulated), DARK.warning)], [], width))
    if picture.problem:
        since = time.strftime("%H:%M:%S", time.localtime(picture.at_seconds))
        lines.append(spread([Span(f"as of {since}: {visible(picture.problem)}", DARK.bad)], [], width))
    elif not picture.gpus:
        lines.append(spread([Span("no GPU was found; `pgpu doctor` reports why", DARK.bad)], [], width))
    return lines


def panel(picture: Picture, colours: Mapping[str, str], chosen: int | None, width: int, height: int) -> list[Line]:
    """Lay out the GPUs, two lines for each, or one where there are too many for that.

    Args:
        picture: What is shown.
        colours: Of the slices by the ids of their jobs; others are grey.
        chosen: Place of the GPU whose name is marked; None for no mark.
        width: In places.
        height: Lines that two-line GPUs may take together.
    """
    count = len(picture.gpus)
    columns = 1 if count <= _FEW and width < WIDE else max(1, min(count, (width + 2) // (_GPU_WIDTH + 2)))
    each_width = (width - 2 * (columns - 1)) // columns
    is_short = 2 * -(-count // columns) > height
    blocks = []
    for number, report in enumerate(picture.gpus):
        slices = _slices_of(report, picture.jobs, colours)
        blocks.append(_gpu_lines(report, slices, each_width, is_chosen=number == chosen, is_short=is_short))
    lines: list[Line] = []
    for first in range(0, count, columns):
        for parts in zip(*blocks[first : first + columns], strict=True):
            line: Line = ()
            for part in parts:
                line = (*line, *((_GAP,) if line else ()), *part)
            lines.append(line)
    return lines


def _slices_of(report: GpuReport, jobs: Sequence[JobReport], colours: Mapping[str, str]) -> list[Slice]:
    found = []
    for each in jobs:
        use = {used.gpu_uuid: used.used_bytes for used in each.use}
        for part in () if each.job.lease is None else each.job.lease.slices:
            if part.gpu_uuid == report.gpu.uuid:
                used_bytes = use.get(part.gpu_uuid, 0)
                found.append(Slice(part.memory_bytes, used_bytes, colours.get(each.job.id, DARK.muted)))
    outside_bytes = sum(each.used_bytes or 0 for each in report.outsiders)
    return [*found, Slice(0, outside_bytes, DARK.bad)] if outside_bytes else found


def _gpu_lines(
    report: GpuReport, slices: Sequence[Slice], width: int, *, is_chosen: bool, is_short: bool
) -> list[Line]:
    gpu, sensors = report.gpu, report.sensors
    name = Span(f"GPU {gpu.place}", DARK.accent if is_chosen else DARK.ink, is_bold=True)
    busy = "" if report.utilisation_percent is None else f"{report.utilisation_percent}%"
    degrees = sensors.temperature_celsius
    total_bytes = gpu.memory_bytes
    reserved = f"{report.granted_bytes / GIB:.3g}/{total_bytes / GIB:.0f} GiB"
    used = Span(f"{report.used_bytes / GIB:.1f} used")
    if is_short:
        rest = [Span(f"{busy:>5} "), Span(reserved)]
        return [(name, Span(" "), *bar(slices, total_bytes, max(0, width - line_width([name, *rest]) - 1)), *rest)]
    # From the least important to the most important one: what does not fit is left out in this order.
    facts = {
        "clock": Span("" if sensors.clock_mhz is None else f"{sensors.clock_mhz}MHz", DARK.muted),
        "power": Span("" if sensors.power_watts is None else f"{sensors.power_watts:.0f}W", DARK.muted),
        "heat": Span(
            "" if degrees is None else f"{degrees}°C",
            DARK.muted if degrees is None or degrees < _HOT_CELSIUS else DARK.bad,
        ),
        "busy": Span(busy),
    }
    right = Span(reserved, is_bold=True)
    while sum(1 + cell_width(span.text) for span in (name, right, *facts.values()) if span.text) - 1 > width and facts:
        del facts[next(iter(facts))]
    shown = [part for each in ("busy", "heat", "power", "clock") if each in facts and (part := facts[each]).text]
    left = [name, *(part for span in shown for part in (Span(" "), span))]
    room = width - line_width([*left, right]) - 2
    if room >= len(gpu.name):
        left.append(Span(f" {visible(gpu.name)}", DARK.muted))
    place = max(9, cell_width(used.text) + 1)
    drawn = bar(slices, total_bytes, max(1, width - place))
    return [spread(left, [right], width), (*drawn, Span(" " * (place - cell_width(used.text))), used)]


def history(picture: Picture, chosen: int, minutes: int, width: int, height: int) -> list[Line]:
    """Draw the recorded history of one GPU: a title, and a chart of `height` lines with a line of busy shares.

    Args:
        picture: With the history.
        chosen: Place of the GPU.
        minutes: Of one column.
        width: In places.
        height: Of the chart alone.
    """
    report, count = picture.gpus[chosen], width - _AXIS
    title = [
        Span(f"GPU {report.gpu.place}", DARK.accent, is_bold=True),
        Span(f"  last {format_duration(60.0 * minutes * count)}   "),
        Span("█ used  ", DARK.used),
        Span("█ reserved  ", tinted(DARK.reserved)),
        Span("█ busy", DARK.share),
    ]
    total_bytes = report.gpu.memory_bytes
    found = [None] * count if picture.history is None else buckets(picture.history, picture.at_seconds, minutes, count)
    labels = [""] * (height + 1)
    labels[0], labels[-1] = f"{total_bytes / GIB:.0f} GiB", "busy"
    drawn = chart(found, total_bytes, height)
    axis = [Span(f"{label:>{_AXIS - 1}} ", DARK.muted) for label in labels]
    return [spread(title, [], width), *((label, *line) for label, line in zip(axis, drawn, strict=True))]
