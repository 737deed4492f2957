"""What a context takes when its limits are raised is charged before, and refused where it would pass the slice."""

from collections.abc import Iterator

import pytest
from tests.cuda_session import OUT_OF_MEMORY
from tests.slice_world import CONTEXT_BYTES, MIB, SliceWorld, a_slice

STACK, PRINTF, HEAP, L2_FETCH = 0, 1, 2, 5
_SET = """
def limit(which):
    return cu.number("cuCtxGetLimit", which)
def raise_by(which, size_bytes):
    return cu.code("cuCtxSetLimit", which, c_size_t(limit(which) + size_bytes))
"""


@pytest.fixture
def world() -> Iterator[SliceWorld]:
    with a_slice(1024 * MIB) as world:
        yield world


@pytest.mark.parametrize("which", [PRINTF, HEAP])
def test_the_heap_and_the_printf_buffer_are_charged_by_what_they_grow(world: SliceWorld, which: int) -> None:
    answer = world.answer(
        f"""{_SET}
cu.begin()
which = int(sys.argv[1])
first = limit(which)
codes = [raise_by(which, 800 * MIB), limit(which) - first, raise_by(which, 600 * MIB), cu.held()]
codes += [raise_by(which, 200 * MIB), limit(which) - first, cu.held()]
print(json.dumps(codes))
""",
        str(which),
    )
    assert answer == [
        OUT_OF_MEMORY,
        0,
        0,
        CONTEXT_BYTES + 600 * MIB,
        OUT_OF_MEMORY,
        600 * MIB,
        CONTEXT_BYTES + 600 * MIB,
    ]


def test_the_stack_is_charged_for_every_thread_that_the_gpu_can_hold(world: SliceWorld) -> None:
    answer = world.answer(f"""{_SET}
cu.begin()
count = 1
for attribute in (16, 39):
    value = c_int()
    cu.call("cuDeviceGetAttribute", byref(value), attribute, 0)
    count *= value.value
print(json.dumps([count, raise_by({STACK}, 4096), cu.held(), raise_by({STACK}, 64 * 1024)]))
""")
    threads, granted, held, refused = answer
    assert (granted, refused) == (0, OUT_OF_MEMORY)
    assert 0 <= held - CONTEXT_BYTES - threads * 4096 < 2 * MIB


def test_a_limit_that_is_lowered_and_raised_again_is_charged_once(world: SliceWorld) -> None:
    held = world.answer(f"""{_SET}
cu.begin()
for change in (400 * MIB, -400 * MIB, 400 * MIB):
    assert raise_by({HEAP}, change) == 0
print(json.dumps(cu.held()))
""")
    assert held == CONTEXT_BYTES + 400 * MIB


@pytest.mark.parametrize("end", ["cuCtxDestroy_v2", "cuDevicePrimaryCtxReset_v2"])
def test_it_is_refunded_with_its_context(world: SliceWorld, end: str) -> None:
    held = world.answer(
        f"""{_SET}
context = cu.begin()
if sys.argv[1] == "cuCtxDestroy_v2":
    context = cu.number("cuCtxCreate_v2", 0, 0)
assert raise_by({HEAP}, 300 * MIB) == 0
cu.call(sys.argv[1], c_uint64(context) if "Destroy" in sys.argv[1] else 0)
cu.use(0)
print(json.dumps(cu.held()))
""",
        end,
    )
    assert held == CONTEXT_BYTES


def test_limits_that_take_no_memory_and_unknown_ones_are_the_driver_s_to_judge(world: SliceWorld) -> None:
    ask = f"""
cu.begin()
print(json.dumps([cu.code("cuCtxSetLimit", which, c_size_t(128)) for which in ({L2_FETCH}, 77)]))
"""
    assert world.answer(ask) == world.answer(ask, is_shimmed=False)
