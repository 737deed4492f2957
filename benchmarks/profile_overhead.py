"""What being profiled costs a program (`python -m benchmarks.profile_overhead`).

Traced and not, in turns, under the same shim on the simulated driver: ns of a launch and of an allocate-and-free pair on a
driver without backing, and seconds of a whole program with kernels of 0.23 ms. The program's own profile states
a cost too, which is recorded beside it. Writes one JSON file into benchmarks/results and prints a table.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import CONTEXT_BYTES, RESULTS, SLICE_BYTES, circumstances, compared, run_client
from tests.slice_world import SliceWorld, a_slice

from pgpu.enforcement import limit_file, trace
from pgpu.profiling.measurement import summarise_log
from pgpu.structs import replace

ITERATIONS = 2000


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs traced and not, each")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    report = {**circumstances(), "rounds": arguments.rounds, **measured(arguments.rounds)}
    path = arguments.output / f"profile-overhead-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(json.dumps(report, indent=2))
    print(f"written to {path}")
    return 0


def measured(rounds: int) -> dict[str, Any]:
    """Return what each kind of run took, and what tracing adds."""
    calls: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    programs: dict[bool, list[float]] = {True: [], False: []}
    told: list[float] = []
    for _ in range(rounds):
        for is_traced in (True, False):
            calls[is_traced].append(call_times(is_traced=is_traced))
            seconds, fraction = program_seconds(is_traced=is_traced)
            programs[is_traced].append(seconds)
            told += [fraction] if is_traced else []
    names = ("launch", "alloc+free")
    return {
        "calls_ns": {
            name: compared([each[name] for each in calls[True]], [each[name] for each in calls[False]])
            for name in names
        },
        "program_seconds": compared(programs[True], programs[False]),
        "told_by_the_profile": sorted(told)[len(told) // 2],
    }


def call_times(*, is_traced: bool) -> dict[str, float]:
    """Time every call once."""
    with a_slice(SLICE_BYTES) as world:
        world.environment["PGPU_SIMGPU_BACKING"] = "none"
        prepare(world, is_traced=is_traced)
        return run_client(world, is_shimmed=True)


def program_seconds(*, is_traced: bool) -> tuple[float, float]:
    """Run a whole program; return its seconds, and the fraction of tracing in its own profile."""
    command = [sys.executable, "-m", "pgpu.workloads", "matvec", "--iterations", str(ITERATIONS), "--ahead", "20"]
    with a_slice(SLICE_BYTES) as world:
        prepare(world, is_traced=is_traced)
        environment = world.environment_for(is_shimmed=True)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        seconds = float(json.loads(done.stdout.splitlines()[-1])["compute_seconds"])
        log = trace.save(world.usage) if is_traced else None
    return seconds, 0.0 if log is None else summarise_log(trace.read(log)).overhead.fraction


def prepare(world: SliceWorld, *, is_traced: bool) -> None:
    """Write the slice's limit anew."""
    world.write_limit(context_bytes=CONTEXT_BYTES)
    if is_traced:
        limit = limit_file.read_limit(world.limit)
        world.limit.unlink()
        limit_file.write_limit(world.limit, replace(limit, flags=limit_file.TRACES))
        trace.prepare(world.usage)


if __name__ == "__main__":
    sys.exit(main())
