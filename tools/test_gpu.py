"""Run on this machine's NVIDIA GPU what needs one, and record what was found: `make test-gpu`.

Tests first, then P1's twenty jobs with pgpu and without, P3's MPS table, wall and overhead, the sensitivity of some
programs to caches and memory (beside what Nsight Compute counts, where it is on PATH), and what the shim adds to a launch and to
a PyTorch training step. Each part is a command of its own with a limit of time: one that fails or hangs does not stop the
others, and all together take at most ten minutes. Writes one JSON file with date, GPU and driver, and the parts' own files
beside it, into $OUT, or else into benchmarks/results/. Without a GPU it prints why nothing was run and succeeds: a machine
without one is not broken.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pynvml

ROOT = Path(__file__).parent.parent
PGPU = (sys.executable, "-c", "import sys; from pgpu.cli.main import main; sys.exit(main())")
BUDGET_SECONDS = 570.0
"""For all parts together: ten minutes less the time to start and to write the record."""

KILLED = 124
TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class Part:
    """One command."""

    name: str
    command: tuple[str, ...]
    limit_seconds: float
    is_json: bool = True
    """Whether its last line on standard output is the result."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a part."""

    name: str
    exit_code: int
    """124: it exceeded its time limit."""

    seconds: float
    found: Any
    """The JSON that it printed; None where it printed none."""

    said: Sequence[str]
    """The end of its output where it failed."""


def main() -> int:
    """Run, record, and return 1 if a part failed."""
    arguments = words().parse_args()
    try:
        machine = describe_gpu()
    except pynvml.NVMLError as error:
        print(f"test-gpu: nothing was run, since no NVIDIA GPU answers: {error}")
        return 0
    path = result_path(machine["gpu"])
    with tempfile.TemporaryDirectory() as scratch:
        junit = Path(scratch) / "junit.xml"
        chosen = [part for part in parts(junit, path.with_suffix("")) if part.name in (arguments.part or [part.name])]
        outcomes = []
        for outcome in run_all(chosen, arguments.seconds):
            outcomes.append(outcome)
            write(path, machine, outcomes, junit)
            print(f"test-gpu: {outcome.name}: exit code {outcome.exit_code} after {outcome.seconds:.0f} s", flush=True)
    print(f"test-gpu: wrote {path}")
    return int(any(outcome.exit_code != 0 for outcome in outcomes))


def words() -> argparse.ArgumentParser:
    """Read what a user may choose."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [part.name for part in parts(Path(), Path())]
    parser.add_argument("--part", action="append", choices=names, help="only this one; may be given again")
    parser.add_argument("--seconds", type=float, default=BUDGET_SECONDS, help="of all parts together (570)")
    return parser


def parts(junit: Path, folder: Path) -> list[Part]:
    """List all parts, the most important first."""
    p1 = (*PGPU, "lab", "p1", "--json", "--output", str(folder), "--both", "--jobs", "20", "--repeat", "3")
    p3 = (*PGPU, "lab", "p3", "--json", "--output", str(folder), "--part")
    tests = (sys.executable, "-m", "pytest", "-m", "gpu", f"--junitxml={junit}", *files_of_tests())
    return [
        Part("tests", tests, 240, is_json=False),
        Part("p1", p1, 60),
        Part("p3-mps", (*p3, "mps", "--repeat", "3"), 150),
        Part("sensitivity-matvec", sensitivity("matvec", "--size", "40960"), 100),
        Part("sensitivity-nbody", sensitivity("nbody", "--size", "40960"), 100),
        Part("sensitivity-hotspot3d", sensitivity("hotspot3d", "--layers", "64"), 100),
        Part("training-step", (sys.executable, "-m", "benchmarks.training_step"), 120),
        Part("p3-overhead", (*p3, "overhead", "--repeat", "2"), 120),
        Part("p3-wall", (*p3, "wall", "--jobs", "53", "--without-pgpu"), 120),
        Part("launch-cost", launch_cost(folder), 60, is_json=False),
    ]


def files_of_tests() -> list[str]:
    """List the files with a test for a GPU: to collect the others takes packages that a bare machine with a GPU may lack."""
    return sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text("utf-8"))


def sensitivity(*program: str) -> tuple[str, ...]:
    """Return the command that measures a program alone and beside antagonists."""
    workload = (sys.executable, "-m", "pgpu.workloads", *program, "--ahead", "20", "--seconds", "2")
    counters = ("--ncu",) if shutil.which("ncu") else ()
    return (*PGPU, "profile", "--sensitivity", *counters, "--runs", "1", "--memory", "4GiB", "--json", "--", *workload)


def launch_cost(folder: Path) -> tuple[str, ...]:
    """Return the command that times calls with the shim and without on this machine's processor."""
    return (sys.executable, "-m", "benchmarks.shim_overhead", "--rounds", "3", "--output", str(folder))


