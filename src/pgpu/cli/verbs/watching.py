"""The live view of `pgpu top`: drawn each second, sorted by a key press, ended with q."""

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from pgpu.cli.output import job_tables
from pgpu.client import Client, JobReport

_REFRESH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Order:
    """One way to sort jobs."""

    key: str
    name: str
    of: Callable[[JobReport], Any]


ORDERS = (
    Order("u", "use", lambda report: -sum(use.used_bytes for use in report.use)),
    Order("m", "memory asked", lambda report: -report.job.request.memory_bytes * report.job.request.gpu_count),
    Order("a", "age", lambda report: report.job.created_at_seconds),
    Order("n", "name", lambda report: (report.job.spec.name or "", report.job.id)),
)


def picture(client: Client, order: Order) -> Group:
    """Draw GPUs and jobs as they are now."""
    jobs = sorted(client.jobs(include_final=False), key=order.of)
    keys = "  ".join(f"{each.key} {each.name}" for each in ORDERS)
    return Group(
        job_tables.of_gpus(client.gpus()),
        Text(),
        job_tables.of_jobs(jobs, is_uncut=False),
        Text(),
        Text(f"sorted by {order.name} · {keys} · q quit", style="dim"),
    )


def watch(client: Client) -> None:
    """Draw until q is pressed."""
    order = ORDERS[0]
    with _single_keys(), Live(picture(client, order), screen=True, auto_refresh=False) as live:
        while (pressed := _key(_REFRESH_SECONDS)) != "q":
            order = next((each for each in ORDERS if each.key == pressed), order)
            live.update(picture(client, order), refresh=True)


@contextmanager
def _single_keys() -> Iterator[None]:
    """Read keys as they are pressed, without echo, and put the terminal back at the end."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _key(timeout_seconds: float) -> str:
    """Return the key pressed within the time, `q` at the end of input, else nothing."""
    ready, _, _ = select.select([sys.stdin], [], [], timeout_seconds)
    if not ready:
        return ""
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace").lower() or "q"
