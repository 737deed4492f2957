"""Nsight Compute's command line, NVIDIA's own and the fake: called with pgpu's words both answer what pgpu reads."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.waiting import DEADLINE_SECONDS

from pgpu.model import Evidence, Resource
from pgpu.profiling.counters import command_of, demands_of, read_counters, refusal

FAKE = Path(__file__).parent.parent / "fakes" / "ncu"
ON_A_GPU = (sys.executable, "-m", "pgpu.workloads", "matvec", "--iterations", "3")
WITHOUT_ONE = (sys.executable, "-c", "print('\"1\",of the program')")


@pytest.fixture(params=["fake", pytest.param("nvidia", marks=pytest.mark.gpu)])
def ncu(request: pytest.FixtureRequest) -> str:
    if request.param == "fake":
        return str(FAKE)
    found = shutil.which("ncu")
    if found is None:
        pytest.skip("ncu is not on PATH")
    return found


def output(ncu: str, command: Sequence[str], **environment: str) -> str:
    words = command_of(ncu, command)
    whole = {**os.environ, **environment}
    done = subprocess.run(words, capture_output=True, text=True, env=whole, timeout=DEADLINE_SECONDS, check=False)
    return done.stdout


def test_each_kernel_is_told_with_its_shape_and_what_was_counted_in_it(ncu: str) -> None:
    said = output(ncu, WITHOUT_ONE if ncu == str(FAKE) else ON_A_GPU)
    if "ERR_NVGPUCTRPERM" in said:
        pytest.skip("this machine's counters are for administrators")
    counters = read_counters(said)
    assert counters, said
    for each in counters:
        assert each.name
        assert min(*each.grid, *each.block) >= 1
        assert each.launches >= 1
        assert each.total_ns > 0
        always = (each.l2_hit_rate, each.dram_throughput, each.l2_throughput, each.occupancy)
        assert all(figure is not None and 0 <= figure <= 1 for figure in always), each
        # None for a kernel that asks the L1 cache for nothing.
        assert each.l1_hit_rate is None or 0 <= each.l1_hit_rate <= 1, each
    demands = {demand.resource: demand for demand in demands_of(counters)}
    assert demands.keys() == {Resource.DRAM, Resource.L2}
    assert all(demand.evidence is Evidence.COUNTERS for demand in demands.values())
    assert refusal(said) is None


def test_words_that_it_does_not_know_are_an_error_that_is_told(ncu: str) -> None:
    done = subprocess.run(
        [ncu, "--no-such-word", "true"], capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    assert done.returncode != 0
    assert (refusal(done.stdout) or "").startswith("ncu: ")