def run_all(chosen: Sequence[Part], budget_seconds: float) -> Iterator[Outcome]:
    """Run the parts one after the other; a part without remaining time is not started."""
    deadline_seconds = time.monotonic() + budget_seconds
    for part in chosen:
        left_seconds = deadline_seconds - time.monotonic()
        if left_seconds <= 0:
            yield Outcome(part.name, KILLED, 0.0, None, ["no time was left for it"])
        else:
            yield run(part, min(part.limit_seconds, left_seconds))


def run(part: Part, limit_seconds: float) -> Outcome:
    """Run one part; after its time limit, kill it and all its children."""
    began_seconds = time.monotonic()
    with subprocess.Popen(
        part.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            standard_output, standard_error = process.communicate(timeout=limit_seconds)
            exit_code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            standard_output, standard_error = process.communicate()
            exit_code = KILLED
    found = last_json(standard_output) if part.is_json else None
    lines = [*standard_output.splitlines(), *standard_error.splitlines()]
    said = [] if exit_code == 0 else [line[:500] for line in lines[-TAIL_LINES:]]
    return Outcome(part.name, exit_code, round(time.monotonic() - began_seconds, 1), found, said)


def last_json(text: str) -> Any:
    """Return the whole text as JSON, or its last line that is; None where there is none."""
    for candidate in (text, *reversed(text.splitlines())):
        try:
            return json.loads(candidate)
        except ValueError:
            continue
    return None


def write(path: Path, machine: dict[str, Any], outcomes: Sequence[Outcome], junit: Path) -> None:
    """Write the results so far: a run that is interrupted leaves those."""
    tests = list(tests_of(ET.parse(junit))) if junit.exists() else []  # noqa: S314 - pytest's own file
    record = {"schema_version": 2, **machine, "parts": [asdict(outcome) for outcome in outcomes], "tests": tests}
    path.write_text(json.dumps(record, indent=2) + "\n")


def describe_gpu() -> dict[str, Any]:
    """Name the first GPU, its driver and the moment."""
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": pynvml.nvmlDeviceGetName(gpu),
        "memory_bytes": pynvml.nvmlDeviceGetMemoryInfo(gpu).total,
        "driver_version": pynvml.nvmlSystemGetDriverVersion(),
        "is_simulated": "PGPU_SIMGPU_DIR" in os.environ,
    }


def result_path(gpu: str) -> Path:
    """Return where the record goes; a folder of the same name holds the parts' own files."""
    folder = Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results")
    path = folder / f"gpu-{'-'.join(gpu.lower().split())}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    path.with_suffix("").mkdir(parents=True, exist_ok=True)
    return path


def tests_of(junit: "ET.ElementTree[Any]") -> Iterator[dict[str, Any]]:
    """Read name, outcome, seconds and recorded properties of each test."""
    for case in junit.iter("testcase"):
        bad = next((child for child in case if child.tag in {"failure", "error", "skipped"}), None)
        yield {
            "name": f"{case.get('classname')}::{case.get('name')}",
            "outcome": "passed" if bad is None else bad.tag,
            "why": None if bad is None else bad.get("message"),
            "seconds": float(case.get("time", "0")),
            "found": {each.get("name"): each.get("value") for each in case.iter("property")},
        }


if __name__ == "__main__":
    sys.exit(main())
