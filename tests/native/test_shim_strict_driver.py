"""The shim before a driver of the test's own, which has green contexts and, as NVIDIA's, handles that are addresses."""

import subprocess
from collections.abc import Iterator

import pytest
from tests.cuda_session import OUT_OF_MEMORY
from tests.native_clients import client_path
from tests.slice_world import CONTEXT_BYTES, MIB, SliceWorld, a_slice


@pytest.fixture
def world() -> Iterator[SliceWorld]:
    with a_slice(1024 * MIB) as world:
        world.driver = client_path("shim", "shim-strict-driver.so")
        world.uuids = ["GPU-00000000-0000-0000-0000-000000000000"]
        world.write_limit()
        yield world


def test_the_primary_context_behind_a_green_one_takes_its_own_memory_with_it_and_no_pool_s(
    world: SliceWorld,
) -> None:
    steps = """
cu.call("cuInit", 0)
green = cu.number("cuGreenCtxCreate", None, 0, 0)
cu.number("cuDevicePrimaryCtxRetain", 0)
cu.alloc(100 * MIB)
cu.alloc_async(64 * MIB)
print("made", flush=True); sys.stdin.readline()
cu.call("cuGreenCtxDestroy", c_uint64(green))
print("destroyed", flush=True); sys.stdin.readline()
cu.call("cuDevicePrimaryCtxRelease_v2", 0)
print("released", flush=True); sys.stdin.readline()
"""
    with world.running(steps) as job:
        held = [world.use().used_bytes]
        for _ in range(2):
            _step(job)
            held.append(world.use().used_bytes)
    all_bytes = CONTEXT_BYTES + 164 * MIB
    assert held == [all_bytes, all_bytes, 64 * MIB]


def test_nobody_asks_the_driver_about_a_pool_while_it_is_destroyed(world: SliceWorld) -> None:
    """The driver aborts when it is asked; a thread that synchronises meanwhile is played by the driver itself."""
    held = world.answer("""
cu.call("cuInit", 0)
cu.number("cuDevicePrimaryCtxRetain", 0)
pool = cu.pool()
cu.free_async(cu.alloc_async(64 * MIB))
cu.call("cuMemPoolDestroy", c_uint64(pool))
print(json.dumps("alive"))
""")
    assert held == "alive"


class TestMemoryFreedOnAStream:
    """Ordinary memory (cuMemAlloc), which the driver frees when the stream gets there."""

    @pytest.mark.parametrize("progress", ["cuStreamSynchronize", "cuStreamQuery"])
    def test_it_stays_counted_until_the_stream_is_there(self, world: SliceWorld, progress: str) -> None:
        outcomes = world.answer(
            """
cu.call("cuInit", 0)
cu.number("cuDevicePrimaryCtxRetain", 0)
cu.free_async(cu.alloc(600 * MIB))
early = outcome(lambda: cu.alloc(600 * MIB))
cu.call(sys.argv[1], c_uint64(0))
print(json.dumps([early, outcome(lambda: cu.alloc(600 * MIB))]))
""",
            progress,
        )
        assert outcomes == [OUT_OF_MEMORY, 0]

    @pytest.mark.parametrize("end", ["cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset_v2"])
    def test_it_is_refunded_with_the_context_and_nobody_asks_about_an_event_that_is_gone(
        self, world: SliceWorld, end: str
    ) -> None:
        steps = """
cu.call("cuInit", 0)
cu.number("cuDevicePrimaryCtxRetain", 0)
cu.free_async(cu.alloc(600 * MIB))
cu.call(sys.argv[1], 0)
print("ended", flush=True); sys.stdin.readline()
"""
        with world.running(steps, end):
            held = world.use().used_bytes
        assert held == (0 if "Release" in end else CONTEXT_BYTES)

    def test_a_driver_without_events_keeps_it_counted(self, world: SliceWorld) -> None:
        """More frees than this driver has events: what nobody can follow stays counted until its context goes."""
        steps = """
cu.call("cuInit", 0)
cu.number("cuDevicePrimaryCtxRetain", 0)
for _ in range(70):
    cu.free_async(cu.alloc(2 * MIB))
cu.synchronise()
print("freed", flush=True); sys.stdin.readline()
cu.call("cuDevicePrimaryCtxRelease_v2", 0)
print("released", flush=True); sys.stdin.readline()
"""
        with world.running(steps) as job:
            held = [world.use().used_bytes]
            _step(job)
            held.append(world.use().used_bytes)
        assert held == [CONTEXT_BYTES + 6 * 2 * MIB, 0]


def test_a_reset_destroys_what_was_allocated_and_releases_nothing(world: SliceWorld) -> None:
    steps = """
cu.call("cuInit", 0)
for _ in range(2):
    cu.number("cuDevicePrimaryCtxRetain", 0)
cu.alloc(100 * MIB)
print("made", flush=True); sys.stdin.readline()
for end in ("Reset_v2", "Release_v2", "Release_v2"):
    cu.call(f"cuDevicePrimaryCtx{end}", 0)
    print(end, flush=True); sys.stdin.readline()
"""
    with world.running(steps) as job:
        held = [world.use().used_bytes]
        for _ in range(3):
            _step(job)
            held.append(world.use().used_bytes)
    assert held == [CONTEXT_BYTES + 100 * MIB, CONTEXT_BYTES, CONTEXT_BYTES, 0]


def _step(job: subprocess.Popen[str]) -> None:
    """Let the job go on to where it prints its next line."""
    assert job.stdin is not None
    assert job.stdout is not None
    job.stdin.write("go\n")
    job.stdin.flush()
    assert job.stdout.readline()
