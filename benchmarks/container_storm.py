"""The full storm from inside containers (`python -m benchmarks.container_storm 2000`).

The client of benchmarks.meter_storm, in one container and over three that share one usage file, so that every kill
crosses PID namespaces. It needs a container engine and the image `pgpu-test:tiny` (tools/test-image). Prints a line for
each storm and writes one JSON file into benchmarks/results.
"""

import argparse
import json
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.meter_storm import WORKERS
from benchmarks.shim_overhead import RESULTS, circumstances
from tests.native_clients import client_path

IMAGE = "pgpu-test:tiny"
CONTAINERS = 3


def main() -> int:
    """Run every storm; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int, nargs="?", default=2000, help="in each storm")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    storms = [storm_in_one(source, arguments.kills) for source in ("outside", "points")]
    storms += [storm_over_three(source, arguments.kills) for source in ("outside", "points")]
    report = {**circumstances(), "workers_in_each_container": WORKERS, "storms": storms}
    path = arguments.output / f"container-storm-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(f"written to {path}")
    return 0 if all(storm["is_right"] for storm in storms) else 1


def storm_in_one(source: str, kills: int) -> dict[str, Any]:
    """One container; its storm compares the count with the sum of the live processes every few kills."""
    began = time.perf_counter()
    with usage_file() as usage:
        result = run_container(Path(usage.name), source, kills, is_shared=False)
    return told({"containers": 1, **result}, began)


def storm_over_three(source: str, kills: int) -> dict[str, Any]:
    """Several at once on one file: the limit holds for their sum, and none of their usage remains at the end."""
    began = time.perf_counter()
    with usage_file() as usage, ThreadPoolExecutor(CONTAINERS) as pool:
        path = Path(usage.name)
        share = kills // CONTAINERS + 1
        results = list(pool.map(lambda _: run_container(path, source, share, is_shared=True), range(CONTAINERS)))
        is_empty = subprocess.run([client(), "check", usage.name, "0"], check=False).returncode == 0
    storm = {
        "containers": CONTAINERS,
        "source": source,
        "kills": sum(result["kills"] for result in results),
        "operations": sum(result["operations"] for result in results),
        "over_limit": sum(result["over_limit"] for result in results),
        "is_empty_at_the_end": is_empty,
        "is_right": is_empty and all(result["over_limit"] == 0 for result in results),
    }
    return told(storm, began)


def run_container(usage: Path, source: str, kills: int, *, is_shared: bool) -> dict[str, Any]:
    """Run the client in a container of its own, with forked children that survive."""
    words = [
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        "--volume",
        f"{usage}:/usage",
        "--volume",
        f"{client()}:/storm:ro",
    ]
    words += ["--env", "STORM_SHARED=1"] if is_shared else []
    storm = ["/storm", "run", "/usage", str(WORKERS), str(kills), source, "forks"]
    done = subprocess.run([*words, IMAGE, *storm], capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def usage_file() -> Any:
    """Make an empty usage file that every user may write, on a tmpfs."""
    file = tempfile.NamedTemporaryFile(prefix="pgpu-storm-", dir="/dev/shm")  # noqa: SIM115 - the caller's with
    Path(file.name).chmod(0o666)
    return file


def client() -> str:
    """Return the storm client's path."""
    return str(client_path("meter", "meter-storm-faults"))


def told(storm: dict[str, Any], began: float) -> dict[str, Any]:
    """Print how a storm went and return it."""
    print(
        f"{storm['containers']} container(s) {storm.get('source', ''):<8} {storm['kills']:>6} kills "
        f"{storm['operations']:>10} operations {'right' if storm['is_right'] else 'WRONG':<6}"
        f"{time.perf_counter() - began:6.1f} s"
    )
    return storm


if __name__ == "__main__":
    raise SystemExit(main())
