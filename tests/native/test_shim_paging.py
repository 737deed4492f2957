"""A job that oversubscribes: its ordinary memory is managed memory that looks as ordinary as before, what cannot be moved to
the host has a limit of its own, and both are exact whoever dies."""

import subprocess
from collections.abc import Iterator

import pytest
from tests.slice_world import CONTEXT_BYTES, GIB, MIB, SliceWorld, a_slice
from tests.waiting import until

from pgpu.enforcement import limit_file, meter
from pgpu.enforcement.board import BOARD_BYTES, read_board
from pgpu.enforcement.compute_word import ComputeWord, Hold

RESIDENT_BYTES = 512 * MIB

ATTRIBUTES = """
def attribute(number, pointer, width=8):
    value = c_uint64(2**64 - 1)
    code = cu.code("cuPointerGetAttribute", byref(value), number, c_uint64(pointer))
    return [code, value.value & (2 ** (8 * width) - 1)]
MEMORY_TYPE, HOST_POINTER, IS_MANAGED, RANGE_SIZE = 2, 4, 8, 12
"""


@pytest.fixture
def paging() -> Iterator[SliceWorld]:
    """A slice of 1 GiB of which 512 MiB may be memory that stays on the device."""
    with a_slice(GIB) as world:
        world.write_limit(resident_bytes=RESIDENT_BYTES)
        yield world


def test_ordinary_memory_is_managed_and_says_that_it_is_not(paging: SliceWorld) -> None:
    told = paging.answer(f"""{ATTRIBUTES}
cu.begin()
ordinary, managed = cu.alloc(4 * MIB), cu.number("cuMemAllocManaged", c_size_t(4 * MIB), 1)
def tell(pointer):
    return [attribute(IS_MANAGED, pointer, 1), attribute(MEMORY_TYPE, pointer, 4), attribute(HOST_POINTER, pointer)[0]]
location = c_int()
advised = [cu.code("cuMemRangeGetAttribute", byref(location), c_size_t(4), 2, c_uint64(each), c_size_t(MIB)) for each in (ordinary, managed)]
print(json.dumps([tell(ordinary), tell(ordinary + MIB), tell(managed), advised, location.value]))
""")
    as_ordinary = [[0, 0], [0, 2], 1]
    assert told[0] == told[1] == as_ordinary
    assert told[2] == [[0, 1], [0, 2], 0]
    assert told[3] == [0, 0]  # Memory that is not managed has no such attributes.


def test_several_attributes_at_once_say_the_same(paging: SliceWorld) -> None:
    told = paging.answer("""
cu.begin()
pointer = cu.alloc(4 * MIB)
names, values = (c_int * 3)(8, 4, 2), [c_uint64(0), c_uint64(7), c_uint64(0)]
places = (c_void_p * 3)(*(addressof(value) for value in values))
cu.call("cuPointerGetAttributes", 3, names, places, c_uint64(pointer + 512))
print(json.dumps([value.value for value in values]))
""")
    assert told == [0, 0, 2]


def test_it_is_as_without_oversubscription_in_every_other_way(paging: SliceWorld) -> None:
    snippet = f"""{ATTRIBUTES}
cu.begin()
pointer = cu.alloc(3 * MIB)
base, size = c_uint64(), c_size_t()
cu.call("cuMemGetAddressRange_v2", byref(base), byref(size), c_uint64(pointer + MIB))
pitched, pitch = c_uint64(), c_size_t()
cu.call("cuMemAllocPitch_v2", byref(pitched), byref(pitch), c_size_t(1000), c_size_t(7), 4)
bad = [cu.code("cuMemAllocPitch_v2", byref(pitched), byref(pitch), c_size_t(width), c_size_t(height), size) for width, height, size in ((0, 1, 4), (1, 0, 4), (1, 1, 3))]
bad.append(cu.code("cuMemAlloc_v2", byref(base), c_size_t(0)))
cu.call("cuMemsetD8_v2", c_uint64(pointer), c_ubyte(7), c_size_t(4))
read = (c_ubyte * 4)()
cu.call("cuMemcpyDtoH_v2", read, c_uint64(pointer), c_size_t(4))
told = [base.value == pointer, size.value, pitch.value, bad, attribute(RANGE_SIZE, pointer)[1], list(read), cu.held()]
cu.free(pointer)
cu.free_async(cu.alloc(MIB))
cu.synchronise()
print(json.dumps([told, cu.held()]))
"""
    told = paging.answer(snippet)
    with a_slice(GIB) as ordinary:
        assert told == ordinary.answer(snippet)


