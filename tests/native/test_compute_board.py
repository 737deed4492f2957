"""What others write on the board, however forged, and however many they are, changes no job's own share."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.compute_world import ENOUGH_NS, ComputeJob, ComputeWorld, a_compute_world, most_ns, shared, until_used
from tests.compute_world import LAUNCHING as _KERNEL
from tests.waiting import DEADLINE_SECONDS, until

from pgpu.enforcement.board import ABI, BOARD_BYTES, HEADER, MAGIC


@pytest.fixture
def world() -> Iterator[ComputeWorld]:
    with a_compute_world() as found:
        yield found


_EMPTY_BOARD = (b"GPUUTIME" + bytes([ABI, 0, 0, 0, 1])).ljust(BOARD_BYTES, b"\0")


@contextmanager
def _claiming(forger: ComputeJob, processes: int) -> Iterator[None]:
    """Let a job say all the time that so many of its processes have had work in flight."""
    is_over, began_ns = threading.Event(), time.monotonic_ns()
    header_bytes = HEADER.size

    def claim() -> None:
        with forger.time.open("r+b", buffering=0) as file:
            file.write(HEADER.pack(MAGIC, ABI, 1) + bytes.fromhex(forger.uuids[0].partition("-")[2].replace("-", "")))
            while not is_over.wait(0.0003):
                file.seek(header_bytes + 48)
                file.write((processes * (time.monotonic_ns() - began_ns)).to_bytes(8, "little"))

    thread = threading.Thread(target=claim)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class TestNoJobIsBelieved:
    @pytest.mark.parametrize(
        "content",
        [b"", b"x", b"\xff" * BOARD_BYTES, b"GPUUTIME" + bytes(BOARD_BYTES), b"GPUUTIME\1\0\0\0\x10\0\0\0" * 256],
    )
    def test_a_forged_neighbour_changes_nothing_for_who_is_alone(self, world: ComputeWorld, content: bytes) -> None:
        job, forger = world.job(shared(0.1)), world.job()
        forger.time.write_bytes(content)
        with job.load("cost_ns=2000000", "sync=1") as load:
            until_used(world, [load])

    def test_a_forged_neighbour_takes_no_more_turns_than_one_job_can(self, world: ComputeWorld) -> None:
        job, forger = world.job(shared(0.1, is_strict=True)), world.job()
        with _claiming(forger, processes=8), job.load("cost_ns=1000000", "sync=4") as load:
            began_ns, before_ns = time.monotonic_ns(), until_used(world, [load], ENOUGH_NS // 10)
            used_ns = until_used(world, [load], before_ns + ENOUGH_NS) - before_ns
            assert used_ns <= most_ns(2 * 0.1, began_ns, longest_ns=4_000_000)

    @pytest.mark.parametrize("others", [100, 1100])
    def test_a_share_is_nobody_s_however_many_jobs_are_on_the_board(self, world: ComputeWorld, others: int) -> None:
        large, small = world.job(shared(0.8)), world.job(shared(0.2))
        for number in range(others):
            (world.directory / "board" / f"zz{number:04}").write_bytes(_EMPTY_BOARD)
        words = ("cost_ns=1000000", "sync=0")
        with large.load(*words) as theirs, small.load(*words) as ours:
            until_used(world, [ours, theirs])
            pids = [ours.process.pid, theirs.process.pid]

            def is_served_first() -> bool:
                before = world.got_ns(pids)
                until_used(world, [ours, theirs], sum(before.values()) + 2 * ENOUGH_NS)
                after = world.got_ns(pids)
                return after[pids[1]] - before[pids[1]] > 2.5 * (after[pids[0]] - before[pids[0]])

            until(is_served_first)  # without a free core, a process may launch too little in one interval

    def test_a_neighbour_of_another_version_may_be_entitled_to_anything(self, world: ComputeWorld) -> None:
        job, newer = world.job(shared(0.2)), world.job()
        newer.time.write_bytes((b"GPUUTIME" + (77).to_bytes(4, "little")).ljust(BOARD_BYTES, b"\0"))
        began_ns = time.monotonic_ns()
        with job.load("cost_ns=1000000", "sync=0") as load:
            assert until_used(world, [load]) <= most_ns(0.2, began_ns, longest_ns=2_000_000)

    @pytest.mark.parametrize(
        ("name", "is_seen"), [("0-12345678", False), ("0-{tag}", True), ("0-12345678-{tag}", True)]
    )
    def test_a_file_of_other_gpus_alone_is_not_looked_at(self, world: ComputeWorld, name: str, is_seen: bool) -> None:
        job = world.job(shared(0.2))
        tag = job.uuids[0].partition("-")[2][:8]
        newer = world.directory / "board" / name.format(tag=tag)
        newer.write_bytes((b"GPUUTIME" + (77).to_bytes(4, "little")).ljust(BOARD_BYTES, b"\0"))
        began_ns = time.monotonic_ns()
        with job.load("cost_ns=1000000", "sync=0") as load:
            is_bound = until_used(world, [load]) <= most_ns(0.2, began_ns, longest_ns=2_000_000)
        assert is_bound == is_seen

    def test_a_neighbour_s_file_that_shrinks_under_the_reader_kills_nobody(self, world: ComputeWorld) -> None:
        job, forger = world.job(shared(0.5)), world.job()
        with job.load("cost_ns=100000", "sync=1", "count=300", "seconds=60") as load:
            while load.process.poll() is None and job.told().launches < 250:
                forger.time.write_bytes(b"")
                forger.time.write_bytes(b"GPUUTIME" + bytes(BOARD_BYTES - 8))
            load.finish()
        assert load.process.returncode == 0

    def test_a_board_that_cannot_be_read_lends_nothing(self, world: ComputeWorld) -> None:
        job = world.job(shared(0.3))
        (job.directory / "board").unlink()
        began_ns = time.monotonic_ns()
        with job.load("cost_ns=1000000", "sync=0") as load:
            assert until_used(world, [load]) <= most_ns(0.3, began_ns, longest_ns=2_000_000)

    @pytest.mark.parametrize("is_missing", [True, False])
    def test_a_share_whose_time_cannot_be_told_refuses_cuda_with_one_line(
        self, world: ComputeWorld, is_missing: bool
    ) -> None:
        job = world.job(shared(0.3))
        job.time.unlink() if is_missing else job.time.write_bytes(b"\xff" * BOARD_BYTES)
        done = job.run("print(cu.code('cuInit', 0))")
        assert done.stdout == "800\n"
        assert len(done.stderr.splitlines()) == 1
        assert "GPU time" in done.stderr

    def test_a_share_that_comes_while_its_file_is_missing_refuses_launches(self, world: ComputeWorld) -> None:
        job = world.job()
        job.time.unlink()
        with job.running(
            _KERNEL
            + """
print("ready", flush=True); sys.stdin.readline()
print(launch())
"""
        ) as process:
            job.share(shared(0.5))
            output, _ = process.communicate("\n", timeout=DEADLINE_SECONDS)
        assert output == "800\n"
