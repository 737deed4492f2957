"""What the launcher costs from its start to execve, in ms (`python -m benchmarks.launcher_start`).

Three ways in turns: `true` started directly, by the launcher without a view (a job without a GPU), and by the launcher with the
view of a slice of empty files. `--against PROGRAM` adds a fourth, another build of the launcher with the same view. Processor time is
that of the whole process (`wait4`): launcher, `true` and the end of its mount namespace. Elapsed time ends with the report pipe, which
execve closes (directly: with `posix_spawn`, which returns after execve). Medians; `ready` is the launcher alone, up to its report.
Writes one JSON file into benchmarks/results and prints a table.
"""

import argparse
import json
import os
import shutil
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances
from tests.contract.runtime_worlds import make_bare_delivery

from pgpu.libraries import LAUNCHER, library_path
from pgpu.runtimes.launcher import spawn
from pgpu.runtimes.process_runtime import PRELOAD_PATH, shadows

ROUNDS = 400
TARGETS_MS = {"cpu": 2.5, "elapsed": 5.0}
"""From the project's plan, for the launcher with a view as root: what it adds to `true`, and how long until execve."""

TRUE = "/bin/true"
ENVIRONMENT = b"".join(b"VARIABLE_%d=%s\0" % (number, b"x" * 40) for number in range(30))

Times = dict[str, float]


def main() -> int:
    """Measure, print, write; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="starts of each way")
    parser.add_argument("--against", type=Path, help="another build of the launcher, in a file with its commit's name")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgpu-launcher-", dir="/dev/shm") as folder:
        ways = make_ways(Path(folder), arguments.against)
        seen = measure(ways, arguments.rounds)
    figures = {name: summary(times) for name, times in seen.items()}
    added = round(figures["view"]["cpu"]["median"] - figures["direct"]["cpu"]["median"], 3)
    reached = {"cpu": added, "elapsed": figures["view"]["elapsed"]["median"]}
    report = {
        **circumstances(),
        "commit": commit(),
        "is_real_time": os.sched_getscheduler(0) in {os.SCHED_FIFO, os.SCHED_RR},
        "user": os.geteuid(),
        "mounts": len(Path("/proc/self/mountinfo").read_text("utf-8").splitlines()),
        "rounds": arguments.rounds,
        "against": arguments.against.name if arguments.against else None,
        "ms": figures,
        "view_adds_cpu_ms": added,
        "targets_ms": TARGETS_MS,
        "missed": {name: value for name, value in reached.items() if value > TARGETS_MS[name]},
    }
    print_table(report)
    path = arguments.output / f"launcher-start-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(f"written to {path}")
    return 1 if report["missed"] else 0


def make_ways(folder: Path, against: Path | None) -> Mapping[str, Callable[[], Times]]:
    """Lay out the slice and return how each way starts one process and times it."""
    delivery = make_bare_delivery(folder)
    (folder / "time").mkdir()
    (folder / "board").mkdir()
    for name in ("time", "board"):
        (delivery.slice_directory / name).mkdir()
    view = ["--slice", str(delivery.slice_directory), "--usage", str(delivery.usage_path)]
    view += ["--time", str(folder / "time"), "--board", str(folder / "board")]
    view += ["--simulated", str(delivery.simulated_state_directory)]
    view += [word for shim, path in shadows() for word in ("--shadow", f"{shim}={path}")]
    view += ["--preload-path", str(PRELOAD_PATH)]
    launcher = library_path(LAUNCHER)
    ways = {
        "direct": start_directly,
        "plain": lambda: start_by(launcher, []),
        "view": lambda: start_by(launcher, view),
    }
    if against is not None:
        other = Path(shutil.copy(against, folder / "against"))
        ways["against"] = lambda: start_by(other, view)
    return ways


def measure(ways: Mapping[str, Callable[[], Times]], rounds: int) -> dict[str, list[Times]]:
    """Run all ways in turns, after a round that does not count."""
    for way in ways.values():
        way()
    seen: dict[str, list[Times]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            seen[name].append(way())
    return seen


def start_directly() -> Times:
    """Start `true` alone."""
    began = time.perf_counter()
    pid = os.posix_spawn(TRUE, [TRUE], {})
    elapsed = time.perf_counter() - began
    return {"cpu": processor_ms(pid), "elapsed": elapsed * 1e3}


def start_by(launcher: Path, words: Sequence[str]) -> Times:
    """Start `true` by a launcher, as the runtime does."""
    control_end, control = os.pipe()
    report, report_end = os.pipe()
    began = time.perf_counter()
    pid = spawn(launcher, [*words, "--", TRUE], (0, 1, 2, control_end, report_end))
    os.close(control_end)
    os.close(report_end)
    os.write(control, struct.pack("<Q", len(ENVIRONMENT)) + ENVIRONMENT)
    told = os.read(report, 4096)
    ready = time.perf_counter()
    if told != b"ready\n":
        raise SystemExit(f"{launcher} failed: {told!r}")
    # Of the whole process so far, in ns; exact, since it waits in read.
    ready_ns = int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[0])
    resumed = time.perf_counter()
    os.write(control, b"G")
    os.read(report, 4096)
    elapsed = ready - began + time.perf_counter() - resumed
    os.close(control)
    os.close(report)
    return {"cpu": processor_ms(pid), "elapsed": elapsed * 1e3, "ready_cpu": ready_ns / 1e6}


def processor_ms(pid: int) -> float:
    """Reap a process and return its processor time."""
    _, status, used = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"status {status}")
    return (used.ru_utime + used.ru_stime) * 1e3


def summary(times: Sequence[Times]) -> dict[str, dict[str, float]]:
    """Return least, median and 90th percentile of each figure."""
    found = {}
    for figure in times[0]:
        values = [each[figure] for each in times]
        tenths = statistics.quantiles(values, n=10)
        found[figure] = {
            "min": round(min(values), 3),
            "median": round(statistics.median(values), 3),
            "p90": round(tenths[-1], 3),
        }
    return found


def commit() -> str:
    """Return the checkout's commit, with a mark where files differ from it."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()


def print_table(report: Mapping[str, Any]) -> None:
    """Print one line for each way."""
    print(f"{report['cpu']}, {report['cores']} cores, load {report['load_average']}; ms: min / median / p90")
    for name, figures in report["ms"].items():
        parts = (
            f"{figure} " + " / ".join(f"{value:.2f}" for value in each.values()) for figure, each in figures.items()
        )
        print(f"{name:<8}" + "   ".join(parts))
    print(f"the view adds {report['view_adds_cpu_ms']:.2f} ms of processor time to {TRUE}; missed: {report['missed']}")


if __name__ == "__main__":
    raise SystemExit(main())
