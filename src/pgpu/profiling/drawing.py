"""Plots of a measurement as SVG, written by hand so that a page needs nothing but itself. Pure."""

from collections.abc import Sequence
from html import escape

from pgpu.enforcement.trace import Memory
from pgpu.profiling.intervals import Interval, covered
from pgpu.profiling.memory import MemoryPoint, thinned
from pgpu.units import format_duration, format_memory

WIDTH, HEIGHT = 900, 200
_LEFT, _BOTTOM = 70, 24
_BINS = 180
_NANOSECONDS = 1_000_000_000

COLOURS = {
    Memory.LINEAR: "#0072b2",
    Memory.MANAGED: "#56b4e9",
    Memory.ARRAY: "#009e73",
    Memory.EXTERNAL: "#cc79a7",
    Memory.CONTEXT: "#999999",
    Memory.PHYSICAL: "#e69f00",
    Memory.POOL: "#d55e00",
    Memory.LIMIT: "#f0e442",
}
"""Okabe and Ito's, which everybody can tell apart."""


def busy_plot(busy: Sequence[Interval], window: Interval) -> str:
    """Draw how busy a GPU was over time, as bars of a hundred and eighty equal parts."""
    width = WIDTH / _BINS
    bars = [
        f'<rect x="{_LEFT + number * width:.1f}" y="{HEIGHT * (1 - fraction):.1f}" width="{width:.2f}"'
        f' height="{HEIGHT * fraction:.1f}" fill="#0072b2"><title>{100 * fraction:.0f} % busy</title></rect>'
        for number, fraction in enumerate(covered(busy, window, _BINS))
        if fraction > 0
    ]
    return _framed("".join(bars), "100 %", (window[1] - window[0]) / _NANOSECONDS, "GPU-busy fraction over time")


def memory_plot(points: Sequence[MemoryPoint]) -> str:
    """Draw memory by kind over time, one kind on top of the other, as steps."""
    shown = thinned(list(points))
    begin_ns, end_ns = shown[0].at_ns, max(shown[-1].at_ns, shown[0].at_ns + 1)
    most_bytes = max(1, *(point.total_bytes for point in shown))
    kinds = sorted({kind for point in shown for kind in point.bytes_by_kind})

    def place(at_ns: int, size: int) -> str:
        x = _LEFT + WIDTH * (at_ns - begin_ns) / (end_ns - begin_ns)
        return f"{x:.1f},{HEIGHT * (1 - size / most_bytes):.1f}"

    areas = []
    below = [0] * len(shown)
    for kind in kinds:
        above = [low + point.bytes_by_kind.get(kind, 0) for low, point in zip(below, shown, strict=True)]
        edge = [*_steps(shown, above, end_ns), *reversed(_steps(shown, below, end_ns))]
        corners = " ".join(place(*corner) for corner in edge)
        areas.append(f'<polygon points="{corners}" fill="{COLOURS[kind]}"><title>{_label(kind)}</title></polygon>')
        below = above
    plot = _framed("".join(areas), format_memory(most_bytes), (end_ns - begin_ns) / _NANOSECONDS, "memory over time")
    return plot + _legend(kinds)


def _steps(points: Sequence[MemoryPoint], sizes: Sequence[int], end_ns: int) -> list[tuple[int, int]]:
    corners: list[tuple[int, int]] = []
    for number, (point, size) in enumerate(zip(points, sizes, strict=True)):
        until_ns = points[number + 1].at_ns if number + 1 < len(points) else end_ns
        corners += [(point.at_ns, size), (until_ns, size)]
    return corners


def _framed(inside: str, top: str, seconds: float, title: str) -> str:
    return (
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 -8 {_LEFT + WIDTH + 8} {HEIGHT + _BOTTOM + 8}">'
        f'<rect x="{_LEFT}" y="0" width="{WIDTH}" height="{HEIGHT}" class="frame"/>{inside}'
        f'<text x="{_LEFT - 6}" y="8" text-anchor="end">{escape(top)}</text>'
        f'<text x="{_LEFT - 6}" y="{HEIGHT}" text-anchor="end">0</text>'
        f'<text x="{_LEFT}" y="{HEIGHT + 16}">0s</text>'
        f'<text x="{_LEFT + WIDTH}" y="{HEIGHT + 16}" text-anchor="end">{escape(format_duration(seconds))}</text></svg>'
    )


def _label(kind: Memory) -> str:
    return kind.name.lower()


def _legend(kinds: Sequence[Memory]) -> str:
    items = "".join(f'<li><span style="background:{COLOURS[kind]}"></span>{_label(kind)}</li>' for kind in kinds)
    return f'<ul class="legend">{items}</ul>'
