"""What a job frees is refunded, once and to the last byte, and what still lives stays counted; on the simulated driver
behind a plain preload, as in every test_shim_*."""

import pytest
from tests.slice_world import CONTEXT_BYTES, GIB, MIB, SliceWorld


class TestVirtualMemoryStaysCountedWhileItLives:
    def test_memory_that_is_mapped_and_released_cannot_be_made_again_beyond_the_slice(
        self, one_gib: SliceWorld
    ) -> None:
        done, code = one_gib.answer("""
cu.begin()
def create_map_release():
    handle = cu.create(128 * MIB)
    cu.map(cu.reserve(128 * MIB), 128 * MIB, handle)
    cu.release(handle)
print(json.dumps(count_until_refused(create_map_release, 16)))
""")
        assert code == 2
        assert done == (GIB - CONTEXT_BYTES) // (128 * MIB)

    @pytest.mark.parametrize("order", ["release, unmap", "unmap, release"])
    def test_it_is_refunded_when_the_last_of_handle_and_mapping_is_gone(self, one_gib: SliceWorld, order: str) -> None:
        held = one_gib.answer(
            """
cu.begin()
handle, address = cu.create(128 * MIB), cu.reserve(128 * MIB)
cu.map(address, 128 * MIB, handle)
held = [cu.held()]
for step in sys.argv[1].split(", "):
    cu.release(handle) if step == "release" else cu.unmap(address, 128 * MIB)
    held.append(cu.held())
print(json.dumps(held))
""",
            order,
        )
        full = CONTEXT_BYTES + 128 * MIB
        assert held == [full, full, CONTEXT_BYTES]

    def test_a_retained_handle_keeps_it_counted(self, one_gib: SliceWorld) -> None:
        held = one_gib.answer("""
cu.begin()
handle, address = cu.create(128 * MIB), cu.reserve(128 * MIB)
cu.map(address, 128 * MIB, handle)
again = cu.number("cuMemRetainAllocationHandle", c_void_p(address + 4096))
cu.release(handle)
cu.unmap(address, 128 * MIB)
held = [cu.held()]
cu.release(again)
print(json.dumps(held + [cu.held()]))
""")
        assert held == [CONTEXT_BYTES + 128 * MIB, CONTEXT_BYTES]

    def test_one_unmap_over_several_mappings_refunds_them_all(self, one_gib: SliceWorld) -> None:
        held = one_gib.answer("""
cu.begin()
address = cu.reserve(256 * MIB)
for half in range(2):
    handle = cu.create(128 * MIB)
    cu.map(address + half * 128 * MIB, 128 * MIB, handle)
    cu.release(handle)
cu.unmap(address, 256 * MIB)
print(json.dumps(cu.held()))
""")
        assert held == CONTEXT_BYTES


class TestLegalFreesSucceed:
    def test_every_way_of_freeing_refunds_every_kind_of_pointer(self, one_gib: SliceWorld) -> None:
        codes, held = one_gib.answer("""
cu.begin()
codes = [
    outcome(lambda: cu.free(cu.alloc_async(100 * MIB))),
    outcome(lambda: cu.free_async(cu.alloc(100 * MIB))),
    outcome(lambda: cu.free_async(cu.alloc_from(cu.pool(), 100 * MIB))),
    outcome(lambda: cu.free(cu.number("cuMemAllocManaged", c_size_t(100 * MIB), 1))),
    outcome(lambda: cu.free(0)),
]
cu.synchronise()
print(json.dumps([codes, cu.held()]))
""")
        assert codes == [0, 0, 0, 0, 0]
        assert held == CONTEXT_BYTES

    def test_what_the_shim_does_not_know_is_the_driver_s_to_judge(self, one_gib: SliceWorld) -> None:
        shimmed, plain = (
            one_gib.answer(
                "cu.begin(); print(json.dumps([cu.code('cuMemFree_v2', c_uint64(12345)),"
                "cu.code('cuMemFreeAsync', c_uint64(12345), c_uint64(0))]))",
                is_shimmed=is_shimmed,
            )
            for is_shimmed in (True, False)
        )
        assert shimmed == plain
        assert 0 not in shimmed

    def test_a_refused_free_refunds_nothing(self, one_gib: SliceWorld) -> None:
        held = one_gib.answer("""
cu.begin()
pointer = cu.alloc(100 * MIB)
cu.call("cuCtxSetCurrent", c_uint64(0))
code = cu.code("cuMemFree_v2", c_uint64(pointer + 8))
cu.use(0)
print(json.dumps([code != 0, cu.held()]))
""")
        assert held == [True, CONTEXT_BYTES + 100 * MIB]

    def test_a_context_s_memory_is_refunded_with_it(self, one_gib: SliceWorld) -> None:
        held = one_gib.answer("""
cu.begin()
context = cu.number("cuCtxCreate_v2", 0, 0)
cu.alloc(100 * MIB)
held = [cu.held()]
cu.call("cuCtxDestroy_v2", c_uint64(context))
cu.use(0)
print(json.dumps(held + [cu.held()]))
""")
        assert held == [2 * CONTEXT_BYTES + 100 * MIB, CONTEXT_BYTES]


class TestFreeingTakesTheSameTimeHoweverMuchIsHeld:
    """Its time is measured by benchmarks/shim_overhead; here the table's work is checked by what it finds."""

    def test_forty_thousand_allocations_are_freed_in_any_order_to_the_last_byte(self, one_gib: SliceWorld) -> None:
        one_gib.environment["PGPU_SIMGPU_BACKING"] = "none"
        most, least = one_gib.answer("""
import random
cu.begin()
pointers = [cu.alloc(512) for _ in range(40000)]
most = cu.held()
random.Random(1).shuffle(pointers)
for pointer in pointers:
    cu.free(pointer)
print(json.dumps([most, cu.held()]))
""")
        assert most == CONTEXT_BYTES + 40000 * 512
        assert least == CONTEXT_BYTES
