"""A job without a share: its GPU time is measured, and its launches cost next to nothing more.

Calls of the driver are counted, since one that takes nothing on the simulated driver takes microseconds on a real one.
"""

import os
import shutil
import struct
import time
from collections.abc import Iterator

import pytest
from tests.compute_world import LAUNCHING, ComputeJob, ComputeWorld, a_compute_world, shared
from tests.native_clients import client_path, library
from tests.waiting import until

from pgpu.enforcement.compute_word import ComputeWord
from pgpu.libraries import SIMULATED_CUDA

MEASURED = ComputeWord(is_measured=True)
_LAUNCHES = 5000
_NEEDS_FAST_LAUNCHES = pytest.mark.skipif(
    "PGPU_TEST_PRELOAD" in os.environ, reason="a sanitizer's launch takes longer than these kernels"
)


@pytest.fixture
def world() -> Iterator[ComputeWorld]:
    with a_compute_world() as found:
        yield found


class Counter:
    """The calls of a job's driver that serve to measure launches."""

    def __init__(self, job: ComputeJob) -> None:
        simulated = library(SIMULATED_CUDA).read_bytes().replace(b"libcuda.so.1\0", b"libcuda.so.9\0")
        (job.driver.parent / "libcuda.so.9").write_bytes(simulated)
        shutil.copy(client_path("compute", "counting.so"), job.driver)
        self._path = job.directory / "count"
        self._path.write_bytes(bytes(16))
        job.environment = {"PGPU_TEST_COUNT": str(self._path)}

    def calls(self) -> int:
        (found, _) = struct.unpack("QQ", self._path.read_bytes())
        return int(found)


def _calls_a_launch(job: ComputeJob, way: str) -> float:
    counter = Counter(job)
    with job.load(way, client="compute-ways"):
        until(lambda: job.told().launches >= _LAUNCHES)
        calls, launches = counter.calls(), job.told().launches
        until(lambda: job.told().launches >= launches + _LAUNCHES)
        return (counter.calls() - calls) / (job.told().launches - launches)


def test_small_kernels_with_pauses_between_take_few_calls(world: ComputeWorld) -> None:
    assert _calls_a_launch(world.job(MEASURED), "far-apart") < 0.25


def test_under_a_share_the_same_kernels_are_measured_one_by_one(world: ComputeWorld) -> None:
    assert _calls_a_launch(world.job(shared(0.9)), "far-apart") > 1


@_NEEDS_FAST_LAUNCHES
def test_pauses_between_small_kernels_are_no_gpu_time(world: ComputeWorld) -> None:
    job = world.job(MEASURED)
    with job.load("far-apart", client="compute-ways") as load:
        began_ns = time.monotonic_ns()
        until(lambda: job.told().launches >= 2 * _LAUNCHES)
        had_ns = world.got_ns([load.process.pid])[load.process.pid]
        assert had_ns / 2 < job.told().used_ns < had_ns + (time.monotonic_ns() - began_ns) / 4


@_NEEDS_FAST_LAUNCHES
@pytest.mark.parametrize("cost_ns", [5_000, 100_000, 2_000_000])
def test_the_time_of_kernels_without_pauses_is_measured(world: ComputeWorld, cost_ns: int) -> None:
    job = world.job(MEASURED)
    with job.load(f"cost_ns={cost_ns}", "sync=8") as load:
        until(lambda: job.told().used_ns > 200_000_000)
        had_ns = world.got_ns([load.process.pid])[load.process.pid]
        assert job.told().used_ns == pytest.approx(had_ns, rel=0.2)


@pytest.mark.parametrize("way", ["pauses", "varies", "waits", "blocks", "threads"])
def test_kernels_that_became_longer_are_measured(world: ComputeWorld, way: str) -> None:
    job = world.job(MEASURED)
    with job.load(way, client="compute-ways") as load:
        until(lambda: job.told().used_ns > 200_000_000)
        had_ns = world.got_ns([load.process.pid])[load.process.pid]
        assert job.told().used_ns == pytest.approx(had_ns, rel=0.3)


def test_a_share_that_comes_later_binds(world: ComputeWorld) -> None:
    job = world.job(MEASURED)
    with job.load("cost_ns=1000000", "sync=4"):
        until(lambda: job.told().used_ns > 100_000_000)
        job.share(shared(0.2, is_strict=True))
        waited_ns = job.told().waited_ns
        until(lambda: job.told().waited_ns > waited_ns + 100_000_000)


def test_time_used_without_a_share_is_no_debt_under_one(world: ComputeWorld) -> None:
    jobs = [world.job(MEASURED), world.job(MEASURED)]
    with jobs[0].load("cost_ns=1000000", "sync=4"), jobs[1].load("cost_ns=1000000", "sync=4"):
        until(lambda: all(job.told().used_ns > 1_000_000_000 for job in jobs))
        assert [job.told().budget_ns for job in jobs] == [0, 0]
        for job in jobs:
            job.share(shared(0.5, is_strict=True))
        launches = [job.told().launches for job in jobs]
        until(lambda: all(job.told().launches > before + 100 for job, before in zip(jobs, launches, strict=True)))
        assert all(job.told().budget_ns > -500_000_000 for job in jobs)


def test_a_launch_that_waits_for_another_thread_sleeps(world: ComputeWorld) -> None:
    """Spinning would keep a holder of a lower real-time priority from running."""
    job = world.job(MEASURED)
    Counter(job)
    job.environment["PGPU_TEST_SLOW_RECORD"] = "300"
    done = job.run(
        LAUNCHING
        + """
import resource, threading, time
for _ in range(4):
    launch(); cu.call("cuCtxSynchronize")
context = c_void_p(); cu.call("cuCtxGetCurrent", byref(context))
launch(); launch()
def close():
    cu.call("cuCtxSetCurrent", context)
    while not is_held():
        cu.call("cuCtxSynchronize")
def is_held():
    return open(os.environ["PGPU_TEST_COUNT"], "rb").read()[8] == 1
closing = threading.Thread(target=close); closing.start()
while not is_held(): pass
before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
launch()
print(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before)
closing.join()
"""
    )
    assert int(done.stdout) > 10, done.stderr  # one that spins: 0
