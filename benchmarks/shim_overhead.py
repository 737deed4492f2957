"""What the shim adds to a CUDA call, in ns, and to the start of processes (`python -m benchmarks.shim_overhead`).

Four ways in turns, each round in processes of their own: without the shim, with it, with it and GPU time measured, as in
every slice, and with it and a share that does not hold the job back. On the simulated driver without memory behind allocations, so that the driver's own time is small.
Differences are what counts, the medians of the rounds': a real launch takes microseconds. An event costs here what a
simulated one costs, and on a card about as much as a launch; how many there are to a launch is the shim's doing. Writes
one JSON file into benchmarks/results and prints a table. `--short` takes seconds and looks only at the calls.
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
from enum import Enum
from pathlib import Path
from typing import Any

from tests.native_clients import client_path
from tests.slice_world import MIB, SliceWorld, a_slice

from pgpu.enforcement import limit_file
from pgpu.enforcement.board import BOARD_BYTES
from pgpu.enforcement.compute_word import NOT_SHARED, ComputeWord

RESULTS = Path(__file__).parent / "results"
SLICE_BYTES = 20 * 1024 * MIB
CONTEXT_BYTES = MIB
STARTED_TOGETHER = (1, 16, 200)
ROUNDS, SHORT_ROUNDS = 15, 5
SHIM_TARGETS_NS = {"launch": 10.0, "launch_streams_1": 10.0, "launch_per_thread": 10.0, "alloc+free": 100.0}
"""Added by the shim without a share; from the project's design."""

SHARE = ComputeWord(0.3, 100, is_measured=True, is_shared=True)
SHARE_TARGET_NS = 50.0
"""Added to a launch by its measurement, and by a share that does not hold it back."""

LAUNCHES = (
    "launch",
    "launch_per_thread",
    "launch_streams_1",
    "launch_streams_2",
    "launch_streams_4",
    "launch_streams_8",
    "launch_graph",
)
"""Every way to launch that the client knows but one."""

BESIDE_BLOCKING = "launch_beside_blocking"
"""Launches in the legacy default stream of a program that has blocking streams, where an event is a barrier: the same target, and
judged by itself, for it is known to need an event pair a launch (docs/limitations.md)."""

Rows = dict[str, dict[str, float]]


class Way(Enum):
    """How a round's process meets the driver."""

    BARE = "bare"
    SHIM = "shim"
    MEASURED = "measured"
    SHARE = "share"


WORDS = {
    Way.BARE: NOT_SHARED,
    Way.SHIM: NOT_SHARED,
    Way.MEASURED: ComputeWord(is_measured=True),
    Way.SHARE: SHARE,
}


def main() -> int:
    """Measure, print, write; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help=f"{SHORT_ROUNDS} rounds of the calls alone")
    parser.add_argument("--rounds", type=int, help=f"runs of each way (default: {ROUNDS})")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (SHORT_ROUNDS if arguments.short else ROUNDS)
    report = measure(rounds, has_starts=not arguments.short)
    print_table(report)
    path = arguments.output / f"shim-overhead-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(f"written to {path}")
    missed = misses(report["calls_ns"])
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


def measure(rounds: int, *, has_starts: bool) -> dict[str, Any]:
    """Measure all of it in one slice."""
    with a_slice(SLICE_BYTES) as world:
        world.environment["PGPU_SIMGPU_BACKING"] = "none"
        world.write_limit(context_bytes=CONTEXT_BYTES)
        make_board(world)
        calls = measure_calls(world, rounds)
        starts = measure_starts(world, max(3, rounds // 3)) if has_starts else {}
    return {**circumstances(), "rounds": rounds, "calls_ns": calls, "starts_ms": starts}


def misses(calls: Rows) -> list[str]:
    """Name the targets that were missed."""
    shim = [(name, "shim_adds", target) for name, target in SHIM_TARGETS_NS.items()]
    columns = ("measured_adds", "share_adds")
    share = [(name, column, SHARE_TARGET_NS) for name in LAUNCHES for column in columns]
    beside = [(BESIDE_BLOCKING, column, SHARE_TARGET_NS) for column in columns if BESIDE_BLOCKING in calls]
    return [
        f"{name} {column}: {calls[name][column]} ns, at most {target} ns were to be"
        for name, column, target in shim + share + beside
        if calls[name][column] > target
    ]


def make_board(world: SliceWorld) -> None:
    """Give the slice its file of GPU time, as the engine does."""
    board = world.directory / "board"
    board.mkdir()
    (board / "own").write_bytes(bytes(BOARD_BYTES))
    (world.directory / "time").symlink_to(board / "own")


def circumstances() -> dict[str, Any]:
    """Return when and on what this was measured."""
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


def measure_calls(world: SliceWorld, rounds: int) -> Rows:
    """Return the median ns of each call in each way, and what shim and share add, as medians of the rounds' differences."""
    seen: dict[str, dict[Way, list[float]]] = defaultdict(lambda: {way: [] for way in Way})
    for _ in range(rounds):
        for way in Way:
            limit_file.set_compute_word(world.limit, world.uuids[0], WORDS[way])
            for name, ns in run_client(world, is_shimmed=way is not Way.BARE).items():
                seen[name][way].append(ns)
    limit_file.set_compute_word(world.limit, world.uuids[0], NOT_SHARED)
    return {name: beside(times) for name, times in seen.items()}


def beside(times: dict[Way, list[float]]) -> dict[str, float]:
    """Put one call's three ways side by side."""
    medians = {way: statistics.median(times[way]) for way in Way}
    return {
        **{f"{way.value}_median": round(medians[way], 2) for way in Way},
        **{f"{way.value}_min": min(times[way]) for way in Way},
        "shim_adds": added(times[Way.SHIM], times[Way.BARE]),
        "measured_adds": added(times[Way.MEASURED], times[Way.SHIM]),
        "share_adds": added(times[Way.SHARE], times[Way.SHIM]),
        "shim_to_bare": round(medians[Way.SHIM] / medians[Way.BARE], 3),
        "share_to_shim": round(medians[Way.SHARE] / medians[Way.SHIM], 3),
    }


def added(these: list[float], those: list[float]) -> float:
    """Return the median of what each round's one took more than its other."""
    return round(statistics.median(one - other for one, other in zip(these, those, strict=True)), 2)


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
    calls = ("bare_median", "shim_median", "measured_median", "shim_adds", "measured_adds", "share_adds")
    starts = ("without_min", "with_min", "added_min", "added_median")
    print(f"{report['cpu']}, {report['cores']} cores, load {report['load_average']}, {report['rounds']} rounds each")
    for unit, rows, columns in (("ns", report["calls_ns"], calls), ("ms to start", report["starts_ms"], starts)):
        print(f"{unit:<22}" + "".join(f"{column:>16}" for column in columns))
        for name, row in rows.items():
            print(f"{name:<22}" + "".join(f"{row[column]:>16.2f}" for column in columns))


if __name__ == "__main__":
    raise SystemExit(main())
