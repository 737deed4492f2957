"""Jobs that are held: nothing of theirs begins until they are let go, and they say when nothing of theirs runs any more."""

import subprocess
from collections.abc import Iterator

import pytest
from tests.compute_world import ENOUGH_NS, ComputeJob, ComputeWorld, a_compute_world, shared, until_used
from tests.native_clients import client_path
from tests.waiting import DEADLINE_SECONDS, until

from pgpu.enforcement import meter
from pgpu.enforcement.compute_word import ComputeWord

LONG_NS = 3_000_000_000
"""Of a kernel that still runs whatever a test does meanwhile."""


@pytest.fixture
def world() -> Iterator[ComputeWorld]:
    with a_compute_world() as found:
        yield found


class TestAJobIsHeld:
    @pytest.mark.parametrize("word", [ComputeWord(is_measured=True), shared(0.5)])
    def test_nothing_is_launched_until_it_is_let_go(self, world: ComputeWorld, word: ComputeWord) -> None:
        job = world.job(word)
        with job.load("cost_ns=1000000", "sync=4") as load:
            until_used(world, [load], ENOUGH_NS // 10)
            job.hold(is_held=True)
            until(lambda: job.told().in_flight_until_ns == 0, lambda: "the job never says that it is quiet")
            had_ns, launches = world.got_ns([load.process.pid]), job.told().launches
            _a_few_looks(job)
            assert (world.got_ns([load.process.pid]), job.told().launches) == (had_ns, launches)
            job.hold(is_held=False)
            until(lambda: job.told().launches > launches, lambda: "the job stays held")

    def test_who_was_let_go_and_works_is_not_quiet(self, world: ComputeWorld) -> None:
        job = world.job(ComputeWord(is_measured=True))
        with job.load("cost_ns=1000000", "sync=0") as load:
            until_used(world, [load], ENOUGH_NS // 10)
            job.hold(is_held=True)
            until(lambda: job.told().in_flight_until_ns == 0)
            launches = job.told().launches
            job.hold(is_held=False)
            until(lambda: job.told().launches > launches)
            assert job.told().in_flight_until_ns != 0

    def test_a_job_is_not_quiet_while_one_of_its_processes_has_work_in_flight(self, world: ComputeWorld) -> None:
        job = world.job(ComputeWord(is_measured=True))
        with job.load(f"cost_ns={LONG_NS}", "count=1") as long, job.load("cost_ns=1000000", "sync=1") as short:
            until_used(world, [long, short], ENOUGH_NS // 100)
            job.hold(is_held=True)
            _until_quiet(job, short.process.pid)
            told = job.told()
            assert told.in_flight_until_ns != 0, "the host would start another beside it"
            assert told.busy_since_ns != 0, "other jobs would think that it is idle"
            assert world.got_ns([long.process.pid])[long.process.pid] < LONG_NS, "the kernel was over too early"

    def test_what_a_dead_process_had_in_flight_is_nobody_s(self, world: ComputeWorld) -> None:
        job = world.job(ComputeWord(is_measured=True))
        with job.load(f"cost_ns={LONG_NS}", "count=1") as load:
            until_used(world, [load], ENOUGH_NS // 100)
            assert job.told().in_flight_until_ns != 0
        assert job.told().in_flight_until_ns == 0

    def test_a_thread_can_be_cancelled_while_it_waits_and_the_others_go_on(self, world: ComputeWorld) -> None:
        job = world.job(ComputeWord(is_measured=True))
        job.hold(is_held=True)
        command = [str(client_path("compute", "compute-cancelled"))]
        environment = job.environment_for(is_shimmed=True)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=environment, **pipes) as process:  # type: ignore[call-overload]
            assert process.stdout.readline() == "launching\n"
            until(lambda: job.told().wanted_ns > 0)
            print(file=process.stdin, flush=True)
            assert process.stdout.readline() == "cancelled\n"
            job.hold(is_held=False)
            output, _ = process.communicate("\n")
        assert output == "0 0\n"

    def test_copies_wait_too(self, world: ComputeWorld) -> None:
        job = world.job(ComputeWord(is_measured=True))
        job.hold(is_held=True)
        with job.load("mode=copy", "sync=1"):
            until(lambda: job.told().wanted_ns > 0, lambda: "nothing was copied")
            _a_few_looks(job)
            assert job.told().launches == 0
            job.hold(is_held=False)
            until(lambda: job.told().launches > 0, lambda: "the job stays held")

    @pytest.mark.parametrize(
        "call", ["'cuMemBatchDecompressAsync', None, 0, 0, None, None", "'cuFabricCpyBatchAsync', 0, None, 0, None"]
    )
    def test_what_no_engine_of_a_simulated_gpu_does_waits_too(self, world: ComputeWorld, call: str) -> None:
        job = world.job(ComputeWord(is_measured=True))
        job.hold(is_held=True)
        with job.running(f"cu.begin()\nprint('ready', flush=True)\nprint(cu.code({call}), flush=True)") as process:
            until(lambda: job.told().wanted_ns > 0, lambda: "it does not wait")
            _a_few_looks(job)
            job.hold(is_held=False)
            output, _ = process.communicate(timeout=DEADLINE_SECONDS)
        assert output == "801\n", "CUDA_ERROR_NOT_SUPPORTED"


def _until_quiet(job: ComputeJob, pid: int) -> None:
    def is_quiet() -> bool:
        return any(slot.pid == pid and slot.in_flight & 1 == 0 for slot in meter.held_slots(job.usage))

    until(is_quiet, lambda: "the process never says that nothing of it is in flight")


def _a_few_looks(job: ComputeJob) -> None:
    """Until a process that waits has looked some times whether it may go on."""
    for _ in range(3):
        seen_ns = job.told().wanted_ns
        until(lambda seen_ns=seen_ns: job.told().wanted_ns > seen_ns, lambda: "nobody waits")  # type: ignore[misc]
