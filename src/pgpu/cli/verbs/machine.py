"""Verbs for the machine's GPUs: `gpus`, and `top` with a live view."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from pgpu.cli import options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console, documents
from pgpu.client import Client, JobReport

if TYPE_CHECKING:
    from rich.console import Group

_REFRESH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class SortOrder:
    """One way to sort jobs in the live view."""

    key: str
    """The key that chooses it."""

    name: str
    sort_key: Callable[[JobReport], Any]


SORT_ORDERS = (
    SortOrder("u", "use", lambda report: -sum(use.used_bytes for use in report.use)),
    SortOrder("m", "memory asked", lambda report: -report.job.request.memory_bytes * report.job.request.gpu_count),
    SortOrder("a", "age", lambda report: report.job.created_at_seconds),
    SortOrder("n", "name", lambda report: (report.job.spec.name or "", report.job.id)),
)


def gpus(context: typer.Context, *, as_json: options.Json = False) -> None:
    """Show each GPU: memory used, granted and free, and jobs.

    The last column names what enforces the slices on it.
    """
    reports = invocation_of(context).client().gpus()
    if as_json:
        console.print_json(documents.of_gpus(reports))
        return
    from pgpu.cli.output import job_tables

    console.print_table(job_tables.of_gpus(reports))
    if not reports:
        console.print_note(
            "no GPU was found; `pgpu doctor` says why, and --simulate 'RTX 3090' before the verb simulates one"
        )
    outsiders = [each for report in reports for each in report.outsiders]
    for line in (*job_tables.outside(outsiders), *job_tables.uncovered(reports)):
        console.print_note(line)


def top(context: typer.Context, *, as_json: options.Json = False) -> None:
    """Watch GPUs and jobs, refreshed each second.

    Keys sort by use (u), slice (m), age (a) or name (n); q quits. Into a pipe, it prints once.
    """
    client = invocation_of(context).client()
    if as_json:
        console.print_json(documents.of_top(client.gpus(), client.jobs(include_final=False)))
    elif sys.stdout.isatty() and sys.stdin.isatty():
        _watch(client)
    else:
        console.print_table(_render(client, SORT_ORDERS[0]))


def _render(client: Client, order: SortOrder) -> "Group":
    from rich.console import Group
    from rich.text import Text

    from pgpu.cli.output import job_tables

    jobs = sorted(client.jobs(include_final=False), key=order.sort_key)
    keys = "  ".join(f"{each.key} {each.name}" for each in SORT_ORDERS)
    return Group(
        job_tables.of_gpus(client.gpus()),
        Text(),
        job_tables.of_jobs(jobs, is_uncut=False),
        Text(),
        Text(f"sorted by {order.name} · {keys} · q quit", style="dim"),
    )


def _watch(client: Client) -> None:
    """Draw each second and after each key, until q is pressed or the input ends."""
    import select

    from rich.live import Live

    order = SORT_ORDERS[0]
    with _unbuffered_keys(), Live(_render(client, order), screen=True, auto_refresh=False) as live:
        while True:
            ready, _, _ = select.select([sys.stdin], [], [], _REFRESH_SECONDS)
            key = os.read(sys.stdin.fileno(), 1).decode("ascii", "replace").lower() if ready else None
            if key in {"q", ""}:
                return
            order = next((each for each in SORT_ORDERS if each.key == key), order)
            live.update(_render(client, order), refresh=True)


@contextmanager
def _unbuffered_keys() -> Iterator[None]:
    """Put the terminal into cbreak mode without echo, and restore it at the end."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
