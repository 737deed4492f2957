"""How long a node takes to hold many claims that come at once (`python -m benchmarks.claims_at_once`).

Threads of one process call `Claims.hold` together, as a kubelet calls the driver, on simulated GPUs in a new state directory. The
time is from the first call to the last answer: by then every slice binds. Then all are released. Also the processes of pgpu that
the claims added. Writes one JSON file into benchmarks/results.
"""

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances
from tests.clearing import clear

from pgpu.app.composition import make_engine
from pgpu.app.settings import Settings
from pgpu.engine.claims.engine_claims import EngineClaims
from pgpu.model import Claim, Slice
from pgpu.units import GIB

MODEL = "H100x8"
TARGET_SECONDS = 3.0
"""From the project's plan, for 100 claims."""

SLICE_BYTES = 4 * GIB


def main() -> int:
    """Measure, print, write; 1 where the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--claims", type=int, default=100)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="pgpu-claims-", dir="/dev/shm"))
    try:
        engine = make_engine(Settings(state_dir=root / "state", runtime_dir=root, simulate=MODEL))
        node = EngineClaims(engine)
        uuids = [gpu.uuid for gpu in engine.gpus.gpus()]
        made = [
            Claim(f"uid-{number}", "default", f"claim-{number}", (Slice(uuids[number % len(uuids)], SLICE_BYTES),))
            for number in range(arguments.claims + 1)
        ]
        first, *claims = made
        node.hold(first)  # the context of a GPU is measured once, and the agent is started
        before = processes(root)
        held = at_once([lambda claim=each: node.hold(claim) for each in claims])
        added = processes(root) - before
        released = at_once([lambda claim=each: node.free(claim.uid) for each in claims])
        node.free(first.uid)
    finally:
        clear(root)
    report: dict[str, Any] = {
        **circumstances(),
        "driver": f"simulated {MODEL}",
        "claims": arguments.claims,
        "hold_seconds": held,
        "release_seconds": released,
        "processes_added": added,
        "target_seconds": TARGET_SECONDS,
    }
    path = arguments.output / f"claims-at-once-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(json.dumps(report, indent=2))
    return 1 if held > TARGET_SECONDS else 0


def at_once(calls: list[Any]) -> float:
    """Make the calls in a thread each and return how long they took together, in s.

    Raises:
        RuntimeError: One of them failed.
    """
    failed: list[Exception] = []

    def make(call: Any) -> None:
        try:
            call()
        except Exception as exc:  # noqa: BLE001 - reported below, with the others
            failed.append(exc)

    threads = [threading.Thread(target=make, args=(call,)) for call in calls]
    began = time.monotonic()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(calls)} calls failed: {failed[0]}") from failed[0]
    return round(time.monotonic() - began, 2)


def processes(root: Path) -> int:
    """Return how many processes have the directory in their command line."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += str(root).encode() in path.read_bytes()
        except OSError:
            continue
    return found


if __name__ == "__main__":
    raise SystemExit(main())
