"""Reports of a profiled program: rows of text, and one HTML page with SVG plots.

The page contains everything it needs: no network, no script, no other file. Text output and page share the same rows. Pure.
"""

from collections.abc import Iterable, Sequence
from html import escape

from pgpu.enforcement.trace import Memory
from pgpu.model import Job, Profile
from pgpu.palette import DARK, LIGHT, css_variables
from pgpu.profiling.counters import KernelCounters
from pgpu.profiling.measurement import Interval, Measurement, MemoryPoint, coverage, downsample, length
from pgpu.profiling.sensitivity import Loss
from pgpu.structs import Struct
from pgpu.units import format_duration, format_memory

Row = tuple[str, str]

# Columns of `counter_rows`.
COUNTED = ("kernel", "grid", "block", "launches", "L1 hits", "L2 hits", "DRAM", "L2", "SM", "occupancy")

WIDTH, HEIGHT = 900, 200
_LEFT, _BOTTOM = 70, 24
_BINS = 180
_NANOSECONDS = 1_000_000_000
_MICROSECONDS = 1000

COLOURS = {
    Memory.LINEAR: "var(--slice-0)",
    Memory.MANAGED: "var(--slice-3)",
    Memory.ARRAY: "var(--slice-1)",
    Memory.EXTERNAL: "var(--slice-5)",
    Memory.CONTEXT: "var(--muted)",
    Memory.PHYSICAL: "var(--slice-4)",
    Memory.POOL: "var(--slice-2)",
    Memory.LIMIT: "var(--bad)",
}
"""Names of the page's colours."""

