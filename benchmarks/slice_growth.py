"""How long an allocation takes that makes its slice grow, in ms, beside one that fits (`python -m benchmarks.slice_growth`).

One job of `--memory auto` on a simulated GPU holds little until its slice has shrunk to that. Then it allocates 300 MiB again and again,
each more than its slice has left, and before each of them 2 MiB, which fit. Its slice must have grown by the agent's answer each time,
through the usage file, the ledger and the limit file. Writes one JSON file into benchmarks/results.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances
from benchmarks.simulated_machine import SimulatedMachine

MODEL = "RTX 3090"
ALLOCATIONS = 40
MEDIAN_TARGET_MS = 50.0
"""A pause that nobody notices in a run of minutes."""

MOST_TARGET_MS = 2000.0

PROGRAM = """
import json, sys, time
from cuda.bindings import driver as cuda
MIB = 1 << 20
cuda.cuInit(0)
cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
def slice_bytes():
    return int(cuda.cuMemGetInfo()[2])
def allocate(size):
    began = time.perf_counter_ns()
    error = int(cuda.cuMemAlloc(size)[0])
    assert error == 0, error
    return (time.perf_counter_ns() - began) / 1e6
allocate(512 * MIB)
while slice_bytes() > 4096 * MIB:
    time.sleep(0.01)
fits, grows = [], []
for _ in range(int(sys.argv[1])):
    fits.append(allocate(2 * MIB))
    before = slice_bytes()
    took = allocate(300 * MIB)
    if slice_bytes() > before:
        grows.append(took)
print(json.dumps([fits, grows]))
"""


def main() -> int:
    """Measure, print, write; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocations", type=int, default=ALLOCATIONS)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    fits, grows = measure(arguments.allocations)
    report = {
        **circumstances(),
        "driver": f"simulated {MODEL}",
        "fits_ms": summary(fits),
        "grows_ms": summary(grows),
        "targets_ms": {"median": MEDIAN_TARGET_MS, "most": MOST_TARGET_MS},
    }
    print(json.dumps(report, indent=2))
    path = arguments.output / f"slice-growth-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    is_met = report["grows_ms"]["median"] <= MEDIAN_TARGET_MS and report["grows_ms"]["most"] <= MOST_TARGET_MS
    return 0 if is_met else 1


def measure(allocations: int) -> tuple[list[float], list[float]]:
    """Return the times of allocations that fit, and of those that made the slice grow."""
    with SimulatedMachine.running(MODEL) as machine:
        machine.environment["PGPU_STABLE_TIME"] = "0.2s"
        words = ("run", "--memory", "auto", "--", sys.executable, "-c", PROGRAM, str(allocations))
        done = subprocess.run(
            machine.command(words), env=machine.environment, stdout=subprocess.PIPE, check=True, text=True
        )
    fits, grows = json.loads(done.stdout.splitlines()[-1])
    return fits, grows


def summary(times_ms: list[float]) -> dict[str, Any]:
    """Return count, median, 99th percentile and the most."""
    ordered = sorted(times_ms)
    return {
        "count": len(ordered),
        "median": round(statistics.median(ordered), 3),
        "99 %": round(ordered[math.ceil(0.99 * len(ordered)) - 1], 3),
        "most": round(ordered[-1], 3),
    }


if __name__ == "__main__":
    sys.exit(main())
