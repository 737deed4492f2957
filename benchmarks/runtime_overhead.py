"""What pgpu adds to the start of a program, and to Docker's own verbs, in ms (`python -m benchmarks.runtime_overhead`).

Starts are timed from the shell to the program, which prints the time: a process with `pgpu run` and without, a container of
`pgpu run --image` and of `docker run`, a container of `docker run --runtime=pgpu` with a slice and of runc. Verbs are timed to
their end: `docker run` without a request and with one that fits, `exec` and `kill` of a running container, and the runtimes'
own `state`. Both sides in turns, in one run, beside a running job, so that the agent of the queue is there. Memory: what one
more sleeping container adds to the private memory and the number of pgpu's processes. Needs root, an engine of
tools/docker-engine, and tools/test-image. Writes one JSON file into benchmarks/results and prints a table.
"""

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.job_cost import Machine, private_bytes
from benchmarks.shim_overhead import RESULTS, circumstances, compared
from tests.forked_commands import PGPU
from tests.system.docker.oci_place import OciPlace, docker, opened_oci_place
from tests.waiting import until

from pgpu.libraries import OCI_RUNTIME, library_path

IMAGE = os.environ.get("PGPU_TEST_IMAGE", "pgpu-test")
TARGETS_MS = {
    "start, pgpu run": 80.0,
    "start, run --image": 120.0,
    "start, --runtime=pgpu": 40.0,
    "exec": 20.0,
    "kill": 20.0,
    "state": 20.0,
}
"""From the project's design: what the median may add."""

MEMORY_TARGETS = {"--runtime=pgpu": {"processes": 0.0, "private_mib": 0.0}, "run --image": {"private_mib": 0.2}}
"""Likewise: what one container may add."""

FEW, MANY = 10, 60
_MIB = 1 << 20
_TIME = ("date", "+%s%N")
_ASKING = ("-e", "PGPU_MEMORY=2GiB")


def main() -> int:
    """Measure, print, write; 1 where a median misses its target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    memory = {kind: of_one_container(kind) for kind in MEMORY_TARGETS}
    with opened_oci_place(IMAGE) as place:
        place.detach("sliced", "1GiB", "sleep", "3600")  # its agent serves all others
        rows = {**starts(place, arguments.rounds), **verbs(place, arguments.rounds)}
    report = {**circumstances(), "rounds": arguments.rounds, "engine": _engine_version()}
    report |= {"verbs_ms": rows, "of_one_container": memory}
    print_table(report)
    path = arguments.output / f"runtime-overhead-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    missed = [name for name, target in TARGETS_MS.items() if rows[name]["added_median"] > target]
    missed += [
        f"{what} of {kind}"
        for kind, targets in MEMORY_TARGETS.items()
        for what, target in targets.items()
        if memory[kind][what] > target
    ]
    print("missed:", ", ".join(missed) or "none")
    return int(bool(missed))


def of_one_container(kind: str) -> dict[str, float]:
    """Return the slope over sleeping containers: of pgpu's processes, and of their private memory in MiB."""
    with opened_oci_place(IMAGE) as place:
        machine, names, seen = Machine(place.path, place.model), list[str](), []
        for count in (FEW, MANY):
            while len(names) < count:
                if kind == "run --image":
                    words = ("--memory", "300MiB", "--image", f"{IMAGE}:latest", "--", "sleep", "3600")
                    names.append(place.pgpu("run", "--detach", "--rm", *words).stdout.strip())
                else:
                    names.append(place.detach(f"sleeps-{len(names)}", "300MiB", "sleep", "3600"))
            until(lambda: sum(job["state"] == "running" for job in place.jobs()) == count)  # noqa: B023 - at once
            processes = machine.processes()
            seen.append((len(processes), sum(map(private_bytes, processes)) / _MIB))
        place.pgpu("stop", "--time", "0s", *names)
    added = [(many - few) / (MANY - FEW) for few, many in zip(*seen, strict=True)]
    return {"processes": round(added[0], 2), "private_mib": round(added[1], 3)}


def starts(place: OciPlace, rounds: int) -> dict[str, dict[str, float]]:
    """Return min and median ms from the shell to the program, without pgpu and with it."""
    image = f"{IMAGE}:latest"
    container = ("docker", "run", "--rm", "--network", "none")
    pgpu = (str(PGPU), "run", "--rm", "--memory", "1GiB")
    pairs: dict[str, tuple[Sequence[str], Sequence[str]]] = {
        "start, pgpu run": ((), (*pgpu, "--")),
        "start, run --image": ((*container, image), (*pgpu, "--image", image, "--")),
        "start, --runtime=pgpu": ((*container, image), (*container, "--runtime", place.runtime, *_ASKING, image)),
    }
    return {
        name: _both(partial(_start_ms, place, without), partial(_start_ms, place, with_pgpu), rounds)
        for name, (without, with_pgpu) in pairs.items()
    }


def _start_ms(place: OciPlace, words: Sequence[str]) -> float:
    began_ns = time.time_ns()
    done = subprocess.run([*words, *_TIME], env=place.environment, capture_output=True, check=True)
    return (int(done.stdout) - began_ns) / 1e6


def verbs(place: OciPlace, rounds: int) -> dict[str, dict[str, float]]:
    """Return min and median ms of each verb with both runtimes, and what pgpu adds."""
    plain, sliced = f"{place.runtime}-plain", f"{place.runtime}-sliced"
    docker("run", "--detach", "--name", plain, "--network", "none", f"{IMAGE}:latest", "sleep", "3600")
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
    return {
        name: _both(partial(_elapsed_ms, without), partial(_elapsed_ms, with_pgpu), rounds)
        for name, (without, with_pgpu) in runs.items()
    }


def _elapsed_ms(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1000


def _both(without: Callable[[], float], with_pgpu: Callable[[], float], rounds: int) -> dict[str, float]:
    """Measure both sides in turns, after one run of each: the first has an image to inspect and a limit to prove."""
    without(), with_pgpu()
    seen = [(without(), with_pgpu()) for _ in range(rounds)]
    return compared([pair[1] for pair in seen], [pair[0] for pair in seen])


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
    for kind, row in report["of_one_container"].items():
        print(f"one container of {kind}: " + ", ".join(f"{amount} {what}" for what, amount in row.items()))


if __name__ == "__main__":
    raise SystemExit(main())
