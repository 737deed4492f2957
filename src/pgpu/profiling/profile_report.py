"""A measurement as one HTML page that needs no network, no script and nothing beside it. Pure."""

from collections.abc import Iterable, Sequence
from html import escape

from pgpu.model import Profile
from pgpu.profiling.counters import KernelCounters
from pgpu.profiling.drawing import busy_plot, memory_plot
from pgpu.profiling.measurement import Measurement
from pgpu.profiling.words import COUNTED, counter_rows, facts, sensitivity_rows
from pgpu.units import format_memory

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.3rem; overflow-wrap: anywhere; }} h2 {{ font-size: 1.05rem; margin-top: 2rem; }}
svg {{ width: 100%; height: auto; }} svg text {{ font-size: 12px; fill: currentColor; }}
.frame {{ fill: none; stroke: currentColor; opacity: .3; }}
table {{ border-collapse: collapse; width: 100%; }}
td, th {{ text-align: right; padding: .2rem .6rem; border-bottom: 1px solid #8884; font-variant-numeric: tabular-nums; }}
td:first-child, th:first-child {{ text-align: left; overflow-wrap: anywhere; }}
.legend {{ display: flex; flex-wrap: wrap; gap: 1rem; list-style: none; padding: 0; }}
.legend span {{ display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; }}
.warning {{ border-left: 4px solid #d55e00; padding-left: .8rem; }}
</style></head><body>
"""

_MICROSECONDS = 1000


def page(measurement: Measurement, profile: Profile, title: str, counters: Sequence[KernelCounters] = ()) -> str:
    """Write the page.

    Args:
        measurement: What the log told.
        profile: What is remembered of it, with sensitivities where they were measured.
        title: What ran.
        counters: What was counted inside its kernels, where that was done.
    """
    return "".join(
        (
            _HEAD.format(title=escape(f"pgpu profile: {title}")),
            f"<h1>{escape(title)}</h1>",
            _simulated(profile),
            _table(("", ""), facts(measurement, profile)),
            *_gpus(measurement),
            *_section("Kernels", _kernels(profile)),
            *_section("Counted in kernels", _table(COUNTED, counter_rows(counters))),
            *_section("Copies", _copies(profile)),
            *_section("Sensitivity", _sensitivity(profile)),
            "</body></html>\n",
        )
    )


def _simulated(profile: Profile) -> str:
    if not profile.is_simulated:
        return ""
    return '<p class="warning">Measured on a simulated GPU: its kernels compute nothing and take modelled time.</p>'


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


def _sensitivity(profile: Profile) -> str:
    return _table(("test", "longer by"), sensitivity_rows(profile))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    titles = "".join(f"<th>{escape(each)}</th>" for each in head) if any(head) else ""
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<tr>{titles}</tr>' if titles else ''}{lines}</table>"
