"""Compute shares: what the processes of a job get of a GPU's time, judged by the simulated driver's own account."""

import time
from collections.abc import Iterator

import pytest
from tests.compute_world import ENOUGH_NS, ComputeWorld, Load, a_compute_world, most_ns, shared, until_used
from tests.compute_world import LAUNCHING as _KERNEL
from tests.waiting import until


@pytest.fixture
def world() -> Iterator[ComputeWorld]:
    with a_compute_world() as found:
        yield found


@pytest.fixture
def two_gpus() -> Iterator[ComputeWorld]:
    with a_compute_world(2) as found:
        yield found


class TestAShareHolds:
    @pytest.mark.parametrize(
        "words",
        [
            ("cost_ns=50000", "sync=0"),
            ("cost_ns=2000000", "sync=1"),
            ("cost_ns=20000000", "sync=0"),
            ("mode=graph", "cost_ns=4000000", "sync=0"),
            ("mode=cooperative", "cost_ns=2000000", "grid=10", "sync=0"),
            ("cost_ns=2000000", "grid=1", "streams=4", "threads=2", "sync=0"),
        ],
        ids=["tiny", "waited for", "long", "graph", "cooperative", "small grids in many streams"],
    )
    def test_whatever_is_launched_gets_no_more_than_a_strict_share(
        self, world: ComputeWorld, words: tuple[str, ...]
    ) -> None:
        job = world.job(shared(0.3, is_strict=True))
        began_ns = time.monotonic_ns()
        with job.load(*words) as load:
            assert until_used(world, [load]) <= most_ns(0.3, began_ns, longest_ns=20_000_000)

    def test_streams_that_run_at_once_are_launched_at_once(self, world: ComputeWorld) -> None:
        """Eight kernels that share the GPU take the time of one."""
        job = world.job(shared(0.5, is_strict=True))
        with job.load("cost_ns=2000000", "grid=1", "streams=8", "sync=8") as load:

            def at_once() -> float:
                had_ns, launches = until_used(world, [load], 0), job.told().launches
                more_ns = until_used(world, [load], had_ns + ENOUGH_NS // 2) - had_ns
                return 2_000_000 * (job.told().launches - launches) / more_ns

            until(lambda: at_once() > 6, lambda: "the kernels of eight streams wait for each other")

    @pytest.mark.parametrize("cost_ns", [1_000_000, 2_000_000])
    def test_long_kernels_are_charged_no_time_of_short_ones_beside_them(
        self, world: ComputeWorld, cost_ns: int
    ) -> None:
        long, short = world.job(shared(0.3, is_strict=True)), world.job(shared(0.6, is_strict=True))
        with long.load("cost_ns=20000000", "sync=1") as ours, short.load(f"cost_ns={cost_ns}", "sync=1"):

            def charged() -> float:
                used_ns, had_ns = long.told().used_ns, until_used(world, [ours], 0)
                more_ns = until_used(world, [ours], had_ns + 2 * ENOUGH_NS) - had_ns
                return (long.told().used_ns - used_ns) / more_ns

            until(lambda: 0.88 < charged() < 1.12, lambda: "long kernels are charged for the time of others")

    def test_processes_of_one_job_have_one_share_together(self, world: ComputeWorld) -> None:
        job = world.job(shared(0.3, is_strict=True))
        began_ns = time.monotonic_ns()
        with job.load("cost_ns=1000000", "sync=0") as first, job.load("cost_ns=1000000", "sync=0") as second:
            assert until_used(world, [first, second]) <= most_ns(0.3, began_ns, longest_ns=2_000_000)
            assert all(world.got_ns([first.process.pid, second.process.pid]).values())

    def test_the_others_go_on_when_one_is_killed(self, world: ComputeWorld) -> None:
        job = world.job(shared(0.3, is_strict=True))
        with job.load("cost_ns=1000000", "sync=0") as first, job.load("cost_ns=1000000", "sync=0") as second:
            until_used(world, [first, second])
            second.process.kill()
            second.process.wait()
            had_ns = world.got_ns([first.process.pid])[first.process.pid]
            began_ns = time.monotonic_ns()
            more_ns = until_used(world, [first], had_ns + ENOUGH_NS // 2) - had_ns
            assert more_ns <= most_ns(0.3, began_ns, longest_ns=2_000_000)

    def test_a_share_changes_while_its_job_runs(self, world: ComputeWorld) -> None:
        job = world.job(shared(0.5, is_strict=True))
        with job.load("cost_ns=1000000", "sync=0") as load:
            until_used(world, [load])
            job.share(shared(0.1, is_strict=True))
            until(lambda: job.told().compute.share == 0.1, lambda: "the job goes on with its former share")
            had_ns, began_ns = world.got_ns([load.process.pid])[load.process.pid], time.monotonic_ns()
            more_ns = until_used(world, [load], had_ns + ENOUGH_NS // 4) - had_ns
            assert more_ns <= most_ns(0.1, began_ns, longest_ns=100_000_000)

    def test_each_gpu_has_a_share_of_its_own(self, two_gpus: ComputeWorld) -> None:
        job = two_gpus.job(shared(0.2, is_strict=True))
        job.hold(1, is_held=True)
        with job.load("cost_ns=1000000", "sync=0") as load:
            until_used(two_gpus, [load], ENOUGH_NS // 2)
            assert job.told(1).launches == 0
        job.environment["CUDA_VISIBLE_DEVICES"] = job.uuids[1]
        with job.load("cost_ns=1000000", "sync=0") as load:
            until(lambda: job.told(1).wanted_ns > 0, lambda: "nothing was launched on the second GPU")
            assert two_gpus.got_ns([load.process.pid], gpu=1)[load.process.pid] == 0
            job.hold(1, is_held=False)
            until(lambda: job.told(1).launches > 0, lambda: "the second GPU stays held")

    def test_what_fills_the_gpu_s_memory_takes_a_share(self, world: ComputeWorld) -> None:
        job, began_ns = world.job(shared(0.1, is_strict=True)), time.monotonic_ns()
        with job.load("mode=fill", "sync=4") as load:
            assert until_used(world, [load]) <= most_ns(0.1, began_ns, longest_ns=5_000_000)

    @pytest.mark.parametrize("mode", ["within", "unified"])
    def test_what_copies_within_the_gpu_s_memory_is_measured(self, world: ComputeWorld, mode: str) -> None:
        job = world.job(shared(0.5))
        job.load(f"mode={mode}", "sync=1", "count=8", "seconds=60").finish()
        assert job.told().used_ns > 0

    def test_a_copy_from_the_host_takes_none(self, world: ComputeWorld) -> None:
        job = world.job(shared(0.1, is_strict=True))
        with job.load("mode=copy", "sync=4", "count=40", "seconds=60") as load:
            load.finish()
        assert job.told().waited_ns == 0
        assert job.told().used_ns == 0

    def test_many_threads_and_streams_end_with_nothing_left_in_flight(self, world: ComputeWorld) -> None:
        job = world.job(shared(0.8))
        words = ("cost_ns=200000", "grid=1", "streams=4", "threads=4", "sync=4", "count=400", "seconds=60")
        assert job.load(*words).finish()["launched"] >= 400
        assert job.told().launches >= 400

    def test_measuring_in_the_legacy_stream_spoils_no_capture(self, world: ComputeWorld) -> None:
        """Whatever is laid into it while a blocking stream captures invalidates that capture."""
        answer = world.job(shared(0.9)).run(
            _KERNEL
            + """
blocking, other, graph = c_void_p(), c_void_p(), c_void_p()
cu.call("cuStreamCreate", byref(blocking), 0)
cu.call("cuStreamCreate", byref(other), 1)
for _ in range(5):
    launch()
    cu.call("cuCtxSynchronize")
launch(); launch()
context = c_void_p()
cu.call("cuCtxGetCurrent", byref(context))
def capture():
    cu.call("cuCtxSetCurrent", context)
    cu.call("cuStreamBeginCapture_v2", blocking, 2)
import threading
capturing = threading.Thread(target=capture); capturing.start(); capturing.join()
cu.code("cuStreamQuery", other)
print(cu.code("cuStreamEndCapture", blocking, byref(graph)))
"""
        )
        assert answer.stdout == "0\n", answer.stderr


class TestFairnessGivesIdleTimeAway:
    def test_who_is_alone_waits_for_nothing(self, world: ComputeWorld) -> None:
        job = world.job(shared(0.1))
        with job.load("cost_ns=2000000", "sync=1") as load:
            until_used(world, [load])
            assert job.told().waited_ns == 0

    def test_a_neighbour_s_share_comes_first(self, world: ComputeWorld) -> None:
        small, large = world.job(shared(0.2)), world.job(shared(0.8))
        words = ("cost_ns=5000000", "sync=0")
        with large.load(*words) as theirs, small.load(*words) as ours:
            until_used(world, [ours], ENOUGH_NS // 4)
            pids = [ours.process.pid, theirs.process.pid]

            def comes_first() -> bool:
                before = world.got_ns(pids)
                until_used(world, [ours], before[pids[0]] + ENOUGH_NS)
                after = world.got_ns(pids)
                return after[pids[1]] - before[pids[1]] > 2 * (after[pids[0]] - before[pids[0]])

            until(comes_first)  # without a free core, a process may launch too little in one interval

    def test_weights_divide_what_nobody_is_entitled_to(self, world: ComputeWorld) -> None:
        light, heavy = world.job(shared(weight=100)), world.job(shared(weight=300))
        words = ("cost_ns=5000000", "sync=0")
        with heavy.load(*words) as theirs, light.load(*words) as ours:
            until_used(world, [ours], ENOUGH_NS // 4)
            pids = [ours.process.pid, theirs.process.pid]
            before = world.got_ns(pids)
            until_used(world, [ours], before[pids[0]] + ENOUGH_NS)
            after = world.got_ns(pids)
        assert after[pids[1]] - before[pids[1]] > 1.5 * (after[pids[0]] - before[pids[0]])


_JUDGED_NS = 1_500_000_000


def test_a_neighbour_that_needs_little_takes_nothing_of_what_is_guaranteed(world: ComputeWorld) -> None:
    """It has most left of all, and lacks nothing. On a busy machine it takes some attempts until the load gets processors."""
    light, heavy = world.job(shared(0.3)), world.job(shared(0.7))
    with light.load("cost_ns=500000", "sync=1", "pause_us=9500"), heavy.load("cost_ns=5000000", "sync=0") as load:
        until_used(world, [load], 2 * ENOUGH_NS)
        until(lambda: _part_of(world, load) > 0.68, lambda: "the heavy one never gets the 70 % that it is entitled to")


def _part_of(world: ComputeWorld, load: Load) -> float:
    """What a process gets of the GPU for a while; 1 of 20 ms more or less is one of its kernels."""
    began_ns, had_ns = time.monotonic_ns(), world.got_ns([load.process.pid])[load.process.pid]
    until(lambda: time.monotonic_ns() >= began_ns + _JUDGED_NS)
    more_ns = world.got_ns([load.process.pid])[load.process.pid] - had_ns
    return more_ns / (time.monotonic_ns() - began_ns)


def test_a_forked_child_and_its_parent_both_go_on(world: ComputeWorld) -> None:
    job = world.job(shared(0.9))
    done = job.run(
        _KERNEL
        + """
child = os.fork()
if child == 0:
    os._exit(0 if launch() else 1)
_, status = os.waitpid(child, 0)
assert launch() == 0; cu.call("cuCtxSynchronize")
print(os.waitstatus_to_exitcode(status))
"""
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
