"""What holds on the simulated driver holds on NVIDIA's: run by `make test-gpu`, which records the outcome.

Amounts are recorded as properties, so that a result names what was measured and not only that it passed.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pgpu.workloads.__main__ import PROBLEMS
from pgpu.workloads.programs.problem import Problem

pytestmark = pytest.mark.gpu

MIB = 1 << 20
SLICE_BYTES = 2048 * MIB
PGPU = (sys.executable, "-c", "import sys; from pgpu.cli.main import main; sys.exit(main())")
Record = Callable[[str, object], None]

_GPU_SECONDS = 2.0
"""GPU time that a job under a share of half the GPU uses."""

_POINTS = 5
"""The target is 2 points over a long run; these are short, and begin with the first period's whole budget."""

ALLOCATORS = {
    "native": "",
    "expandable": "expandable_segments:True",
    "stream-ordered": "backend:cudaMallocAsync",
}

TORCH_PROGRAM = """
import json, torch
free, total = torch.cuda.mem_get_info()
held, refused = [], False
try:
    while len(held) < 1000:
        held.append(torch.ones(64 << 20, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError:
    refused = True
held_mib = 64 * len(held)
del held
torch.cuda.empty_cache()
a = torch.arange(9.0, device="cuda").reshape(3, 3)
print(json.dumps({"total": total, "held_mib": held_mib, "refused": refused, "product": (a @ a).sum().item()}))
"""


def run(*command: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a program that ends with a JSON line, and return it."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})}, timeout=300
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def workload(*words: str) -> dict[str, Any]:
    return run(sys.executable, "-m", "pgpu.workloads", *words)


@pytest.fixture
def in_a_slice(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run_in_a_slice(*command: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
        start = (*PGPU, "--state-dir", str(tmp_path), "run", "--memory", "2GiB", "--")
        return run(*start, *command, environment=environment)

    return run_in_a_slice


def test_kernels_run_for_the_time_they_are_given(record_property: Record) -> None:
    found = workload("spin", "--kernel-ms", "5", "--launches", "20")
    record_property("kernel_seconds", found["kernel_seconds"])

    assert found["computed"] is True
    assert found["kernel_seconds"] >= 0.1


def test_inference_computes_what_the_host_computes(record_property: Record) -> None:
    found = workload("inference", "--batches", "20")
    record_property("context_bytes", found["context_bytes"])

    assert found["computed"] is True
    assert found["held_bytes"] <= 1205 * MIB


def test_training_learns(record_property: Record) -> None:
    found = workload("training", "--grow", "--epochs", "3", "--batches", "20")
    record_property("losses", found["losses"])

    assert found["losses"][-1] < found["losses"][0]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_each_program_computes_what_the_host_computes(problem: type[Problem], record_property: Record) -> None:
    found = workload(problem.name, "--iterations", "5")
    record_property("iteration_seconds", found["compute_seconds"] / found["iterations"])
    record_property("sizes", found["sizes"])

    assert found["computed"] is True


@pytest.mark.parametrize("antagonist", ["l2_sweep", "dram_stream"])
def test_an_antagonist_moves_bytes_on_a_tenth_of_the_gpu(antagonist: str, record_property: Record) -> None:
    found = workload(antagonist, "--seconds", "2")
    for name in ("bytes_per_second", "size_bytes", "blocks"):
        record_property(name, found[name])

    assert found["bytes_per_second"] > 0


@pytest.mark.parametrize("percent", [10, 30, 50, 70])
@pytest.mark.parametrize("kernel_ms", [0.5, 5, 20])
def test_a_strict_share_holds_a_job_that_is_alone(
    tmp_path: Path, percent: int, kernel_ms: float, record_property: Record
) -> None:
    launches = round(_GPU_SECONDS * 1000 / kernel_ms * percent / 50)
    words = ("-m", "pgpu.workloads", "spin", "--kernel-ms", str(kernel_ms), "--launches", str(launches))
    asked = ("run", "--memory", "2GiB", "--compute", f"{percent}%", "--strict", "--")
    found = run(*PGPU, "--state-dir", str(tmp_path), *asked, sys.executable, *words)
    got_percent = 100 * found["kernel_seconds"] / found["compute_seconds"]
    record_property("got_percent", round(got_percent, 2))

    assert abs(got_percent - percent) <= _POINTS


def test_the_doctor_tries_the_gpu(tmp_path: Path) -> None:
    done = subprocess.run([*PGPU, "--state-dir", str(tmp_path), "doctor"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok    trial on a GPU: the limit binds" in done.stdout


def test_a_hog_is_refused_at_its_slice_and_goes_on(
    in_a_slice: Callable[..., dict[str, Any]], record_property: Record
) -> None:
    found = in_a_slice(sys.executable, "-m", "pgpu.workloads", "hog", "--seconds", "1")
    record_property("held_bytes", found["held_bytes"])

    assert found["error_number"] == 2
    assert found["beats_after_refusal"] > 0
    assert 0.9 * SLICE_BYTES <= found["held_bytes"] <= SLICE_BYTES


def test_a_take_all_training_takes_its_slice(
    in_a_slice: Callable[..., dict[str, Any]], record_property: Record
) -> None:
    found = in_a_slice(sys.executable, "-m", "pgpu.workloads", "training", "--epochs", "2", "--batches", "10")
    record_property("held_bytes", found["held_bytes"])

    assert found["computed"] is True
    assert 0.9 * SLICE_BYTES <= found["held_bytes"] <= SLICE_BYTES


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_pytorch_sees_and_keeps_its_slice(
    in_a_slice: Callable[..., dict[str, Any]], allocator: str, record_property: Record
) -> None:
    environment = {"PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator]}
    found = in_a_slice(sys.executable, "-c", TORCH_PROGRAM, environment=environment)
    record_property("held_mib", found["held_mib"])

    assert found["total"] == SLICE_BYTES
    assert found["refused"] is True
    assert found["product"] == 486.0
