"""How long work takes on the simulated GPU, alone and beside others, in the device's own time."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.native_clients import library, preloading
from tests.simgpu_work import WorkWorld, work_world
from tests.waiting import until

from pgpu.gpu.simulated_activity import read_lost_ns
from pgpu.libraries import SIMULATED_NVML
from pgpu.units import GIB, MIB

NOT_SUPPORTED = 3
"""NVML's."""

FULL = "fixed_ns=300000"
"""A kernel that fills the GPU where its grid does."""


@pytest.fixture
def volta() -> Iterator[WorkWorld]:
    with work_world("V100") as world:
        yield world


@pytest.fixture
def server() -> Iterator[WorkWorld]:
    """A V100 under MPS."""
    with work_world("V100", has_mps=True) as world:
        yield world


def cost_ns(world: WorkWorld, directive: str, blocks: int, threads: int = 256, shared_bytes: int = 0) -> int:
    """What one launch takes of a GPU of its own."""
    worker = world.worker()
    before = world.times()[-1].consumed_ns
    worker.ask(f"run({directive!r}, {blocks}, {threads}, {shared_bytes})")
    return world.times()[-1].consumed_ns - before


class TestAKernelAloneFollowsTheDataSheet:
    def test_a_stream_takes_its_bytes_by_the_memory_s_bandwidth(self, volta: WorkWorld) -> None:
        expected = 100_000 * 256 * 8 / 900  # GB/s
        assert cost_ns(volta, "dram_bytes=8", 100_000) == pytest.approx(expected, rel=1e-3)

    def test_arithmetic_takes_its_operations_by_the_lanes(self, volta: WorkWorld) -> None:
        flop, lanes = 100_000 * 256 * 1000, 80 * 64
        assert cost_ns(volta, "flop=1000", 100_000) == pytest.approx(flop / (lanes * 2 * 1.53), rel=1e-3)
        assert cost_ns(volta, "flop64=1000", 100_000) == pytest.approx(flop / (lanes * 1.53), rel=1e-3)

    def test_one_warp_is_on_32_lanes(self, volta: WorkWorld) -> None:
        assert cost_ns(volta, "flop=2000000", 1, 32) == pytest.approx(1e6 / 1.53, rel=1e-3)

    def test_few_threads_wait_for_the_latency_and_not_for_the_bandwidth(self, volta: WorkWorld) -> None:
        assert cost_ns(volta, "dram_bytes=32000 accesses=1000", 1, 32) == pytest.approx(375_000 / 1.53, rel=1e-3)

    def test_waves_follow_from_what_is_resident_at_once(self, volta: WorkWorld) -> None:
        one, two = (cost_ns(volta, "wave_ns=100000", 80 * 8 + more) for more in (0, 1))
        assert (one, two) == (100_000, 200_000)

    def test_l1_serves_a_working_set_until_shared_memory_takes_its_room(self, volta: WorkWorld) -> None:
        directive = "l1_reads=100000 l1_bytes=48"  # 96 KiB for 2,048 threads
        roomy, cramped = (cost_ns(volta, directive, 320, 512, shared) for shared in (0, 15 << 10))
        assert cramped > 1.5 * roomy

    def test_the_carve_out_makes_l1_larger_and_smaller(self, volta: WorkWorld) -> None:
        directive = "l1_reads=100000 l1_bytes=48"
        worker = volta.worker()
        costs = []
        for percent in (0, 100):
            worker.ask(f"carve({directive!r}, {percent})")
            before = volta.times()[0].consumed_ns
            worker.ask(f"run({directive!r}, 640, 256)")
            costs.append(volta.times()[0].consumed_ns - before)
        assert costs[1] > 1.5 * costs[0]

    def test_a_kernel_that_reads_nothing_again_does_not_care(self, volta: WorkWorld) -> None:
        worker = volta.worker()
        worker.ask("carve('dram_bytes=64', 100)")
        before = volta.times()[0].consumed_ns
        worker.ask("run('dram_bytes=64', 100000, 256)")
        assert volta.times()[0].consumed_ns - before == pytest.approx(100_000 * 256 * 64 / 900, rel=1e-3)


def busy_workers(world: WorkWorld, *shapes: tuple[str, int, int]) -> None:
    for directive, blocks, threads in shapes:
        world.worker().ask(f"keep_busy({directive!r}, {blocks}, {threads})")