def test_the_slice_binds_and_pageable_memory_may_take_all_of_it(paging: SliceWorld) -> None:
    done, code = paging.answer("""
cu.begin()
print(json.dumps(count_until_refused(lambda: cu.alloc(64 * MIB), 32)))
""")
    assert (done, code) == ((GIB - CONTEXT_BYTES) // (64 * MIB), 2)


@pytest.mark.parametrize("kind", ["cu.create(64 * MIB)", "cu.alloc_async(64 * MIB)"])
def test_memory_that_must_stay_on_the_device_is_refused_past_its_part(paging: SliceWorld, kind: str) -> None:
    done, code, more = paging.answer(f"""
cu.begin()
answer = count_until_refused(lambda: {kind}, 32)
print(json.dumps([*answer, outcome(lambda: cu.alloc(256 * MIB))]))
""")
    assert code == 2
    assert done == (RESIDENT_BYTES - CONTEXT_BYTES) // (64 * MIB)
    assert more == 0


def test_the_host_reads_what_stays_on_the_device(paging: SliceWorld) -> None:
    with paging.running(
        "cu.begin(); cu.alloc(128 * MIB); cu.create(64 * MIB); print('ready', flush=True); sys.stdin.read()"
    ):
        use = paging.use()
    assert use.used_bytes == CONTEXT_BYTES + 192 * MIB
    assert use.resident_bytes == CONTEXT_BYTES + 64 * MIB


def test_what_a_killed_process_held_comes_back_on_both_counts(paging: SliceWorld) -> None:
    with paging.running(
        "cu.begin(); cu.alloc(128 * MIB); cu.create(64 * MIB); print('ready', flush=True); sys.stdin.read()"
    ) as process:
        process.kill()
        process.wait()
    until(lambda: paging.use().used_bytes == 0)
    assert paging.use().resident_bytes == 0
    done, _ = paging.answer("cu.begin()\nprint(json.dumps(count_until_refused(lambda: cu.create(64 * MIB), 32)))")
    assert done == (RESIDENT_BYTES - CONTEXT_BYTES) // (64 * MIB)


def test_all_comes_back_with_the_context(paging: SliceWorld) -> None:
    used = paging.answer("""
cu.call("cuInit", 0)
context = cu.number("cuCtxCreate_v2", 0, 0)
cu.alloc(128 * MIB)
cu.call("cuCtxDestroy_v2", c_uint64(context))
cu.begin()
print(json.dumps(cu.held()))
""")
    assert used == CONTEXT_BYTES


def test_a_gpu_that_cannot_page_refuses_cuda_with_one_line() -> None:
    with a_slice(GIB, model="GTX 980 Ti") as world:
        world.write_limit(resident_bytes=RESIDENT_BYTES, context_bytes=64 * MIB)
        done = world.run('print(cu.code("cuInit", 0))')
    assert done.stdout.split() == ["800"]
    assert done.stderr.count("\n") == 1
    assert "--oversubscribe needs a GPU that can move memory to the host" in done.stderr
    assert "980 Ti" in done.stderr


def test_memory_of_such_a_job_cannot_be_handed_to_another_process(paging: SliceWorld) -> None:
    code = paging.answer("""
cu.begin()
handle = (c_ubyte * 64)()
print(json.dumps(cu.code("cuIpcGetMemHandle", handle, c_uint64(cu.alloc(MIB)))))
""")
    assert code == 1


class TestMemoryThatWentToTheHost:
    """While a job was held others may have pushed out what it works on. Which of a process's pages are on the device the
    simulated driver knows by their share alone, so fetching two ranges one after the other leaves a part of them away."""

    SNIPPET = """
cu.begin()
pointer, other = cu.alloc(64 * MIB), cu.alloc(64 * MIB)
def touch(bytes): cu.call("cuMemsetD8_v2", c_uint64(pointer), 1, c_size_t(bytes))
def leave():
    for each in (pointer, other):
        cu.call("cuMemPrefetchAsync", c_uint64(each), c_size_t(64 * MIB), -1, None)
    cu.call("cuCtxSynchronize")
touch(64 * MIB)
leave()
print("away", flush=True)
for line in sys.stdin:
    touch(4)
    cu.call("cuCtxSynchronize")
    print("there", flush=True)
"""

    @pytest.fixture
    def timed(self, paging: SliceWorld) -> SliceWorld:
        board = paging.directory / "boards"
        board.mkdir()
        (board / "job").write_bytes(bytes(BOARD_BYTES))
        (paging.directory / "time").symlink_to(board / "job")
        (paging.directory / "board").symlink_to(board)
        limit_file.set_compute_word(paging.limit, paging.uuids[0], ComputeWord(is_measured=True))
        return paging

    @staticmethod
    def on_device_bytes(world: SliceWorld) -> int:
        """What all hold of the device, as somebody else sees it: that one's own context counts, too."""
        free_bytes, total_bytes = world.answer("cu.begin()\nprint(json.dumps(cu.memory()))", is_shimmed=False)
        return int(total_bytes - free_bytes)

    @staticmethod
    def go(process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()

    @staticmethod
    def gone(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"

    def brought_bytes(self, world: SliceWorld, process: subprocess.Popen[str]) -> int:
        """What a launch that touches four bytes brings to the device."""
        before_bytes = self.on_device_bytes(world)
        self.go(process)
        self.gone(process)
        return self.on_device_bytes(world) - before_bytes

    def test_all_of_it_is_fetched_for_a_job_that_was_held_though_it_launched_nothing(self, timed: SliceWorld) -> None:
        with timed.running(self.SNIPPET) as process:
            for is_held in (True, False):
                limit_file.set_held(timed.limit, timed.uuids[0], Hold.TURNS, is_held=is_held)
            assert self.brought_bytes(timed, process) > 64 * MIB
            assert self.brought_bytes(timed, process) == 0

    def test_nothing_is_fetched_for_a_job_that_was_not_held(self, timed: SliceWorld) -> None:
        with timed.running(self.SNIPPET) as process:
            limit_file.set_compute_word(timed.limit, timed.uuids[0], ComputeWord(weight=7, is_measured=True))
            assert self.brought_bytes(timed, process) < MIB

    def test_a_launch_that_waits_fetches_all_of_it_before_it_goes_on(self, timed: SliceWorld) -> None:
        with timed.running(self.SNIPPET) as process:
            limit_file.set_held(timed.limit, timed.uuids[0], Hold.SUSPENSION, is_held=True)
            before_bytes, wanted_ns = self.on_device_bytes(timed), self.wanted_ns(timed)
            self.go(process)
            until(lambda: self.wanted_ns(timed) > wanted_ns)
            limit_file.set_held(timed.limit, timed.uuids[0], Hold.SUSPENSION, is_held=False)
            self.gone(process)
            assert self.on_device_bytes(timed) - before_bytes > 64 * MIB

    @staticmethod
    def wanted_ns(world: SliceWorld) -> int:
        board = world.directory / "boards" / "job"
        return read_board(board, meter.in_flight_until_ns(world.usage))[0].wanted_ns
