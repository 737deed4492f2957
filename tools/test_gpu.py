"""Run the tests that need an NVIDIA GPU and record what they found: `make test-gpu`.

Writes one JSON file with date, GPU and driver into $OUT, or else into benchmarks/results/. Without a GPU it says why
nothing was run and succeeds: a machine without one is not broken.
"""

import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pynvml

ROOT = Path(__file__).parent.parent


def main() -> int:
    """Run, record, and return pytest's exit code."""
    try:
        machine = describe_gpu()
    except pynvml.NVMLError as error:
        print(f"test-gpu: nothing was run, since no NVIDIA GPU answers: {error}")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        junit = Path(scratch) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", f"--junitxml={junit}", *sys.argv[1:]]
        exit_code = subprocess.run(command, cwd=ROOT, check=False).returncode
        tests = list(tests_of(ET.parse(junit))) if junit.exists() else []  # noqa: S314 - pytest's own file
    path = result_path(machine["gpu"])
    path.write_text(
        json.dumps({"schema_version": 1, **machine, "exit_code": exit_code, "tests": tests}, indent=2) + "\n"
    )
    print(f"test-gpu: wrote {path}")
    return exit_code


def describe_gpu() -> dict[str, Any]:
    """Name the first GPU, its driver and the moment."""
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": pynvml.nvmlDeviceGetName(gpu),
        "memory_bytes": pynvml.nvmlDeviceGetMemoryInfo(gpu).total,
        "driver_version": pynvml.nvmlSystemGetDriverVersion(),
        "is_simulated": False,
    }


def result_path(gpu: str) -> Path:
    """Return where the record goes."""
    folder = Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results")
    folder.mkdir(parents=True, exist_ok=True)
    slug = "-".join(gpu.lower().split())
    return folder / f"gpu-{slug}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"


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