class TestContextsTakeTurns:
    @pytest.mark.parametrize("count", [2, 3])
    def test_all_get_the_same_and_a_little_is_lost_to_switching(self, volta: WorkWorld, count: int) -> None:
        busy_workers(volta, *[(FULL, 640, 256)] * count)

        def fair_turns() -> list[tuple[list[float], list[float], float]]:
            before_ns = read_lost_ns(volta.directory, 0)
            consumed, busy = volta.used_while(150)
            lost_ns = read_lost_ns(volta.directory, 0) - before_ns
            return [(consumed, busy, lost_ns)] if max(consumed) < 1.2 * min(consumed) else []

        [(consumed, busy, lost_ns)] = until(fair_turns)  # without a free core, one may launch too little in an interval
        assert consumed == pytest.approx(busy, rel=0.02)
        assert lost_ns / sum(busy) == pytest.approx(64 / 2000, rel=0.3)

    def test_a_small_grid_gains_nothing_from_room_that_another_context_leaves(self, volta: WorkWorld) -> None:
        busy_workers(volta, *[("fixed_ns=300000", 1, 32)] * 2)
        consumed, _ = volta.used_while(150)
        assert max(consumed) < 1.2 * min(consumed)

    def test_before_pascal_a_window_lasts_as_long_as_a_block(self) -> None:
        with work_world("GTX 980 Ti") as world:
            busy_workers(world, ("fixed_ns=30000000", 22, 256), ("fixed_ns=10000000", 22, 256))
            consumed, _ = world.used_while(600)
            assert consumed[0] == pytest.approx(3 * consumed[1], rel=0.35)


