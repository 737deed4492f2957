"""What the shim adds to a CUDA call, in ns, and to the start of processes (`python -m benchmarks.shim_overhead`).

With and without the shim in turns, on the simulated driver without memory behind allocations, so that the driver's own
time is small. Differences are what counts: a real launch takes microseconds. Writes one JSON file into
benchmarks/results and prints a table.
"""

import argparse
import datetime as dt
import json
import os
import platform
import statistics
import subprocess
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.native_clients import client_path
from tests.slice_world import MIB, SliceWorld, a_slice

RESULTS = Path(__file__).parent / "results"
SLICE_BYTES = 20 * 1024 * MIB
CONTEXT_BYTES = MIB
STARTED_TOGETHER = (1, 16, 200)
TARGETS_NS = {"launch": 10.0, "alloc+free": 100.0}
"""Added by the shim; from the project's design."""


def main() -> int:
    """Measure, print, write; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="runs with and without the shim, each")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    with a_slice(SLICE_BYTES) as world:
        world.environment["PGPU_SIMGPU_BACKING"] = "none"
        world.write_limit(context_bytes=CONTEXT_BYTES)
        calls = measure_calls(world, arguments.rounds)
        starts = measure_starts(world, max(3, arguments.rounds // 3))
    report = {**circumstances(), "rounds": arguments.rounds, "calls_ns": calls, "starts_ms": starts}
    print_table(report)
    path = arguments.output / f"shim-overhead-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(f"written to {path}")
    missed = [name for name, target in TARGETS_NS.items() if calls[name]["added_min"] > target]
    return 1 if missed else 0


def circumstances() -> dict[str, Any]:
    """Say when and on what this was measured."""
    cpu = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines()
           if line.startswith("model name")]  # fmt: skip
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "driver": "simulated, without backing",
        "load_average": round(os.getloadavg()[0], 2),
    }


def measure_calls(world: SliceWorld, rounds: int) -> dict[str, dict[str, float]]:
    """Return min and median ns of each call, with and without, and what the shim adds."""
    seen: dict[str, dict[bool, list[float]]] = defaultdict(lambda: {True: [], False: []})
    for _ in range(rounds):
        for is_shimmed in (True, False):
            for name, ns in run_client(world, is_shimmed=is_shimmed).items():
                seen[name][is_shimmed].append(ns)
    return {name: compared(times[True], times[False]) for name, times in seen.items()}


def run_client(world: SliceWorld, *, is_shimmed: bool) -> dict[str, float]:
    """Time every call once, in a process of its own."""
    command = [str(client_path("overhead", "shim-overhead"))]
    environment = world.environment_for(is_shimmed=is_shimmed)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return {name: float(ns) for name, ns in (line.split() for line in done.stdout.splitlines())}


def measure_starts(world: SliceWorld, rounds: int) -> dict[str, dict[str, float]]:
    """Return the ms until processes that start together have all initialised CUDA and ended."""
    found = {}
    for count in STARTED_TOGETHER:
        seen: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(rounds):
            for is_shimmed, times in seen.items():
                times.append(start_together(world, count, is_shimmed=is_shimmed))
        found[str(count)] = compared(seen[True], seen[False])
    return found


def start_together(world: SliceWorld, count: int, *, is_shimmed: bool) -> float:
    """Start processes at once and wait for all; returns ms."""
    command = [str(client_path("overhead", "shim-overhead")), "start"]
    environment = world.environment_for(is_shimmed=is_shimmed)
    began = time.perf_counter()
    processes = [subprocess.Popen(command, env=environment) for _ in range(count)]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"{sum(map(bool, codes))} of {count} processes could not initialise CUDA")
    return (time.perf_counter() - began) * 1000


def compared(with_shim: list[float], without: list[float]) -> dict[str, float]:
    """Put both kinds of runs side by side."""
    return {
        "without_min": min(without),
        "without_median": statistics.median(without),
        "with_min": min(with_shim),
        "with_median": statistics.median(with_shim),
        "added_min": round(min(with_shim) - min(without), 2),
        "added_median": round(statistics.median(with_shim) - statistics.median(without), 2),
    }


def print_table(report: dict[str, Any]) -> None:
    """Print one line for each call and each number of processes."""
    columns = ("without_min", "with_min", "added_min", "added_median")
    print(f"{report['cpu']}, {report['cores']} cores, load {report['load_average']}, {report['rounds']} rounds each")
    print(f"{'ns':<24}" + "".join(f"{column:>16}" for column in columns))
    for name, row in report["calls_ns"].items():
        print(f"{name:<24}" + "".join(f"{row[column]:>16.1f}" for column in columns))
    print(f"{'ms, started together':<24}")
    for count, row in report["starts_ms"].items():
        print(f"{count:<24}" + "".join(f"{row[column]:>16.1f}" for column in columns))


if __name__ == "__main__":
    raise SystemExit(main())
