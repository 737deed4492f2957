"""P1's page: `index.html` with the trials of the most jobs as SVG, the tables and the findings.

It needs no other file, no script, no network and no matplotlib, so `make demo` installs none. Both sides share one axis of time,
which begins with the submission.
"""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from pgpu.lab.outcomes import ExperimentTrial, JobOutcome
from pgpu.lab.report import SIMULATED_NOTE, Report, Table
from pgpu.palette import DARK, LIGHT, css_variables
from pgpu.units import format_memory

_WIDTH, _LEFT, _AXIS = 900, 64, 24
_ROW, _BAR = 9, 7
_MEMORY_HEIGHT = 200
_STEPS_SECONDS, _MOST_STEPS = (1, 2, 5, 10, 30, 60, 300, 1800), 10

# The policy allows no script and no address, so a job's last line could run nothing even if it were not escaped.
_HEAD = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>P1: jobs that start together</title>
<style>
:root {{ color-scheme: light dark; {css_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {css_variables(DARK)} }} }}
body {{ font: 15px/1.5 Inter, system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; margin-bottom: 0; }} h2 {{ font-size: 1.05rem; margin: 2rem 0 .3rem; }}
p, figcaption {{ color: var(--muted); margin: .2rem 0; }} figure {{ margin: 0; }} figcaption {{ font-size: .85rem; }}
dl {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .8rem; }}
dl div {{ background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .6rem .9rem; }}
dt {{ color: var(--muted); font-size: .85rem; }} dd {{ margin: 0; font-size: 1.5rem; font-weight: 700; }}
svg {{ width: 100%; height: auto; display: block; }} text {{ font-size: 12px; fill: var(--muted); }}
.grid {{ stroke: var(--line); }} .waits {{ fill: var(--free); }} .done {{ fill: var(--reserved); }}
.failed {{ fill: var(--bad); }} .full {{ stroke: var(--ink); stroke-dasharray: 2 3; }}
.without, .with {{ fill: none; stroke-width: 2; }} .without {{ stroke: var(--share); }}
.with {{ stroke: var(--reserved); stroke-dasharray: 7 4; }}
.table {{ overflow-x: auto; }} table {{ border-collapse: collapse; width: 100%; background: var(--card); }}
caption {{ text-align: left; font-weight: 700; padding: .3rem 0; background: var(--paper); }}
th, td {{ text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap;
  font-variant-numeric: tabular-nums; }}
