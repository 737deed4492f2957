"""How long after memory is free the next waiting job starts, in ms (`python -m benchmarks.start_latency`).

One job holds all of a simulated GPU and the others wait for all of it; when it ends, each starts after the one before, so
that every queue length from the longest to one is seen. A job prints the time and ends: the time between the output of two
jobs is the whole wait that a user sees. Writes one JSON file into benchmarks/results and prints a table.
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances

from pgpu.app.client_factory import open_client
from pgpu.app.composition import make_engine
from pgpu.app.settings import load_settings
from pgpu.client import Client
from pgpu.engine.agent.agents import LOOK
from pgpu.engine.engine import Engine
from pgpu.model import Job, JobSpec, JobState, Request
from pgpu.units import GIB

MODEL = "RTX 3090"
ALL_BYTES = 22 * GIB
TARGET_MS = 100.0
"""From the project's design: how long a waiting job may take to start once memory is free."""

DEADLINE_SECONDS = 300.0
LOOK_AGAIN_SECONDS = 0.05
SETTLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Start:
    """One waiting job's start; everything in ms."""

    still_waiting: int
    """Jobs that waited behind it."""

    total: float
    """From the last word of the job before to its own first."""

    release: float
    """Of that, until the ledger knew that the memory was free."""

    grant: float
    """From there to its grant."""

    launch: float
    """From there to its first word."""


def main() -> int:
    """Measure, print, write; 1 where the target is missed by the median of any queue length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=100, help="jobs that wait at the beginning")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    starts = measure(arguments.waiting)
    groups = summary(starts)
    is_real_time = os.sched_getscheduler(0) in {os.SCHED_FIFO, os.SCHED_RR}
    report = {
        **circumstances(),
        "is_real_time": is_real_time,
        "driver": f"simulated {MODEL}",
        "waiting": arguments.waiting,
        "starts_ms": groups,
    }
    print_table(report)
    path = arguments.output / f"start-latency-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(f"written to {path}")
    return 1 if any(group["total"]["median"] > TARGET_MS for group in groups.values()) else 0


def measure(waiting: int) -> list[Start]:
    """Let `waiting` jobs start one after another, and return how each went, the longest queue first."""
    with a_machine() as (engine, client):
        gate = Path(engine.settings.state_directory) / "gate"
        holder = submit(client, ("sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.1; done; date +%s%N"))
        until(lambda: client.job(holder.id).job.state is JobState.RUNNING)
        jobs = [submit(client, ("date", "+%s%N")) for _ in range(waiting)]
        until(lambda: engine.agents.send(engine.settings.gpu_model, LOOK))
        time.sleep(SETTLE_SECONDS)  # noqa: TID251 - the agent finishes what it does at its beginning
        gate.touch()
        until(lambda: all(not engine.ledger.entry(job.id).is_live for job in jobs))
        return list(starts_of(engine, client, [holder, *jobs]))


def starts_of(engine: Engine, client: Client, jobs: Sequence[Job]) -> Iterator[Start]:
    """Compare each job with the one before."""
    entries = [engine.ledger.entry(job.id) for job in jobs]
    spoken = [spoken_at_seconds(client, job.id) for job in jobs]
    for place in range(1, len(jobs)):
        released = entries[place - 1].lease_released_at_seconds or math.nan
        lease = entries[place].job.lease
        granted = lease.granted_at_seconds if lease else math.nan
        yield Start(
            still_waiting=len(jobs) - 1 - place,
            total=1e3 * (spoken[place] - spoken[place - 1]),
            release=1e3 * (released - spoken[place - 1]),
            grant=1e3 * (granted - released),
            launch=1e3 * (spoken[place] - granted),
        )


def spoken_at_seconds(client: Client, job_id: str) -> float:
    """Return what a job printed: its time, in seconds since the epoch."""
    return int(b"".join(data for _, data in client.logs(job_id, follow=False))) / 1e9


@contextlib.contextmanager
def a_machine() -> Iterator[tuple[Engine, Client]]:
    """Make a state directory and a runtime directory for one measurement."""
    with tempfile.TemporaryDirectory(prefix="pgpu-start-", dir="/dev/shm") as folder:
        (Path(folder) / "run").mkdir(mode=0o700)
        flags = {"state_dir": f"{folder}/state", "runtime_dir": f"{folder}/run", "simulate": MODEL}
        settings = load_settings(flags)
        engine, client = make_engine(settings), open_client(settings)
        try:
            yield engine, client
        finally:
            for report in client.jobs(include_final=False):
                client.stop(report.job.id, grace_seconds=0.0)


def submit(client: Client, command: Sequence[str]) -> Job:
    """Ask for all of the GPU."""
    spec = JobSpec(tuple(command), "process", working_directory="/")
    return client.submit(spec, Request(ALL_BYTES), wait_timeout_seconds=None)


def until(question: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not question():
        if time.monotonic() > deadline:
            raise TimeoutError("it never came true")
        time.sleep(LOOK_AGAIN_SECONDS)  # noqa: TID251 - the pause between two looks


def summary(starts: Sequence[Start]) -> dict[str, dict[str, Any]]:
    """Return min, median and 90th percentile of each part, by how many waited behind."""
    found: dict[str, dict[str, Any]] = {}
    for least, most in ((0, 9), (10, 49), (50, 10_000)):
        group = [start for start in starts if least <= start.still_waiting <= most]
        if len(group) > 1:
            found[f"{least} and more"] = {"starts": len(group), **{part: _spread(group, part) for part in _PARTS}}
    return found


_PARTS = ("total", "release", "grant", "launch")


def _spread(group: Sequence[Start], part: str) -> dict[str, float]:
    return spread_of([getattr(start, part) for start in group])


def spread_of(values: Sequence[float]) -> dict[str, float]:
    """Return least, median, 90th percentile and most."""
    return {
        "min": round(min(values), 1),
        "median": round(statistics.median(values), 1),
        "p90": round(statistics.quantiles(values, n=10)[-1], 1),
        "max": round(max(values), 1),
    }


def print_table(report: dict[str, Any]) -> None:
    """Print one line for each queue length."""
    print(f"{report['cpu']}, {report['cores']} cores, load {report['load_average']}; ms: min / median / p90 / max")
    for name, group in report["starts_ms"].items():
        parts = "   ".join(f"{part} " + " / ".join(f"{group[part][k]:.0f}" for k in group[part]) for part in _PARTS)
        print(f"behind it {name} ({group['starts']} starts): {parts}")


if __name__ == "__main__":
    raise SystemExit(main())
