"""P2's job, unchanged, under `--memory auto` (`python -m benchmarks.learned_sizes`).

TensorFlow's default takes nearly all it sees. The same call runs four times with its size left to pgpu, then as many at
once as `--waiting` sets, beside what P2's own request of 22,885 MiB allows. On a simulated RTX 3090; sizes and counts do
not depend on how busy the machine is. Writes one JSON file into benchmarks/results and prints it.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances

from pgpu.app.client_factory import open_client
from pgpu.app.settings import load_settings
from pgpu.client import Client
from pgpu.model import Array, Job, JobSpec, JobState, Request, Submission
from pgpu.units import MIB

MODEL = "RTX 3090"
HELD_MIB = 22_885
USED_MIB = 1_205
"""Of P2's job: what it holds by default, and what it uses."""

BAR = 1.3
"""From the project's design: by its fourth run it reserves at most so many times what it uses."""

DEADLINE_SECONDS = 300.0
LOOK_AGAIN_SECONDS = 0.05
AUTO = Request(0, is_estimated=True)
CODE = """
import pathlib, sys, time
from pgpu.workloads.__main__ import main
sys.argv[1:] = ["training", "--epochs", "1", "--batches", "20", "--host-ms", "4.2"]
code = main()
while pathlib.Path("held").exists():
    time.sleep(0.05)
sys.exit(code)
"""
"""P2's training; where `held` lies in its directory it holds its memory on, so that all can be counted."""


def main() -> int:
    """Run, print, write; 1 where the bar is missed or a job failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=25, help="jobs that are submitted together")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    with a_machine() as (client, folder):
        report = {**circumstances(), "driver": f"simulated {MODEL}", **measure(client, folder, arguments.waiting)}
    path = arguments.output / f"learned-sizes-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(json.dumps(report, indent=2))
    return 0 if report["fourth_times_used"] <= BAR and not report["failed"] else 1


def measure(client: Client, folder: Path, waiting: int) -> dict[str, Any]:
    """Let one call be learnt, then run it many times at once, as pgpu sizes it and as P2's job does itself."""
    spec = JobSpec((sys.executable, "p2.py"), "process", working_directory=str(folder))
    (folder / "p2.py").write_text(CODE, "utf-8")
    first = [finished(client, submitted(client, spec)) for _ in range(4)]
    waste = max(each.factor or 0.0 for each in client.waste())
    learned, failed = together(client, folder, spec, AUTO, waiting)
    asked, _ = together(client, folder, spec, Request(HELD_MIB * MIB), 3)
    return {
        "reserved_mib": [job.request.memory_bytes // MIB for job in first],
        "basis": [job.request.basis for job in first],
        "used_mib": [(job.peak_bytes or 0) // MIB for job in first],
        "fourth_times_used": round(first[3].request.memory_bytes / (USED_MIB * MIB), 3),
        "waste_of_the_first": round(waste, 1),
        "submitted_together": waiting,
        "ran_together": learned,
        "ran_together_as_p2_asks": asked,
        "failed": failed + sum(job.exit_code != 0 for job in first),
    }


def submitted(client: Client, spec: JobSpec) -> Job:
    """Submit one job with a size chosen by pgpu."""
    return client.submit(spec, AUTO, wait_timeout_seconds=None)


def finished(client: Client, job: Job) -> Job:
    """Wait for a job's end."""
    return client.wait(job.id)


def together(client: Client, folder: Path, spec: JobSpec, request: Request, count: int) -> tuple[int, int]:
    """Submit so many, let each hold its memory until no more start, and return how many ran at once and how many failed."""
    held = folder / "held"
    held.touch()
    jobs = client.submit_all([Submission(spec, request, array=Array(tuple(range(count))))])
    ids = {job.id for job in jobs}
    until(lambda: is_settled(client, ids))
    running = len(holding(client, ids))
    held.unlink()
    ended = [client.wait(job.id) for job in jobs]
    return running, sum(job.exit_code != 0 for job in ended)


def holding(client: Client, ids: set[str]) -> Sequence[Job]:
    """Return those that have memory."""
    reports = client.jobs(include_final=False)
    return [report.job for report in reports if report.job.id in ids and any(use.used_bytes for use in report.use)]


def is_settled(client: Client, ids: set[str]) -> bool:
    """Whether all that were granted hold what they use, and at least one was."""
    reports = [report for report in client.jobs(include_final=False) if report.job.id in ids]
    granted = [report for report in reports if report.job.state is not JobState.WAITING]
    return bool(granted) and all(any(use.used_bytes > 1000 * MIB for use in report.use) for report in granted)


@contextlib.contextmanager
def a_machine() -> Iterator[tuple[Client, Path]]:
    """Make a state directory and a runtime directory for one measurement."""
    with tempfile.TemporaryDirectory(prefix="pgpu-sizes-", dir="/dev/shm") as folder:
        (Path(folder) / "run").mkdir(mode=0o700)
        flags = {"state_dir": f"{folder}/state", "runtime_dir": f"{folder}/run", "simulate": MODEL, "host": "embedded"}
        client = open_client(load_settings(flags))
        try:
            yield client, Path(folder)
        finally:
            for report in client.jobs(include_final=False):
                client.stop(report.job.id, grace_seconds=0.0)


def until(question: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not question():
        if time.monotonic() > deadline:
            raise TimeoutError("it never came true")
        time.sleep(LOOK_AGAIN_SECONDS)  # noqa: TID251 - the pause between two looks


if __name__ == "__main__":
    raise SystemExit(main())
