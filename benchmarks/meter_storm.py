"""The full storm over the meter (`python -m benchmarks.meter_storm 2000`).

Kills from outside and at every point inside an operation, with forked children that survive, and the control that must
be caught. The same client as tests/native/test_meter_storm, with as many kills as asked. Prints a line for each storm and writes
one JSON file into benchmarks/results.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances
from tests.native_clients import client_path

WORKERS = 4
STORMS = (
    ("faults", "outside", ""),
    ("faults", "outside", "forks"),
    ("faults", "points", ""),
    ("faults", "points", "forks"),
    ("control", "points", ""),
)


def main() -> int:
    """Run every storm; 1 if one of them went wrong or the control was not caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int, nargs="?", default=2000, help="in each storm")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    storms = [run_storm(kind, source, survivors, arguments.kills) for kind, source, survivors in STORMS]
    report = {**circumstances(), "workers": WORKERS, "storms": storms, "frozen": run_frozen()}
    path = arguments.output / f"meter-storm-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(f"written to {path}")
    return 0 if all(storm["is_as_expected"] for storm in storms) else 1


def run_storm(kind: str, source: str, survivors: str, kills: int) -> dict[str, Any]:
    """Run one storm on a file of its own and print how it went."""
    began = time.perf_counter()
    words = ["run", str(WORKERS), str(kills), source, *([survivors] if survivors else [])]
    result = run_client(kind, words)
    is_expected = result["is_right"] != (kind == "control")
    print(
        f"{kind:<8} {source:<8} {survivors or '-':<6} {result['kills']:>6} kills {result['operations']:>10} operations "
        f"{result['checks']:>4} checks {'right' if result['is_right'] else 'WRONG':<6}"
        f"{'as expected' if is_expected else 'NOT AS EXPECTED'} {time.perf_counter() - began:6.1f} s"
    )
    return {"protocol": kind, **result, "is_as_expected": is_expected}


def run_frozen() -> dict[str, Any]:
    """Work beside a sibling that is frozen at each point in turn."""
    result = run_client("faults", ["freeze"])
    print(f"frozen at {result['passed_frozen']} of {result['points']} points, at most {result['largest_loops']} loops")
    return result


def run_client(kind: str, words: list[str]) -> dict[str, Any]:
    """Run the storm client; the usage file's path goes behind its first word."""
    with tempfile.NamedTemporaryFile(prefix="pgpu-storm-", dir="/dev/shm") as usage:
        command = [str(client_path("meter", f"meter-storm-{kind}")), words[0], usage.name, *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    raise SystemExit(main())