th {{ color: var(--muted); font-weight: 600; }}
</style></head><body><main>
"""


def write_page(
    written: Report, trials: Sequence[ExperimentTrial], path: Path, paper_failed: int | None, date: str
) -> Path:
    """Write the page of a report.

    Args:
        written: Tables and findings.
        trials: All trials; those of the most jobs are drawn, the first repetition of each side.
        path: Of the page.
        paper_failed: How many of the most jobs failed in the paper; None if it gives no figure.
        date: When the experiment ran, as text.
    """
    count = max(len(trial.jobs) for trial in trials)
    drawn = [trial for trial in trials if len(trial.jobs) == count and trial.repetition == 1]
    seconds = max(trial.whole_seconds for trial in drawn)
    where = f"simulated {written.device}" if written.is_simulated else written.device
    parts = [
        _HEAD,
        "<h1>P1: jobs that start together</h1>",
        f"<p>Kim and Kang, 2023. {escape(where)}, {escape(written.runtime)}, {escape(date)}</p>",
        f"<p>{escape(SIMULATED_NOTE)}</p>" if written.is_simulated else "",
        _tiles(drawn, paper_failed),
        *(_jobs(trial, seconds) for trial in drawn),
        _memory(drawn, seconds),
        "<h2>Findings</h2><ul>",
        *(f"<li>{escape(finding)}</li>" for finding in written.findings),
        "</ul>",
        *(_table(table) for table in (written.table, *written.further)),
        "</main></body></html>\n",
    ]
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _side(trial: ExperimentTrial) -> str:
    return "with pgpu" if trial.is_with_pgpu else "without pgpu"


def _tiles(trials: Sequence[ExperimentTrial], paper_failed: int | None) -> str:
    count = len(trials[0].jobs)
    figures = [] if paper_failed is None else [(f"of {count} jobs fail in the paper", str(paper_failed))]
    figures += [(f"of {count} fail {_side(trial)}", str(trial.failed)) for trial in trials]
    figures += [(f"until all end {_side(trial)}", f"{trial.whole_seconds:.1f} s") for trial in trials]
    tiles = "".join(f"<div><dt>{name}</dt><dd>{figure}</dd></div>" for name, figure in figures)
    return f"<dl>{tiles}</dl>"


def _jobs(trial: ExperimentTrial, seconds: float) -> str:
    """Draw a row for each job: waits in grey, runs in blue, in red if it failed."""
    rows = [_bars(job, number * _ROW, seconds) for number, job in enumerate(trial.jobs)]
    waves = f", in {trial.waves} waves" if trial.waves > 1 else ""
    title = f"{_side(trial).capitalize()} {trial.failed} of {len(trial.jobs)} jobs fail{waves}"
    caption = "A row is a job, in order of arrival. Grey: it waits or loads; blue: it runs to its end; red: it failed."
    return _figure(title, caption, len(trial.jobs) * _ROW, seconds, rows)


def _bars(job: JobOutcome, top: int, seconds: float) -> str:
    # A job that failed before it reported anything has no known begin: its bar is the whole time.
    began, ended = (
        job.began_at_seconds - job.submitted_at_seconds,
        job.program_ended_at_seconds - job.submitted_at_seconds,
    )
    outcome = f"failed: {job.complaint}" if job.is_failed else "completed"
    spans = (("waits", 0.0, began), ("failed" if job.is_failed else "done", began, ended))
    drawn = "".join(
        f'<rect class="{name}" x="{_x(start, seconds):.1f}" y="{top}" height="{_BAR}" '
        f'width="{_x(end, seconds) - _x(start, seconds):.1f}"/>'
        for name, start, end in spans
    )
    return f"<g><title>{escape(f'{job.name} {outcome}, {ended:.1f} s after its submission')}</title>{drawn}</g>"


def _memory(trials: Sequence[ExperimentTrial], seconds: float) -> str:
    capacity = trials[0].device_memory_bytes
    drawn = [
        f'<line class="full" x1="{_LEFT}" y1="10" x2="{_WIDTH}" y2="10"/>',
        f'<text x="{_LEFT - 6}" y="14" text-anchor="end">{format_memory(capacity)}</text>',
    ]
    for trial in trials:
        began = trial.jobs[0].submitted_at_seconds
        points = " ".join(
            f"{_x(max(at - began, 0.0), seconds):.1f},{_MEMORY_HEIGHT - (_MEMORY_HEIGHT - 10) * used / capacity:.1f}"
            for at, used in trial.device_samples
        )
        drawn.append(f'<polyline class="{"with" if trial.is_with_pgpu else "without"}" points="{points}"/>')
    caption = "Orange, solid: without pgpu. Blue, dashed: with pgpu. Dotted: the device is full."
    return _figure("Memory in use on the device", caption, _MEMORY_HEIGHT, seconds, drawn)


def _x(at_seconds: float, seconds: float) -> float:
    return _LEFT + (_WIDTH - _LEFT) * min(at_seconds / seconds, 1.0)


def _figure(title: str, caption: str, height: int, seconds: float, drawn: Sequence[str]) -> str:
    label = escape(title, quote=True)
    return (
        f'<h2>{escape(title)}</h2><figure><svg viewBox="0 0 {_WIDTH} {height + _AXIS}" role="img" aria-label="{label}">'
        f"{''.join(_axis(height, seconds))}{''.join(drawn)}</svg><figcaption>{escape(caption)}</figcaption></figure>"
    )


def _axis(height: int, seconds: float) -> Iterator[str]:
    step = next((each for each in _STEPS_SECONDS if seconds / each <= _MOST_STEPS), round(seconds))
    for at in range(0, int(seconds) + 1, step):
        x = _x(at, seconds)
        yield f'<line class="grid" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height}"/>'
        yield f'<text x="{x:.1f}" y="{height + 16}" text-anchor="{"middle" if at else "start"}">{at} s</text>'


def _table(table: Table) -> str:
    title = escape(table.title, quote=True)
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    cells = [["–" if cell is None else escape(str(cell)) for cell in row] for row in table.rows]
    rows = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in cells)
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="{title}"><table><caption>{title}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