# The policy allows no script and no address, so a kernel's name could run nothing even if it were not escaped.
_HEAD = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{title}}</title>
<style>
:root {{ color-scheme: light dark; {css_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {css_variables(DARK)} }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.3rem; overflow-wrap: anywhere; }} h2 {{ font-size: 1.05rem; margin-top: 2rem; }}
svg {{ width: 100%; height: auto; }} svg text {{ font-size: 12px; fill: var(--muted); }}
.frame {{ fill: none; stroke: var(--line); }}
table {{ border-collapse: collapse; width: 100%; }}
td, th {{ text-align: right; padding: .2rem .6rem; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; }}
td:first-child, th:first-child {{ text-align: left; overflow-wrap: anywhere; }}
.legend {{ display: flex; flex-wrap: wrap; gap: 1rem; list-style: none; padding: 0; }}
.legend span {{ display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; }}
.warning {{ border-left: 4px solid var(--warning); padding-left: .8rem; }}
</style></head><body>
"""


class ProfileResult(Struct, frozen=True):
    """Result of `pgpu profile`: one profiled run, and measurements of further runs."""

    job: Job
    """The run of the profile; of several the last one alone."""

    profile: Profile
    measurement: Measurement
    failed: Job | None = None
    """The first run whose command failed."""

    cache: Loss | None = None
    """Slowdown with the smallest L1 cache instead of the largest."""

    counters: tuple[KernelCounters, ...] = ()
    """Counters of Nsight Compute from a run of its own, by decreasing time."""

    notes: tuple[str, ...] = ()
    """What could not be measured, and why."""


def facts(measurement: Measurement, profile: Profile) -> list[Row]:
    """Return the measured figures, one per row."""
    window_ns = measurement.window[1] - measurement.window[0]
    busy_ns = sum(length(use.busy) for use in measurement.gpus)
    launches = sum(each.launches for each in profile.kernels)
    graphs, cost, log = measurement.graphs, measurement.overhead, measurement.log
    rows = [
        ("GPU", profile.gpu_name),
        ("lasted", f"{_time(window_ns)} from first to last use of the GPU"),
        ("busy", f"{100 * profile.busy_fraction:.1f} % of it with a kernel running"),
        ("peak memory", format_memory(profile.peak_bytes)),
    ]
    peaks = [use.peak for use in measurement.gpus if use.peak is not None]
    if peaks:
        largest = max(peaks, key=lambda point: point.total_bytes)
        held = (f"{kind.name.lower()} {format_memory(size)}" for kind, size in largest.bytes_by_kind.items())
        rows.append(("at the peak", ", ".join(held)))
    rows += [
        ("contexts", f"{measurement.context_count}, the largest {format_memory(measurement.context_bytes)}"),
        ("processes", str(measurement.process_count)),
        ("kernels", f"{launches} launches in {len(profile.kernels)} names and shapes, {_time(busy_ns)}"),
    ]
    if graphs.launches:
        rows.append(("graphs", f"{graphs.launches} launches of {graphs.nodes} nodes, {_time(graphs.total_ns)}"))
    rows += [
        (f"uses of {demand.resource}", f"{100 * demand.fraction:.1f} % ({demand.evidence})")
        for demand in profile.demands
    ]
    if log.dropped:
        rows.append(("not in the timeline", f"{log.dropped} records that came when the log was full"))
    if log.unmeasured:
        rows.append(("without a duration", f"{log.unmeasured} commands"))
    each = f"{cost.per_command_ns / 1000:.2f} µs for each of {cost.commands} commands"
    rows.append(("profiling itself", f"{each}, {100 * cost.fraction:.2f} % of the time, in the job's own threads"))
    return rows


def sensitivity_rows(profile: Profile) -> list[Row]:
    """Return how much longer kernels take when a resource is exhausted by others; empty if not measured."""
    found = profile.sensitivity
    tested = (
        ("L1 carve-out smallest instead of largest", found.cache),
        ("beside a sweep of the L2 cache", found.l2),
        ("beside a stream of device memory", found.dram),
    )
    rows = [(test, f"{100 * value:+.1f} %") for test, value in tested if value is not None]
    for each in profile.contests:
        losses = f"{100 * (each.slowdown - 1):+.1f} %, and it {100 * (each.antagonist_slowdown - 1):+.1f} %"
        rows.append((f"beside {each.antagonist} of {format_memory(each.swept_bytes)}", losses))
    return rows


def counter_rows(counters: Sequence[KernelCounters]) -> list[tuple[str, ...]]:
    """Return hardware counters, one kernel and shape per row."""
    rows = []
    for each in counters:
        figures = (
            each.l1_hit_rate,
            each.l2_hit_rate,
            each.dram_throughput,
            each.l2_throughput,
            each.sm_throughput,
            each.occupancy,
        )
        percents = ("-" if figure is None else f"{100 * figure:.1f} %" for figure in figures)
        grid, block = ("x".join(map(str, sizes)) for sizes in (each.grid, each.block))
        rows.append((each.name, grid, block, str(each.launches), *percents))
    return rows


def _time(nanoseconds: int) -> str:
    for unit, name in ((1_000_000_000, "s"), (1_000_000, "ms"), (1000, "µs")):
        if nanoseconds >= unit:
            return (
                f"{nanoseconds / unit:.3g} {name}" if nanoseconds < 1000 * unit else f"{nanoseconds / unit:,.0f} {name}"
            )
    return f"{nanoseconds} ns"


def busy_plot(busy: Sequence[Interval], window: Interval) -> str:
    """Draw the busy fraction of a GPU over time as an SVG bar chart of 180 equal parts."""
    width = WIDTH / _BINS
    bars = [
        f'<rect x="{_LEFT + number * width:.1f}" y="{HEIGHT * (1 - fraction):.1f}" width="{width:.2f}"'
        f' height="{HEIGHT * fraction:.1f}" fill="var(--share)"><title>{100 * fraction:.0f} % busy</title></rect>'
        for number, fraction in enumerate(coverage(busy, window, _BINS))
        if fraction > 0
    ]
    return _frame("".join(bars), "100 %", (window[1] - window[0]) / _NANOSECONDS, "GPU-busy fraction over time")


def memory_plot(points: Sequence[MemoryPoint]) -> str:
    """Draw memory by kind over time as an SVG stacked step chart with a legend."""
    shown = downsample(list(points))
    begin_ns, end_ns = shown[0].at_ns, max(shown[-1].at_ns, shown[0].at_ns + 1)
    most_bytes = max(1, *(point.total_bytes for point in shown))
    kinds = sorted({kind for point in shown for kind in point.bytes_by_kind})

    def place(at_ns: int, size: int) -> str:
        x = _LEFT + WIDTH * (at_ns - begin_ns) / (end_ns - begin_ns)
        return f"{x:.1f},{HEIGHT * (1 - size / most_bytes):.1f}"

    areas, legend = [], []
    below = [0] * len(shown)
    for kind in kinds:
        label = kind.name.lower()
        above = [low + point.bytes_by_kind.get(kind, 0) for low, point in zip(below, shown, strict=True)]
        # The area between two step lines: the upper one forwards, then the lower one backwards.
        edge = [*_steps(shown, above, end_ns), *reversed(_steps(shown, below, end_ns))]
        corners = " ".join(place(*corner) for corner in edge)
        areas.append(f'<polygon points="{corners}" fill="{COLOURS[kind]}"><title>{label}</title></polygon>')
        legend.append(f'<li><span style="background:{COLOURS[kind]}"></span>{label}</li>')
        below = above
    plot = _frame("".join(areas), format_memory(most_bytes), (end_ns - begin_ns) / _NANOSECONDS, "memory over time")
    return f'{plot}<ul class="legend">{"".join(legend)}</ul>'


def _steps(points: Sequence[MemoryPoint], sizes: Sequence[int], end_ns: int) -> list[tuple[int, int]]:
    corners: list[tuple[int, int]] = []
    for number, (point, size) in enumerate(zip(points, sizes, strict=True)):
        until_ns = points[number + 1].at_ns if number + 1 < len(points) else end_ns
        corners += [(point.at_ns, size), (until_ns, size)]
    return corners


def _frame(inside: str, top: str, seconds: float, title: str) -> str:
    return (
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 -8 {_LEFT + WIDTH + 8} {HEIGHT + _BOTTOM + 8}">'
        f'<rect x="{_LEFT}" y="0" width="{WIDTH}" height="{HEIGHT}" class="frame"/>{inside}'
        f'<text x="{_LEFT - 6}" y="8" text-anchor="end">{escape(top)}</text>'
        f'<text x="{_LEFT - 6}" y="{HEIGHT}" text-anchor="end">0</text>'
        f'<text x="{_LEFT}" y="{HEIGHT + 16}">0s</text>'
        f'<text x="{_LEFT + WIDTH}" y="{HEIGHT + 16}" text-anchor="end">{escape(format_duration(seconds))}</text></svg>'
    )


def page(measurement: Measurement, profile: Profile, title: str, counters: Sequence[KernelCounters] = ()) -> str:
    """Return the HTML page.

    Args:
        measurement: From the log.
        profile: The stored profile, with sensitivities if they were measured.
        title: The command.
        counters: Hardware counters of its kernels, if any.
    """
    simulated = (
        '<p class="warning">Measured on a simulated GPU: its kernels compute nothing and take modelled time.</p>'
    )
    return "".join(
        (
            _HEAD.replace("{title}", escape(f"pgpu profile: {title}")),
            f"<h1>{escape(title)}</h1>",
            simulated if profile.is_simulated else "",
            _table(("", ""), facts(measurement, profile)),
            *_gpus(measurement),
            *_section("Kernels", _kernels(profile)),
            *_section("Counted in kernels", _table(COUNTED, counter_rows(counters))),
            *_section("Copies", _copies(profile)),
            *_section("Sensitivity", _table(("test", "longer by"), sensitivity_rows(profile))),
            "</body></html>\n",
        )
    )


def _gpus(measurement: Measurement) -> Iterable[str]:
    for use in measurement.gpus:
        yield f"<h2>GPU {use.gpu}: busy {100 * use.busy_fraction:.1f} %</h2>"
        if measurement.window[1] > measurement.window[0]:
            yield busy_plot(use.busy, measurement.window)
        if use.memory:
            yield memory_plot(use.memory)


def _section(title: str, content: str) -> Iterable[str]:
    if content:
        yield f"<h2>{title}</h2>{content}"


def _kernels(profile: Profile) -> str:
    rows = [
        (
            each.name,
            "×".join(map(str, each.grid)),
            "×".join(map(str, each.block)),
            str(each.launches),
            f"{each.total_ns / _MICROSECONDS:,.1f}",
            f"{each.shortest_ns / _MICROSECONDS:,.1f}",
            f"{each.longest_ns / _MICROSECONDS:,.1f}",
        )
        for each in profile.kernels
    ]
    return _table(("kernel", "grid", "block", "launches", "total µs", "shortest µs", "longest µs"), rows)


def _copies(profile: Profile) -> str:
    rows = [
        (each.direction, str(each.copies), format_memory(each.total_bytes), f"{each.total_ns / _MICROSECONDS:,.1f}")
        for each in profile.copies
    ]
    return _table(("direction", "copies", "bytes", "total µs"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    # The program chooses the names of its kernels, so every cell is escaped.
    titles = "".join(f"<th>{escape(each)}</th>" for each in head) if any(head) else ""
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<tr>{titles}</tr>' if titles else ''}{lines}</table>"
