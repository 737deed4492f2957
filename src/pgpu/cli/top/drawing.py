"""Lines of coloured text, and what is drawn with block characters: bars, sparklines, the chart of a GPU's history.

Pure. A line is a sequence of spans; a drawing has the number of places of a terminal that it was asked for.
"""

from collections.abc import Iterable, Sequence
from math import ceil

from pgpu.cli.output.plain_table import cell_width, cut
from pgpu.model import GpuSeries
from pgpu.palette import DARK
from pgpu.structs import Struct

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_TINT = 0.38
"""Part of the colour in a tinted one."""


class Span(Struct, frozen=True):
    """Text in one colour, without characters that steer a terminal."""

    text: str
    colour: str = DARK.ink
    back: str = DARK.paper
    is_bold: bool = False


Line = tuple[Span, ...]


class Slice(Struct, frozen=True):
    """A part of a bar, in bytes."""

    reserved_bytes: int
    used_bytes: int
    colour: str


def tinted(colour: str) -> str:
    """Return a colour mixed with the background's: of what is reserved, but not used, and behind the chosen job."""
    pairs = zip(_channels(colour), _channels(DARK.paper), strict=True)
    return "#" + "".join(f"{round(_TINT * front + (1 - _TINT) * back):02x}" for front, back in pairs)


def _channels(colour: str) -> Sequence[int]:
    return tuple(bytes.fromhex(colour[1:]))


def line_width(line: Iterable[Span]) -> int:
    """Return the places that a line takes."""
    return sum(cell_width(span.text) for span in line)


def bar(slices: Iterable[Slice], total_bytes: int, width: int) -> Line:
    """Draw a GPU's memory: of each slice the used part solid and the rest of it shaded, and what is free."""
    spans, begin_bytes, begin = [], 0, 0
    for each in slices:
        end_bytes = begin_bytes + max(each.reserved_bytes, each.used_bytes)
        end = min(width, round(end_bytes / total_bytes * width)) if total_bytes else begin
        used = min(end - begin, ceil(each.used_bytes / total_bytes * width - 0.5)) if total_bytes else 0
        spans += [Span("█" * used, each.colour), Span("▒" * (end - begin - used), each.colour)]
        begin_bytes, begin = end_bytes, end
    spans.append(Span("░" * (width - begin), DARK.free))
    return tuple(span for span in spans if span.text)


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Draw the last values, 0 to 1, the newest at the right; a value that is unknown is a gap."""
    shown = values[-width:]
    marks = ("·" if value is None else _EIGHTHS[1 + round(7 * min(1.0, max(0.0, value)))] for value in shown)
    return "".join(marks).rjust(width)


class Bucket(Struct, frozen=True):
    """Means of some minutes of a GPU."""

    reserved_bytes: float
    used_bytes: float
    busy: float | None


def buckets(series: GpuSeries, now_seconds: float, minutes: int, count: int) -> list[Bucket | None]:
    """Return the last periods of so many minutes, oldest first; None for one in which no lease was held."""
    rows: dict[int, list[int]] = {}
    now = int(now_seconds // 60)
    for place, at_seconds in enumerate(series.at_seconds):
        rows.setdefault((now - at_seconds // 60) // minutes, []).append(place)
    found: list[Bucket | None] = []
    for age in range(count - 1, -1, -1):
        places = rows.get(age)
        if places is None:
            found.append(None)
            continue
        busy = [each for place in places if (each := series.busy_percent[place]) is not None]
        found.append(
            Bucket(
                # A minute without a lease reserved nothing.
                sum(series.reserved_bytes[place] for place in places) / max(len(places), minutes if age else 1),
                sum(series.used_bytes[place] for place in places) / max(len(places), minutes if age else 1),
                sum(busy) / len(busy) / 100 if busy else None,
            )
        )
    return found


def chart(found: Sequence[Bucket | None], total_bytes: int, height: int) -> list[Line]:
    """Draw used and reserved memory in a column of `height` lines for each bucket, and below it a line of busy shares."""
    lines: list[Line] = []
    tint = tinted(DARK.reserved)
    for row in range(height - 1, -1, -1):
        cells = [_chart_cell(each, total_bytes, height, 8 * row, tint) for each in found]
        lines.append(joined(cells))
    lines.append((Span(sparkline([None if each is None else each.busy for each in found], len(found)), DARK.share),))
    return lines


def _chart_cell(bucket: Bucket | None, total_bytes: int, height: int, base: int, tint: str) -> Span:
    if bucket is None or not total_bytes:
        return Span(" ")
    used, reserved = (
        min(8, max(0, round(amount / total_bytes * 8 * height) - base))
        for amount in (bucket.used_bytes, max(bucket.used_bytes, bucket.reserved_bytes))
    )
    if used:
        return Span(_EIGHTHS[used], DARK.used, tint if used < reserved == 8 else DARK.paper)  # noqa: PLR2004 - eighths
    return Span(_EIGHTHS[reserved], tint)


def joined(cells: Iterable[Span]) -> Line:
    """Join neighbouring spans of equal colours."""
    found: list[Span] = []
    for cell in cells:
        last = found[-1] if found else None
        if last is not None and (last.colour, last.back, last.is_bold) == (cell.colour, cell.back, cell.is_bold):
            found[-1] = Span(last.text + cell.text, cell.colour, cell.back, cell.is_bold)
        else:
            found.append(cell)
    return tuple(found)


def spread(left: Sequence[Span], right: Sequence[Span], width: int) -> Line:
    """Put spans at both ends of a line; the last one at the left is cut where they do not fit."""
    room = width - line_width(right) - (1 if right else 0)
    kept: list[Span] = []
    for span in left:
        text = cut(span.text, max(0, room)) if room > 0 else ""
        kept.append(Span(text, span.colour, span.back, span.is_bold))
        room -= cell_width(text)
    gap = width - line_width(kept) - line_width(right)
    return (*kept, Span(" " * max(0, gap)), *right)


def key_hints(keys: Sequence[tuple[str, str]]) -> Line:
    """Lay out keys, each with a word about what it does."""
    return tuple(
        span for key, word in keys for span in (Span(key, DARK.warning, is_bold=True), Span(f" {word}  ", DARK.muted))
    )
