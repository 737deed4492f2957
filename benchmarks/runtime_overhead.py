"""What `--runtime=pgpu` adds to Docker's own verbs, in ms (`python -m benchmarks.runtime_overhead`).

Each verb is timed with runc and with pgpu in turn, in one run: `docker run` without a request and with one that fits, `exec`
and `kill` of a running container, and the runtimes' own `state`. Needs root, an engine of tools/docker-engine, and
tools/test-image. Writes one JSON file into benchmarks/results and prints a table.
"""

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances, compared
from tests.system.docker.oci_place import OciPlace, docker, opened_oci_place

from pgpu.libraries import OCI_RUNTIME, library_path

IMAGE = os.environ.get("PGPU_TEST_IMAGE", "pgpu-test")
TARGETS_MS = {"run, with a slice": 150.0, "exec": 20.0, "kill": 20.0, "state": 20.0}
"""From the project's design."""

_ASKING = ("-e", "PGPU_MEMORY=2GiB")


def main() -> int:
    """Measure, print, write; 1 where a median misses its target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    with opened_oci_place(IMAGE) as place:
        verbs = measure(place, rounds)
    report = {**circumstances(), "rounds": rounds, "engine": _engine_version(), "verbs_ms": verbs}
    print_table(report)
    path = RESULTS / f"runtime-overhead-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return int(any(verbs[verb]["added_median"] > target for verb, target in TARGETS_MS.items()))


def measure(place: OciPlace, rounds: int) -> dict[str, dict[str, float]]:
    """Return min and median ms of each verb with both runtimes, and what pgpu adds."""
    plain, sliced = f"{place.runtime}-plain", f"{place.runtime}-sliced"
    docker("run", "--detach", "--name", plain, "--network", "none", f"{IMAGE}:latest", "sleep", "3600")
    place.detach("sliced", "1GiB", "sleep", "3600")
    place.run("--rm", *_ASKING, command=("true",))  # the first has a limit to prove
    runs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "run, without a slice": (lambda: _run("runc"), lambda: _run(place.runtime)),
        "run, with a slice": (lambda: _run("runc"), lambda: _run(place.runtime, *_ASKING)),
        "exec": (lambda: docker("exec", plain, "true"), lambda: docker("exec", sliced, "true")),
        "kill": (
            lambda: docker("kill", "--signal", "CONT", plain),
            lambda: docker("kill", "--signal", "CONT", sliced),
        ),
        "state": (lambda: _state(["runc"]), lambda: _state([str(library_path(OCI_RUNTIME))])),
    }
    return {verb: _both(without, with_pgpu, rounds) for verb, (without, with_pgpu) in runs.items()}


def _both(without: Callable[[], object], with_pgpu: Callable[[], object], rounds: int) -> dict[str, float]:
    seen: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for times, act in zip(seen, (without, with_pgpu), strict=True):
            began = time.perf_counter()
            act()
            times.append((time.perf_counter() - began) * 1000)
    return compared(seen[1], seen[0])


def _run(runtime: str, *words: str) -> None:
    docker("run", "--rm", "--network", "none", "--runtime", runtime, *words, f"{IMAGE}:latest", "true")


def _state(runtime: Sequence[str]) -> None:
    """A container that is not there: the same work up to its directory."""
    subprocess.run([*runtime, "--root", "/nonexistent", "state", "none"], capture_output=True, check=False)


def _engine_version() -> str:
    return f"Docker {docker('version', '--format', '{{.Server.Version}}').stdout.strip()}"


def print_table(report: dict[str, Any]) -> None:
    """Print one line for each verb."""
    columns = ("without_min", "with_min", "added_min", "without_median", "with_median", "added_median")
    print(f"{report['cpu']}, {report['cores']} cores, load {report['load_average']}, {report['rounds']} rounds each")
    print(f"{'ms':<24}" + "".join(f"{column:>16}" for column in columns))
    for verb, row in report["verbs_ms"].items():
        print(f"{verb:<24}" + "".join(f"{row[column]:>16.1f}" for column in columns))


if __name__ == "__main__":
    raise SystemExit(main())
