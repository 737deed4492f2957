"""A driver newer than the shim's table: what the shim does not know it hands out unchanged or not at all."""

from collections.abc import Iterator

import pytest
from tests.native_clients import client_path
from tests.slice_world import MIB, SliceWorld, a_slice

NOT_FOUND = 500
VERSION_NOT_SUFFICIENT = 2


@pytest.fixture
def world() -> Iterator[SliceWorld]:
    with a_slice(1024 * MIB) as world:
        world.driver = client_path("shim", "shim-strict-driver.so")
        world.uuids = ["GPU-00000000-0000-0000-0000-000000000000"]
        world.write_limit()
        yield world


def test_a_version_that_the_table_does_not_know_is_refused_where_an_older_one_is_hooked(world: SliceWorld) -> None:
    """The older hook would take the newer version's arguments for its own."""
    told = world.answer("""
cu.call("cuInit", 0)
address, status = c_void_p(1), c_int()
cu.call("cuGetProcAddress_v2", b"cuCtxCreate", byref(address), 14000, c_uint64(0), byref(status))
print(json.dumps([address.value, status.value]))
""")
    assert told == [None, VERSION_NOT_SUFFICIENT]


def test_it_is_refused_through_the_first_cu_get_proc_address_too(world: SliceWorld) -> None:
    told = world.answer("""
cu.call("cuInit", 0)
address = c_void_p(1)
code = cu.code("cuGetProcAddress", b"cuCtxCreate", byref(address), 14000, c_uint64(0))
print(json.dumps([code, address.value]))
""")
    assert told == [NOT_FOUND, None]


def test_it_is_refused_to_a_program_that_does_not_ask_for_the_status(world: SliceWorld) -> None:
    assert (
        world.answer("""
cu.call("cuInit", 0)
address = c_void_p(1)
cu.call("cuGetProcAddress_v2", b"cuCtxCreate", byref(address), 14000, c_uint64(0), None)
print(json.dumps(address.value))
""")
        is None
    )


@pytest.mark.parametrize("version", [12050, 13000, 13050])
def test_a_known_version_is_the_hook_though_the_driver_hands_out_another_address_than_it_exports(
    world: SliceWorld, version: int
) -> None:
    assert world.answer(f"""
cu.call("cuInit", 0)
print(json.dumps(cu.found("cuCtxCreate", {version}) == cu.symbol("cuCtxCreate_v4")))
""")


def test_a_known_version_is_the_hook_through_the_first_cu_get_proc_address_too(world: SliceWorld) -> None:
    assert world.answer("""
cu.call("cuInit", 0)
address = c_void_p()
cu.call("cuGetProcAddress", b"cuCtxCreate", byref(address), 13000, c_uint64(0))
print(json.dumps(address.value == cu.symbol("cuCtxCreate_v4")))
""")


def test_a_function_that_no_table_knows_is_the_driver_s_own(world: SliceWorld) -> None:
    """Whether it allocates nobody can tell; `pgpu doctor` warns of such a driver."""
    assert world.answer("""
cu.call("cuInit", 0)
print(json.dumps(cu.found("cuMemAllocSomehow", 14000) != 0))
""")
