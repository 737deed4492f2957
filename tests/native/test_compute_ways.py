"""Programs that launch in ways that are hard to measure: none gets more than its share by it, none less, none hangs.

Judged by the simulated driver's own account of what each process really had.
"""

import os
import time
from collections.abc import Iterator

import pytest
from tests.compute_world import ComputeWorld, Load, a_compute_world, shared
from tests.waiting import DEADLINE_SECONDS, until

_STRICT = 0.2
_SLACK = 0.05
_PERIOD_NS = 100_000_000
_ENOUGH_NS = 200_000_000
_LONGEST_NS = 20_000_000


@pytest.fixture
def world() -> Iterator[ComputeWorld]:
    with a_compute_world() as found:
        yield found


def _had_ns(world: ComputeWorld, load: Load) -> int:
    return world.got_ns([load.process.pid])[load.process.pid]


def _most_ns(began_ns: int) -> float:
    """What the share allows since then: two periods saved up, and twice a debt of the longest that it launches."""
    return (_STRICT + _SLACK) * (time.monotonic_ns() - began_ns) + 2 * _STRICT * _PERIOD_NS + 2 * _LONGEST_NS


_WAYS = ("pauses", "varies", "blocks", "releases", "threads", "ends-streams")
_IN_DEFAULT_STREAMS = ("varies-in-legacy", "varies-in-own", "hides-in-legacy", "threads-in-own")


@pytest.mark.parametrize("way", _WAYS + _IN_DEFAULT_STREAMS)
def test_no_way_of_launching_gets_more_than_a_strict_share(world: ComputeWorld, way: str) -> None:
    job = world.job(shared(_STRICT, is_strict=True))
    began_ns = time.monotonic_ns()
    with job.load(way, client="compute-ways") as load:
        until(lambda: _had_ns(world, load) >= _ENOUGH_NS, lambda: "it got no GPU time")
        had_ns = _had_ns(world, load)
        assert had_ns <= _most_ns(began_ns)


def test_what_a_kernel_took_alone_long_ago_is_not_believed_beside_others(world: ComputeWorld) -> None:
    job, neighbour = world.job(shared(_STRICT, is_strict=True)), world.job(shared(0.8))
    with job.load("waits", "first", client="compute-ways") as load, neighbour.load("cost_ns=1000000", "sync=4"):
        until(lambda: neighbour.told().used_ns > 0)
        began_ns = time.monotonic_ns()
        print(file=load.process.stdin, flush=True)
        until(lambda: _had_ns(world, load) >= _ENOUGH_NS, lambda: "it got no GPU time")
        had_ns = _had_ns(world, load)
        assert had_ns <= _most_ns(began_ns)


@pytest.mark.skipif(
    "PGPU_TEST_PRELOAD" in os.environ, reason="a sanitizer's launch takes as long as what lies between two"
)
def test_idle_time_between_small_kernels_is_not_charged(world: ComputeWorld) -> None:
    job = world.job(shared(0.5, is_strict=True))
    with job.load("far-apart", client="compute-ways"):
        until(lambda: job.told().launches >= 1000)
        began_ns, used_ns = time.monotonic_ns(), job.told().used_ns
        until(lambda: job.told().launches >= 4000)
        assert 2 * (job.told().used_ns - used_ns) < time.monotonic_ns() - began_ns


@pytest.mark.parametrize("way", ["crosses", "ends-contexts"])
def test_a_correct_program_comes_to_its_end(world: ComputeWorld, way: str) -> None:
    job = world.job(shared(0.9))
    with job.load(way, client="compute-ways") as load:
        _, errors = load.process.communicate(timeout=DEADLINE_SECONDS)
        assert (load.process.returncode, errors) == (0, "")
