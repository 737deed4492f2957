"""Physical memory outlives its handle in mappings, multicast bindings and exports, before a strict driver of the test's own."""

from collections.abc import Iterator

import pytest
from tests.native_clients import client_path
from tests.slice_world import MIB, SliceWorld, a_slice


@pytest.fixture
def world() -> Iterator[SliceWorld]:
    with a_slice(1024 * MIB) as world:
        world.driver = client_path("shim", "shim-strict-driver.so")
        world.uuids = ["GPU-00000000-0000-0000-0000-000000000000"]
        world.write_limit()
        yield world


_PHYSICAL = """
cu.call("cuInit", 0)
cu.number("cuDevicePrimaryCtxRetain", 0)
memory = cu.create(600 * MIB)
"""
_MULTICAST = """
team = cu.number("cuMulticastCreate", None)
nothing = c_size_t(0)
def bind(offset=0):
    cu.call("cuMulticastBindMem", c_uint64(team), c_size_t(offset), c_uint64(memory), nothing, nothing, c_uint64(0))
def bind_on(device):
    cu.call("cuMulticastBindMem_v2", c_uint64(team), device, nothing, c_uint64(memory), nothing, nothing, c_uint64(0))
def bind_address(address):
    cu.call("cuMulticastBindAddr", c_uint64(team), nothing, c_uint64(address), nothing, c_uint64(0))
def unbind(offset=0):
    cu.call("cuMulticastUnbind", c_uint64(team), 0, c_size_t(offset), nothing)
def fits():
    code = outcome(lambda: cu.release(cu.create(600 * MIB)))
    return code == 0
"""


class TestPhysicalMemoryOutlivesItsHandle:
    @pytest.mark.parametrize("bound", ["bind()", "bind_on(0)", "cu.map(4096, 600 * MIB, memory); bind_address(8192)"])
    def test_while_it_is_bound_to_a_multicast_object(self, world: SliceWorld, bound: str) -> None:
        fits = world.answer(f"""
{_PHYSICAL}{_MULTICAST}
{bound}
cu.release(memory)
cu.unmap(4096, 600 * MIB)
seen = [fits()]
unbind()
print(json.dumps(seen + [fits()]))
""")
        assert fits == [False, True]

    @pytest.mark.parametrize(
        "bind",
        [
            'cu.call("cuLogicalEndpointBindMem", 7, 0, c_uint64(4096), c_uint64(memory), nothing, large, c_uint64(0))',
            """cu.map(4096, 600 * MIB, memory)
cu.call("cuLogicalEndpointBindAddr", 7, 0, c_uint64(4096), c_void_p(8192), large, c_uint64(0))""",
        ],
    )
    @pytest.mark.parametrize(
        "end", ['"cuLogicalEndpointUnbind", 7, 0, nothing, large', '"cuLogicalEndpointDestroy", 7']
    )
    def test_while_it_is_bound_to_a_logical_endpoint(self, world: SliceWorld, bind: str, end: str) -> None:
        fits = world.answer(f"""
{_PHYSICAL}{_MULTICAST}
large = c_uint64(600 * MIB)
{bind}
cu.release(memory)
cu.unmap(4096, 600 * MIB)
seen = [fits()]
cu.call("cuLogicalEndpointUnbind", 8, 0, nothing, large)
seen.append(fits())
cu.call({end})
print(json.dumps(seen + [fits()]))
""")
        assert fits == [False, False, True]

    def test_until_the_last_of_its_bindings_is_undone(self, world: SliceWorld) -> None:
        fits = world.answer(f"""
{_PHYSICAL}{_MULTICAST}
bind(0), bind(4096)
cu.release(memory)
unbind(8192), unbind(4096)
seen = [fits()]
unbind(0)
print(json.dumps(seen + [fits()]))
""")
        assert fits == [False, True]

    def test_until_the_multicast_object_is_gone_with_its_last_mapping(self, world: SliceWorld) -> None:
        fits = world.answer(f"""
{_PHYSICAL}{_MULTICAST}
cu.map(4096, 4096, team)
bind()
cu.release(memory)
cu.release(team)
seen = [fits()]
cu.unmap(4096, 4096)
print(json.dumps(seen + [fits()]))
""")
        assert fits == [False, True]

    def test_until_every_descriptor_of_an_export_is_closed_in_whatever_process(self, world: SliceWorld) -> None:
        fits = world.answer(f"""
{_PHYSICAL}{_MULTICAST}
descriptor = c_int()
cu.call("cuMemExportToShareableHandle", byref(descriptor), c_uint64(memory), 1, c_uint64(0))
cu.release(memory)
seen = [fits()]
ours, theirs = os.pipe()
child = os.fork()
if child == 0:
    os.close(theirs)
    os.read(ours, 1)
    os._exit(0)
os.close(descriptor.value)
seen.append(fits())
os.close(theirs)
os.waitpid(child, 0)
print(json.dumps(seen + [fits()]))
""")
        assert fits == [False, False, True]

    @pytest.mark.parametrize(
        "make",
        [
            "address = cu.alloc(600 * MIB); give_up = lambda: cu.free(address)",
            """memory = cu.create(600 * MIB); address = 4096; cu.map(address, 600 * MIB, memory); cu.release(memory)
give_up = lambda: cu.unmap(address, 600 * MIB)""",
        ],
    )
    def test_for_good_once_a_range_of_it_was_exported(self, world: SliceWorld, make: str) -> None:
        """Such a descriptor may be a network card's by now."""
        fits = world.answer(f"""
cu.call("cuInit", 0)
cu.number("cuDevicePrimaryCtxRetain", 0)
{make}
descriptor = c_int()
cu.call("cuMemGetHandleForAddressRange", byref(descriptor), c_uint64(address), c_size_t(4096), 1, c_uint64(0))
give_up()
os.close(descriptor.value)
print(json.dumps(outcome(lambda: cu.create(600 * MIB)) == 0))
""")
        assert fits is False
