"""Each workload is a CUDA program that runs on the simulated driver as it would on NVIDIA's."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import DEADLINE_SECONDS

from pgpu.gpu.catalog import parse_model
from pgpu.gpu.simulated import start_simulated
from pgpu.libraries import SIMULATED_CUDA, library_path
from pgpu.workloads.__main__ import PROBLEMS
from pgpu.workloads.programs.problem import Problem

MIB = 1 << 20
DEVICE_BYTES = 24_265 * MIB
FAST = ("--gpu-ms", "0", "--host-ms", "0")


# Takes an amount of memory, says so, and holds it until its standard input ends.
OCCUPANT = """
import sys
from pgpu.workloads.workload_run import WorkloadRun
this = WorkloadRun("occupant")
this.memory.take(int(sys.argv[1]) - this.context.context_bytes)
print("held", flush=True)
sys.stdin.read()
"""


# Prints a line `PID bytes` for each process that NVML shows on the one GPU of a state directory.
LIST_PROCESSES = """
import sys
from pathlib import Path
from pgpu.gpu.nvml import NvmlSource
source = NvmlSource(Path(sys.argv[1]))
for process in source.processes(source.gpus()[0].uuid):
    print(process.pid, process.used_bytes)
"""

APART = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")


class Gpu:
    """A simulated RTX 3090 that programs share without pgpu."""

    def __init__(self, directory: Path) -> None:
        model, count = parse_model("RTX 3090")
        start_simulated(directory, model, count)
        self.directory = directory
        driver = str(library_path(SIMULATED_CUDA).parent)
        self._environment = {**os.environ, "LD_LIBRARY_PATH": driver, "PGPU_SIMGPU_DIR": str(directory)}
        self._environment.pop("TF_FORCE_GPU_ALLOW_GROWTH", None)
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        return self._start(("-m", "pgpu.workloads", *words), environment)

    def run(self, *words: str, exit_code: int = 0, **environment: str) -> dict[str, Any]:
        """Run to the end and return the JSON line, with what was said on standard error."""
        process = self.start(*words, **environment)
        standard_output, standard_error = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == exit_code, standard_error
        return {**json.loads(standard_output), "standard_error": standard_error}

    def hold_apart(self, held_mib: int) -> subprocess.Popen[str]:
        """Start a process that is PID 1 of a namespace of its own and holds an amount of memory."""
        return self._start(("-c", OCCUPANT, str(held_mib * MIB)), before=APART)

    def leave_free(self, free_mib: int) -> None:
        """Let a neighbour hold all memory but an amount, until the test ends."""
        occupant = self._start(("-c", OCCUPANT, str(DEVICE_BYTES - free_mib * MIB)))
        assert occupant.stdout is not None
        assert occupant.stdout.readline() == "held\n"

    def stop_all(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()

    def _start(
        self, words: tuple[str, ...], environment: Mapping[str, str] | None = None, before: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            (*before, sys.executable, *words),
            env={**self._environment, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    directory = Path(tempfile.mkdtemp(prefix="pgpu-test-workloads-", dir="/dev/shm"))
    simulated = Gpu(directory / "gpu")
    yield simulated
    simulated.stop_all()
    shutil.rmtree(directory)


def test_inference_holds_what_it_says_and_grows_to_it_late(gpu: Gpu) -> None:
    found = gpu.run("inference", "--batches", "20", *FAST)

    held = [held_bytes for _, held_bytes in found["memory_timeline"]]
    assert held == sorted(held)
    assert held[2] <= 1050 * MIB < held[3]
    assert 1203 * MIB <= held[-1] <= 1205 * MIB
    assert found["refusals"] == 0


def test_its_own_context_is_measured(gpu: Gpu) -> None:
    found = gpu.run("inference", "--batches", "2", *FAST)
    model, _ = parse_model("RTX 3090")

    assert found["context_source"] == "process"
    assert found["context_bytes"] == model.context_bytes


def test_kernels_compute_nothing_on_the_simulated_driver_and_the_result_says_so(gpu: Gpu) -> None:
    assert gpu.run("inference", "--batches", "2", *FAST)["computed"] is False


def test_inference_that_is_refused_its_growth_retries_and_completes(gpu: Gpu) -> None:
    gpu.leave_free(1100)
    found = gpu.run("inference", "--batches", "20", *FAST)

    assert found["batches"] == 20
    assert found["growth_refusals"] > 1
    assert 1050 * MIB <= found["held_bytes"] <= 1100 * MIB


def test_inference_whose_libraries_are_refused_dies_late_and_holds_memory_to_its_end(gpu: Gpu) -> None:
    gpu.leave_free(1000)
    found = gpu.run("inference", "--batches", "5", "--host-ms", "20", exit_code=1)

    assert "failed to initialise" in found["standard_error"]
    assert "CUDA error 2" in found["error"]
    assert 800 * MIB < found["held_bytes"] < 1000 * MIB
    assert found["seconds"] >= 0.1


def test_a_program_that_gets_no_context_dies_with_one_line(gpu: Gpu) -> None:
    gpu.leave_free(100)
    process = gpu.start("inference", "--batches", "2", *FAST)
    standard_output, standard_error = process.communicate(timeout=DEADLINE_SECONDS)

    assert process.returncode == 1
    assert standard_output == ""
    assert standard_error.count("\n") == 1
    assert "CUDA_ERROR_OUT_OF_MEMORY" in standard_error


def test_training_takes_what_p2_saw(gpu: Gpu) -> None:
    found = gpu.run("training", "--epochs", "1", "--batches", "2", *FAST)

    assert 22_883 * MIB <= found["held_bytes"] <= 22_885 * MIB
    assert found["used_bytes"] <= 1205 * MIB


@pytest.mark.parametrize(("words", "variable"), [(("--grow",), "false"), ((), "true")])
def test_training_takes_what_it_needs_where_it_may_grow(gpu: Gpu, words: tuple[str, ...], variable: str) -> None:
    found = gpu.run("training", "--epochs", "1", "--batches", "2", *FAST, *words, TF_FORCE_GPU_ALLOW_GROWTH=variable)

    assert 1170 * MIB <= found["held_bytes"] <= 1205 * MIB


def test_spin_takes_the_time_it_is_given(gpu: Gpu) -> None:
    assert gpu.run("spin", "--kernel-ms", "10", "--launches", "20")["seconds"] >= 0.2


def test_two_spins_share_the_gpus_time(gpu: Gpu) -> None:
    both = [gpu.start("spin", "--kernel-ms", "10", "--launches", "40", "--start-line") for _ in range(2)]
    for process in both:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    seconds = [json.loads(process.communicate()[0])["seconds"] for process in both]

    assert max(seconds) >= 0.75


def test_a_program_with_a_start_signal_begins_at_the_signal(gpu: Gpu) -> None:
    process = gpu.start("spin", "--kernel-ms", "1", "--launches", "1", "--start-signal")
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    sent_at_seconds = time.time()
    process.send_signal(signal.SIGUSR1)
    found = json.loads(process.communicate(timeout=DEADLINE_SECONDS)[0])

    assert found["executed_at_seconds"] < sent_at_seconds <= found["began_at_seconds"]


def test_a_hog_is_refused_with_error_2_and_goes_on(gpu: Gpu) -> None:
    found = gpu.run("hog", "--seconds", "0.3")

    assert found["error_number"] == 2
    assert found["beats_after_refusal"] > 0
    assert DEVICE_BYTES - 64 * MIB <= found["held_bytes"] <= DEVICE_BYTES


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_each_program_runs_and_says_that_nothing_was_computed(gpu: Gpu, problem: type[Problem]) -> None:
    found = gpu.run(problem.name, "--iterations", "2")

    assert (found["iterations"], found["computed"]) == (2, False)
    assert found["held_bytes"] - found["context_bytes"] >= sum(each.amount_bytes for each in usual(problem).fillings)


def usual(problem: type[Problem]) -> Problem:
    """The problem of the size that nobody chose."""
    parser = argparse.ArgumentParser()
    problem.add_arguments(parser)
    return problem.from_arguments(parser.parse_args([]))


def test_a_program_goes_on_for_the_time_it_is_given(gpu: Gpu) -> None:
    found = gpu.run("hotspot", "--seconds", "0.2")

    assert found["compute_seconds"] >= 0.2
    assert found["iterations"] > 1


def test_a_program_holds_the_memory_that_it_is_told_to(gpu: Gpu) -> None:
    assert 498 * MIB <= gpu.run("hotspot3d", "--memory", "500MiB")["held_bytes"] <= 500 * MIB


def test_a_program_whose_memory_is_too_little_says_how_much_it_needs(gpu: Gpu) -> None:
    process = gpu.start("hotspot3d", "--memory", "300MiB", "--layers", "64")
    standard_output, standard_error = process.communicate(timeout=DEADLINE_SECONDS)

    assert (process.returncode, standard_output) == (1, "")
    assert standard_error.count("\n") == 1
    assert "must be at least" in standard_error


@pytest.mark.parametrize(("antagonist", "size_mib"), [("l2_sweep", 6), ("dram_stream", 64)])
def test_an_antagonist_takes_a_tenth_of_the_gpu_for_the_time_it_is_given(
    gpu: Gpu, antagonist: str, size_mib: int
) -> None:
    found = gpu.run(antagonist, "--seconds", "0.1")

    assert found["standard_error"] == f"{antagonist}: running\n"
    assert (found["blocks"], found["size_bytes"]) == (8, size_mib * MIB)
    assert found["compute_seconds"] >= 0.1


@pytest.mark.parametrize(("antagonist", "blocks_per_sm"), [("fma_chains", 1), ("crowd", 3)])
def test_an_antagonist_of_multiprocessors_takes_them_all_unless_it_is_told_otherwise(
    gpu: Gpu, antagonist: str, blocks_per_sm: int
) -> None:
    whole, half = (gpu.run(antagonist, "--seconds", "0.05", *words) for words in ((), ("--sms-percent", "50")))

    assert whole["standard_error"] == f"{antagonist}: running\n"
    assert (whole["blocks"], half["blocks"]) == (82 * blocks_per_sm, 41 * blocks_per_sm)
    assert whole["compute_seconds"] >= 0.05
    assert whole["amount"] > 0


def test_without_a_driver_there_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        (sys.executable, "-m", "pgpu.workloads", "spin"),
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("inference", "--memory", "12parsecs"),
        ("inference", "--batches", "0"),
        ("spin", "--launches", "many"),
        ("hog", "--seconds", "-1"),
        ("hotspot3d", "--layers", "0"),
        ("matvec", "--size", "x"),
        ("gemm", "--memory", "1lb"),
        ("l2_sweep", "--size-mib", "-3"),
        ("digging",),
        (),
    ],
)
def test_bad_input_gets_one_line(words: tuple[str, ...]) -> None:
    done = subprocess.run((sys.executable, "-m", "pgpu.workloads", *words), capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


@pytest.mark.userns
def test_first_processes_of_namespaces_that_start_in_one_tick_are_told_apart(gpu: Gpu) -> None:
    amounts = [400 + 2 * number for number in range(8)]
    for holder in [gpu.hold_apart(held_mib) for held_mib in amounts]:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
    listed = subprocess.run(
        (sys.executable, "-c", LIST_PROCESSES, str(gpu.directory)), capture_output=True, text=True, check=True
    ).stdout
    shown = [int(line.split()[1]) // MIB for line in listed.splitlines()]

    assert sorted(shown) == amounts
