"""The stand-in programs compute what they claim: their CUDA C runs on the host and meets the host's own answer."""

from __future__ import annotations

import argparse
import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from tests.native.kernels_on_host import COMPILER, HostDevice, HostRun

from pgpu.workloads.__main__ import PROBLEMS
from pgpu.workloads.cuda_driver import Module
from pgpu.workloads.kernels import Filling, Kernels
from pgpu.workloads.programs.antagonists import DRAM_STREAM, L2_SWEEP, MemoryAntagonist, Sweep
from pgpu.workloads.programs.problem import Buffers, Problem, solve
from pgpu.workloads.programs.stencils import Stack
from pgpu.workloads.workload_run import WorkloadError

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (c++) is installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


ONCE = argparse.Namespace(memory=None, iterations=1, seconds=None, host_ms=0.0, ahead=1)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_a_small_problem_has_the_hosts_answer(
    problem: type[Problem], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    solve(HostRun(problem.name, folder), problem.small(), ONCE)

    assert json.loads(capsys.readouterr().out)["computed"] is True


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_the_host_would_see_one_wrong_number(problem: type[Problem]) -> None:
    small = problem.small()
    answer = small.solve(small.host_buffers())
    assert small.difference(answer, small.host_buffers()) is None

    answer[len(answer) // 2] += 1

    assert f"at {len(answer) // 2} " in (small.difference(answer, small.host_buffers()) or "")


class Broken(Stack):
    """Forgets the second of its two steps."""

    __slots__ = ()

    def launch(self, module: Module, addresses: Any) -> None:
        heat, power, _ = addresses
        super().launch(module, (heat, power, power))

    def solve(self, buffers: Buffers) -> array[Any]:
        return super().solve(buffers)


def test_a_gpu_that_computes_something_else_is_refused(folder: Path) -> None:
    with pytest.raises(WorkloadError, match="the GPU has"):
        solve(HostRun("hotspot3d", folder), Broken.small(), ONCE)


@pytest.mark.parametrize("filling", [Filling("f", 700, 50, 300), Filling("i", 701, 5, -2), Filling("i", 300, 1, -1)])
def test_the_gpu_fills_buffers_as_the_host_says(filling: Filling, folder: Path) -> None:
    device = HostDevice(folder)
    address = device.allocate(filling.amount_bytes)
    Kernels(device).fill(address, filling, seed=3)
    found = array(filling.typecode, bytes(filling.amount_bytes))
    device.read(address, found)

    assert found == filling.values(3)


@pytest.mark.parametrize("antagonist", [L2_SWEEP, DRAM_STREAM], ids=lambda antagonist: antagonist.kernel)
def test_an_antagonist_reads_its_buffer_to_the_end(antagonist: MemoryAntagonist, folder: Path) -> None:
    run = HostRun(antagonist.kernel, folder)
    sweep = Sweep(run, antagonist.kernel, 5000 * 16, blocks=2, block_threads=antagonist.block_threads)
    beyond_zero = array("f", [-1.0])
    sink = array("f", [0.0])
    run.device.write(sweep.data + 5000 * 16 - 4, beyond_zero)
    run.device.write(sweep.sink, sink)
    sweep.launch(1)
    run.device.read(sweep.sink, sink)

    assert sink[0] == -1.0