class TestClientsOfOneServerRunTogether:
    def test_small_grids_run_at_once(self, server: WorkWorld) -> None:
        busy_workers(server, *[("fixed_ns=300000", 8, 256)] * 2)
        consumed, busy = server.used_while(150)
        assert consumed == pytest.approx(busy, rel=0.02)

    def test_grids_that_fill_the_gpu_get_half_of_it_each(self, server: WorkWorld) -> None:
        busy_workers(server, *[(FULL, 640, 256)] * 2)
        consumed, busy = server.used_while(150)
        assert [got / ran for got, ran in zip(consumed, busy, strict=True)] == pytest.approx([0.5] * 2, rel=0.1)

    def test_a_percentage_leaves_the_rest_to_others(self, server: WorkWorld) -> None:
        half = server.worker({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"})
        before = server.times()[0].consumed_ns
        half.ask("run('flop=1000', 100000, 256)")
        whole = 100_000 * 256 * 1000 / (80 * 64 * 2 * 1.53)
        assert server.times()[0].consumed_ns - before == pytest.approx(4 * whole, rel=0.01)


class TestManagedMemory:
    def test_it_takes_of_the_device_what_is_resident(self, volta: WorkWorld) -> None:
        worker = volta.worker()
        context = worker.ask("used()")
        pointer = worker.ask(f"managed({GIB})")
        assert worker.ask("used()") == context
        for _ in range(8):  # each brings in what the one before it missed: at least five in eight of it
            worker.ask(f"run('managed_bytes={256 * MIB} fixed_ns=1000000', 80, 256)")
        assert worker.ask("used()") - context == pytest.approx(256 * MIB, rel=0.01)
        worker.ask(f"prefetch({pointer}, {GIB}, 0)")
        assert worker.ask("used()") - context == pytest.approx(GIB, rel=0.01)
        worker.ask(f"prefetch({pointer}, {GIB}, -1)")
        assert worker.ask("used()") - context < MIB

    def test_what_a_kernel_misses_comes_in_slower_than_by_prefetching(self, volta: WorkWorld) -> None:
        worker = volta.worker()
        pointer = worker.ask(f"managed({GIB})")
        worker.ask(f"prefetch({pointer}, {GIB}, 0)")
        worker.ask(f"prefetch({pointer}, {GIB}, -1)")
        before = volta.times()[0]
        worker.ask("run('fixed_ns=50000000', 80, 256)")
        missed = volta.times()[0]
        worker.ask("run('fixed_ns=50000000', 80, 256)")
        there = volta.times()[0]
        worker.ask(f"prefetch({pointer}, {GIB}, -1)")
        back = volta.times()[0]
        # While pages come in, fewer and fewer of those that are touched are missing.
        faulted = (missed.busy_ns - before.busy_ns) - (missed.consumed_ns - before.consumed_ns)
        brought = GIB * (1 - math.exp(-1))
        assert faulted == pytest.approx(brought * 1e9 / volta.model.fault_bytes_per_second, rel=0.1)
        assert there.busy_ns - missed.busy_ns < missed.busy_ns - before.busy_ns
        assert back.consumed_ns - there.consumed_ns < GIB * 1e9 / volta.model.pcie_bytes_per_second

    def test_two_that_need_more_than_there_is_push_each_other_out(self, volta: WorkWorld) -> None:
        workers = [volta.worker() for _ in range(2)]
        for worker in workers:
            worker.ask(f"managed({10 * GIB})")
            worker.ask("run('fixed_ns=1000000', 80, 256)")
            worker.ask("keep_busy('fixed_ns=20000000', 80, 256)")
        before = volta.times()
        consumed, busy = volta.used_while(600)
        assert sum(consumed) < 0.5 * sum(busy)
        # Both go on. A turn takes as long as a loaded machine needs to move the memory.
        until(lambda: all(now.consumed_ns > then.consumed_ns for then, now in zip(before, volta.times(), strict=True)))

    def test_bringing_memory_in_sends_out_what_was_touched_longest_ago(self, volta: WorkWorld) -> None:
        first, second = volta.worker(), volta.worker()
        for worker in (first, second):
            worker.ask(f"managed({10 * GIB})")
            worker.ask("run('fixed_ns=1000000', 80, 256)")
        before = volta.times()[0]
        pointer = first.ask(f"managed({2 * GIB})")
        first.ask(f"prefetch({pointer}, {2 * GIB}, 0)")
        moved = volta.times()[0].consumed_ns - before.consumed_ns
        assert moved > 0
        assert first.ask("used()") <= volta.model.memory_bytes

    def test_ordinary_memory_pushes_it_out(self, volta: WorkWorld) -> None:
        worker = volta.worker()
        worker.ask(f"managed({12 * GIB})")
        worker.ask("run('fixed_ns=1000000', 80, 256)")
        worker.ask(f"cu.alloc({8 * GIB})")
        assert worker.ask("used()") <= volta.model.memory_bytes

    def test_it_is_bounded_by_the_host_s_memory(self, volta: WorkWorld) -> None:
        assert volta.worker().ask(f"managed({1 << 50})") == {"refused": 2}

    def test_before_pascal_it_is_ordinary_memory(self) -> None:
        with work_world("GTX 980 Ti") as world:
            worker = world.worker()
            context = worker.ask("used()")
            worker.ask(f"managed({GIB})")
            assert worker.ask("used()") == context + GIB
            assert worker.ask(f"managed({5 * GIB})") == {"refused": 2}

    def test_what_a_dead_process_had_is_free(self, volta: WorkWorld) -> None:
        first, second = volta.worker(), volta.worker()
        context = second.ask("used()")
        first.ask(f"managed({GIB})")
        first.ask("run('fixed_ns=1000000', 80, 256)")
        assert second.ask("used()") > context + GIB // 2
        first.end()
        assert second.ask("used()") < context


_METRICS = """
import ctypes, json, os, sys, time
ctypes.CDLL(sys.argv[1])
import pynvml as nvml
nvml.nvmlInit()
gpu = nvml.nvmlDeviceGetHandleByIndex(0)
samples = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
asked = nvml.c_nvmlGpmMetricsGet_t()
asked.version, asked.numMetrics, asked.sample1, asked.sample2 = 1, 6, *samples
for index, metric in enumerate((1, 2, 3, 10, 12, 5)):
    asked.metrics[index].metricId = metric
nvml.nvmlGpmSampleGet(gpu, samples[0])
deadline = time.monotonic() + 0.5
while time.monotonic() < deadline:
    pass
nvml.nvmlGpmSampleGet(gpu, samples[1])
nvml.nvmlGpmMetricsGet(asked)
print(json.dumps([[metric.nvmlReturn, metric.value] for metric in asked.metrics[:6]]))
for sample in samples:
    nvml.nvmlGpmSampleFree(sample)
"""


def metrics(world: WorkWorld) -> list[tuple[int, float]]:
    """Ask for GPU, SM, occupancy, memory, FP32 and tensor metrics over half a second."""
    command = [sys.executable, "-c", _METRICS, str(library(SIMULATED_NVML))]
    environment = os.environ | preloading() | {"PGPU_SIMGPU_DIR": str(world.directory)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [(code, value) for code, value in json.loads(done.stdout)]


class TestPerformanceMetrics:
    def test_hopper_tells_what_of_it_is_in_use(self) -> None:
        with work_world("H100") as world:
            # Half the multiprocessors, an eighth of the room for blocks, and half the memory's bandwidth.
            busy_workers(world, ("fixed_ns=5e6 dram_bytes=5e6*3350/threads", 66, 512))
            until_busy(world)
            gpu, sms, occupancy, memory, fp32, tensor = metrics(world)
        assert [code for code, _ in (gpu, sms, occupancy, memory, fp32)] == [0] * 5
        assert gpu[1] > 80
        assert sms[1] == pytest.approx(gpu[1] / 2, abs=3)
        assert occupancy[1] == pytest.approx(gpu[1] / 8, abs=3)
        assert memory[1] == pytest.approx(gpu[1] / 2, abs=5)
        assert fp32[1] == 0
        assert tensor[0] == NOT_SUPPORTED


def until_busy(world: WorkWorld) -> None:
    until(lambda: world.times()[0].consumed_ns > 1e7)
