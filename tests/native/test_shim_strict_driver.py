"""The shim before a driver of the test's own, which has green contexts and, as NVIDIA's, handles that are addresses."""

from collections.abc import Iterator

import pytest
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
        assert job.stdin is not None
        assert job.stdout is not None
        held = [world.use().used_bytes]
        for _ in range(2):
            job.stdin.write("go\n")
            job.stdin.flush()
            assert job.stdout.readline()
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
