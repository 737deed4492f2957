"""What broke in other memory limiters must hold here: one class for each of their known failures, in the order of the
list in docs/critiques.md, on the simulated driver behind a plain preload."""

import fcntl
import os
import select
import signal
import struct
import subprocess
from collections.abc import Iterator

import pytest
from tests.slice_world import CONTEXT_BYTES, MIB, SliceWorld, a_slice

from pgpu.enforcement import meter

GIB = 1024 * MIB
_DEADLINE_SECONDS = 30
_RTX_3090_CONTEXT_BYTES = 254 * MIB


@pytest.fixture
def one_gib() -> Iterator[SliceWorld]:
    with a_slice(GIB) as world:
        yield world


@pytest.fixture
def two_gpus() -> Iterator[SliceWorld]:
    """15 GiB of the first GPU, 1 GiB of the second."""
    with a_slice(15 * GIB, GIB) as world:
        yield world


class Test1VirtualMemoryStaysCountedWhileItLives:
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


class Test2EachGpuIsKnownByItsUuid:
    def test_virtual_memory_is_charged_to_the_device_it_is_made_on(self, two_gpus: SliceWorld) -> None:
        done, code = two_gpus.answer("""
cu.begin(0)
print(json.dumps(count_until_refused(lambda: cu.create(512 * MIB, ordinal=1), 8)))
""")
        assert (done, code) == (2, 2)
        assert two_gpus.use(0).peak_bytes == CONTEXT_BYTES
        assert two_gpus.use(1).peak_bytes == GIB

    def test_an_explicit_pool_is_charged_to_its_own_device(self, two_gpus: SliceWorld) -> None:
        done, code = two_gpus.answer("""
cu.begin(0)
pool = cu.pool(1)
print(json.dumps(count_until_refused(lambda: cu.alloc_from(pool, 512 * MIB), 8)))
""")
        assert (done, code) == (2, 2)

    def test_ordinals_renumbered_by_the_environment_keep_their_limits(self, two_gpus: SliceWorld) -> None:
        two_gpus.environment["CUDA_VISIBLE_DEVICES"] = "1"
        total, done = two_gpus.answer("""
cu.begin(0)
print(json.dumps([cu.total(0), count_until_refused(lambda: cu.alloc(512 * MIB), 8)[0]]))
""")
        assert (total, done) == (GIB, 1)
        assert two_gpus.use(0).peak_bytes == 0

    def test_a_gpu_outside_the_lease_gives_no_context_and_no_memory(self) -> None:
        with a_slice(GIB, None) as world:
            codes = world.answer("""
cu.begin(0)
attempts = (lambda: cu.use(1), lambda: cu.create(2 * MIB, ordinal=1), lambda: cu.pool(1))
print(json.dumps([outcome(attempt) for attempt in attempts]))
""")
        assert codes == [800, 800, 800]

    def test_the_default_pool_of_a_gpu_outside_the_lease_refuses_each_time_it_is_asked(self) -> None:
        with a_slice(GIB, None) as world:
            codes = world.answer("""
cu.begin(0)
pool = cu.number("cuDeviceGetDefaultMemPool", 1)
print(json.dumps([outcome(lambda: cu.alloc_from(pool, 512 * MIB)) for _ in range(3)]))
""")
        assert codes == [800, 800, 800]


class Test3AKilledProcessHoldsNobodyUp:
    """Every point inside the protocol is in test_meter_storm; here a sibling meets a corpse through CUDA."""

    def test_siblings_allocate_what_a_killed_one_had(self, one_gib: SliceWorld) -> None:
        hold = "cu.begin(); cu.alloc(600 * MIB); print('held', flush=True); sys.stdin.readline()"
        with one_gib.running(hold) as first:
            first.send_signal(signal.SIGKILL)
            first.wait()
            assert one_gib.answer("cu.begin(); print(json.dumps(outcome(lambda: cu.alloc(600 * MIB))))") == 0

    def test_a_sibling_works_while_another_is_stopped(self, one_gib: SliceWorld) -> None:
        hold = "cu.begin(); cu.alloc(100 * MIB); print('held', flush=True); sys.stdin.readline()"
        with one_gib.running(hold) as stopped:
            stopped.send_signal(signal.SIGSTOP)
            assert one_gib.answer("cu.begin(); print(json.dumps(outcome(lambda: cu.alloc(100 * MIB))))") == 0

    def test_memory_of_a_dead_parent_stays_counted_while_its_forked_child_lives(self, one_gib: SliceWorld) -> None:
        snippet = """
cu.begin()
cu.alloc(600 * MIB)
child = os.fork()
if child == 0:
    os.close(1)
    sys.stdin.readline()
    os._exit(0)
print(child, flush=True)
sys.stdin.readline()
"""
        one_gib.write_limit(context_bytes=100 * MIB)
        with one_gib.start(snippet) as parent:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            parent.kill()
            parent.wait()
            ask = "cu.begin(); print(json.dumps(outcome(lambda: cu.alloc(300 * MIB))))"
            assert one_gib.answer(ask) == 2
            os.kill(child, signal.SIGKILL)
            _wait_until_gone(child)
        assert one_gib.answer(ask) == 0


def _wait_until_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], _DEADLINE_SECONDS)[0]
    finally:
        os.close(descriptor)


class Test4NoProcessLosesItsSlot:
    def test_the_limit_holds_for_all_after_one_of_them_was_killed(self, one_gib: SliceWorld) -> None:
        hold = "cu.begin(); cu.alloc(8 * MIB); print('held', flush=True); sys.stdin.readline()"
        one_gib.write_limit(context_bytes=10 * MIB)
        with one_gib.running(hold) as first, one_gib.running(hold), one_gib.running(hold):
            first.send_signal(signal.SIGKILL)
            first.wait()
            done, code = one_gib.answer(
                "cu.begin(); print(json.dumps(count_until_refused(lambda: cu.alloc(64 * MIB), 30)))"
            )
            assert code == 2
            assert done == (GIB - 2 * 18 * MIB - 10 * MIB) // (64 * MIB)


class Test5TheJobDoesNotOwnItsLimit:
    @pytest.mark.parametrize(
        "name", ["PGPU_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_SHARED_CACHE", "CUDA_DISABLE_CONTROL"]
    )
    def test_no_environment_lifts_it(self, one_gib: SliceWorld, name: str) -> None:
        one_gib.environment[name] = "16g"
        done, code = one_gib.answer(
            "cu.begin(); print(json.dumps(count_until_refused(lambda: cu.alloc(256 * MIB), 8)))"
        )
        assert (done, code) == (2, 2)

    @pytest.mark.parametrize("damage", ["missing", "empty", "garbled", "short", "newer", "no GPUs"])
    def test_without_a_sound_limit_cuda_is_refused_with_one_line(self, one_gib: SliceWorld, damage: str) -> None:
        content = bytearray(one_gib.limit.read_bytes())
        if damage == "garbled":
            content[0] ^= 0xFF
        elif damage == "newer":
            content[8] = 9
        elif damage == "no GPUs":
            content[12:16] = bytes(4)
        one_gib.limit.write_bytes(content[: {"empty": 0, "short": 2000}.get(damage, len(content))])
        if damage == "missing":
            one_gib.limit.unlink()
        done = one_gib.run(
            "print(json.dumps([cu.code('cuInit', 0), cu.code('cuInit', 0), cu.code('cuMemAlloc_v2', None, c_size_t(1))]))"
        )
        assert done.stdout.strip() == "[800, 800, 3]"
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("pgpu: CUDA is refused here: ")

    def test_a_limit_that_must_be_read_only_and_is_not_refuses_cuda(self, one_gib: SliceWorld) -> None:
        content = bytearray(one_gib.limit.read_bytes())
        content[24] = 1
        one_gib.limit.write_bytes(content)
        done = one_gib.run("print(cu.code('cuInit', 0))")
        assert done.stdout.strip() == "800"
        assert "read-only" in done.stderr

    @pytest.mark.parametrize("damage", ["garbled", "newer", "missing"])
    def test_without_a_sound_usage_file_cuda_is_refused(self, one_gib: SliceWorld, damage: str) -> None:
        if damage == "missing":
            one_gib.usage.unlink()
        elif damage == "garbled":
            one_gib.usage.write_bytes(b"x" * 4096)
        else:
            one_gib.answer("cu.begin(); print(0)")
            content = bytearray(one_gib.usage.read_bytes())
            content[8] = 9
            one_gib.usage.write_bytes(content)
        done = one_gib.run("print(cu.code('cuInit', 0))")
        assert done.stdout.strip() == "800"
        assert done.stderr.count("\n") == 1

    def test_a_driver_path_that_leads_back_to_the_shim_refuses_cuda(self, one_gib: SliceWorld) -> None:
        one_gib.driver = one_gib.shim
        one_gib.write_limit()
        done = one_gib.run("print(cu.code('cuInit', 0))")
        assert done.stdout.strip() == "800"
        assert "leads back" in done.stderr


class Test6LegalFreesSucceed:
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


_KINDS = {
    "an explicit pool": "pool = cu.pool()\nmake = lambda: cu.alloc_from(pool, 100 * MIB)",
    "the default pool": "make = lambda: cu.alloc_async(100 * MIB)",
    "an array": """
wanted = Array(width=5 * MIB // 1024, height=5 * 1024, format=0x20, channels=1)
make = lambda: cu.number("cuArrayCreate_v2", byref(wanted))""",
    "a three-dimensional array": """
wanted = Array3d(width=256, height=1024, depth=100, format=0x20, channels=1)
make = lambda: cu.number("cuArray3DCreate_v2", byref(wanted))""",
    "a mipmapped array": """
wanted = Array3d(width=256, height=1024, depth=100, format=0x20, channels=1)
make = lambda: cu.number("cuMipmappedArrayCreate", byref(wanted), 1)""",
    "managed memory": "make = lambda: cu.number('cuMemAllocManaged', c_size_t(100 * MIB), 1)",
    "pitched memory": """
pitch = c_size_t()
make = lambda: cu.number("cuMemAllocPitch_v2", byref(pitch), c_size_t(1000), c_size_t(100 * 1024), 4)""",
    "virtual memory": "make = lambda: cu.create(100 * MIB)",
    "graph allocation nodes": """
def make():
    graph = cu.number("cuGraphCreate", 0)
    wanted = AllocNode(pool=PoolProps(type=PINNED, location=Location(ON_DEVICE, 0)), bytes=100 * MIB)
    cu.number("cuGraphAddMemAllocNode", c_uint64(graph), None, c_size_t(0), byref(wanted))
    executable = cu.number("cuGraphInstantiateWithFlags", c_uint64(graph), c_uint64(0))
    cu.call("cuGraphLaunch", c_uint64(executable), c_uint64(0))""",
    "captured allocations": """
def make():
    stream, graph = cu.stream(), c_uint64()
    cu.call("cuStreamBeginCapture_v2", c_uint64(stream), 0)
    cu.alloc_async(100 * MIB, stream)
    cu.call("cuStreamEndCapture", c_uint64(stream), byref(graph))
    executable = cu.number("cuGraphInstantiateWithFlags", graph, c_uint64(0))
    cu.call("cuGraphLaunch", c_uint64(executable), c_uint64(0))""",
}


class Test7EveryKindOfMemoryIsCounted:
    def test_what_a_graph_allocated_and_did_not_free_stays_counted_when_the_graph_is_gone(
        self, one_gib: SliceWorld
    ) -> None:
        done, code, held, held_at_last = one_gib.answer("""
cu.begin()
left = []
def leave_one():
    graph = cu.number("cuGraphCreate", 0)
    wanted = AllocNode(pool=PoolProps(type=PINNED, location=Location(ON_DEVICE, 0)), bytes=256 * MIB)
    cu.number("cuGraphAddMemAllocNode", c_uint64(graph), None, c_size_t(0), byref(wanted))
    executable = cu.number("cuGraphInstantiateWithFlags", c_uint64(graph), c_uint64(0))
    cu.call("cuGraphLaunch", c_uint64(executable), c_uint64(0))
    cu.synchronise()
    cu.call("cuGraphExecDestroy", c_uint64(executable))
    left.append(wanted.pointer)
done = count_until_refused(leave_one, 8)
held = cu.held()
for pointer in left:
    cu.free(pointer)
cu.call("cuDeviceGraphMemTrim", 0)
print(json.dumps([*done, held, cu.held()]))
""")
        assert (done, code, held) == (2, 2, CONTEXT_BYTES + 512 * MIB)
        assert held_at_last == CONTEXT_BYTES

    @pytest.mark.parametrize("kind", _KINDS)
    def test_it_stops_at_the_slice(self, one_gib: SliceWorld, kind: str) -> None:
        done, code = one_gib.answer(f"cu.begin()\n{_KINDS[kind]}\nprint(json.dumps(count_until_refused(make, 20)))")
        assert code == 2
        assert done == (GIB - CONTEXT_BYTES) // (100 * MIB)

    @pytest.mark.parametrize("kind", _KINDS)
    def test_the_slice_counts_no_less_of_it_than_the_device_does(self, one_gib: SliceWorld, kind: str) -> None:
        snippet = f"cu.begin()\n{_KINDS[kind]}\nmake(), make()\nprint('held', flush=True)\nsys.stdin.readline()"
        one_gib.write_limit(context_bytes=_RTX_3090_CONTEXT_BYTES)
        with one_gib.running(snippet):
            device_bytes = one_gib.device_bytes()
            assert device_bytes <= one_gib.use().used_bytes <= device_bytes + 4 * MIB

    @pytest.mark.parametrize(
        "make",
        [
            'cu.number("cuCtxCreate_v2", 0, 0)',
            'cu.number("cuCtxCreate_v3", None, 0, 0, 0)',
            'cu.number("cuCtxCreate_v4", None, 0, 0)',
        ],
    )
    def test_contexts_that_are_not_primary_are_counted(self, one_gib: SliceWorld, make: str) -> None:
        done, code = one_gib.answer(f"cu.call('cuInit', 0)\nprint(json.dumps(count_until_refused(lambda: {make}, 20)))")
        assert (done, code) == (GIB // CONTEXT_BYTES, 2)

    def test_a_primary_context_is_counted_once_however_often_it_is_retained(self, two_gpus: SliceWorld) -> None:
        held = two_gpus.answer("""
cu.begin(0), cu.use(0), cu.use(1), cu.use(0)
held = [cu.held()]
for _ in range(2):
    cu.call("cuDevicePrimaryCtxRelease_v2", 0)
    held.append(cu.held())
cu.call("cuDevicePrimaryCtxRelease_v2", 0)
cu.use(1)
print(json.dumps(held + [cu.held()]))
""")
        assert held == [CONTEXT_BYTES] * 4
        assert two_gpus.use(0).peak_bytes == CONTEXT_BYTES

    def test_memory_of_another_process_is_charged_to_the_one_that_opens_it(self, one_gib: SliceWorld) -> None:
        export = """
cu.begin()
handle = create_string_buffer(64)
cu.call("cuIpcGetMemHandle", byref(handle), c_uint64(cu.alloc(200 * MIB)))
print(handle.raw.hex(), flush=True)
sys.stdin.readline()
"""
        one_gib.write_limit(context_bytes=100 * MIB)
        with one_gib.start(export) as exporter:
            assert exporter.stdout is not None
            handle = exporter.stdout.readline().strip()
            opened = one_gib.answer(
                """
class Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]
cu.begin()
before = cu.held()
pointer = cu.number("cuIpcOpenMemHandle_v2", Handle.from_buffer_copy(bytes.fromhex(sys.argv[1])), 1)
during = cu.held()
cu.call("cuIpcCloseMemHandle", c_uint64(pointer))
print(json.dumps([during - before, cu.held() - before]))
""",
                handle,
            )
            exporter.kill()
        assert opened == [200 * MIB, 0]

    def test_imported_physical_memory_is_charged_as_far_as_it_is_mapped(self, one_gib: SliceWorld) -> None:
        held = one_gib.answer("""
cu.begin()
prop = AllocationProp(type=PINNED, handle_types=1, location=Location(ON_DEVICE, 0))
handle = cu.number("cuMemCreate", c_size_t(128 * MIB), byref(prop), c_uint64(0))
descriptor = c_int()
cu.call("cuMemExportToShareableHandle", byref(descriptor), c_uint64(handle), 1, c_uint64(0))
before = cu.held()
again = cu.number("cuMemImportFromShareableHandle", c_void_p(descriptor.value), 1)
address = cu.reserve(128 * MIB)
cu.map(address, 128 * MIB, again)
during = cu.held()
cu.unmap(address, 128 * MIB)
cu.release(again)
print(json.dumps([during - before, cu.held() - before]))
""")
        assert held in ([128 * MIB, 0], [0, 0])

    def test_what_the_driver_holds_besides_such_as_module_code_is_charged_by_the_host_live(
        self, one_gib: SliceWorld
    ) -> None:
        ask = "cu.begin(); print(json.dumps([cu.memory()[0], outcome(lambda: cu.alloc(600 * MIB))]))"
        free_before, code_before = one_gib.answer(ask)
        meter.set_overhead_bytes(one_gib.limit, one_gib.uuids[0], 200 * MIB)
        free_after, code_after = one_gib.answer(ask)
        assert (code_before, code_after) == (0, 2)
        assert free_before - free_after == 200 * MIB


class Test8LaunchesReachTheDriverThroughTheirOwnVariants:
    """No compute limit exists yet; what it will hook must already reach the right function of the driver."""

    @pytest.mark.parametrize(
        "name", ["cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuGraphLaunch"]
    )
    @pytest.mark.parametrize("flags", [0, 2])
    def test_a_launch_is_handed_out_for_each_default_stream(self, one_gib: SliceWorld, name: str, flags: int) -> None:
        found, legacy, per_thread = one_gib.answer(
            """
cu.begin()
name, flags = sys.argv[1], int(sys.argv[2])
driver = Session(os.environ["PGPU_TEST_DRIVER"])
print(json.dumps([cu.found(name, flags=flags), driver.symbol(name), driver.symbol(name + "_ptsz")]))
""",
            name,
            str(flags),
        )
        assert found == (per_thread if flags else legacy)

    @pytest.mark.parametrize("name", ["cuMemAllocAsync", "cuMemFreeAsync", "cuStreamSynchronize"])
    def test_a_hooked_function_keeps_one_hook_for_each_default_stream(self, one_gib: SliceWorld, name: str) -> None:
        legacy, per_thread, hooks = one_gib.answer(
            """
cu.begin()
name = sys.argv[1]
hooks = [cu.symbol(name), cu.symbol(name + "_ptsz")]
print(json.dumps([cu.found(name), cu.found(name, flags=PER_THREAD_DEFAULT_STREAM), hooks]))
""",
            name,
        )
        assert [legacy, per_thread] == hooks
        assert legacy != per_thread


class Test9ErrorsAndFiguresAreCudas:
    def test_the_job_sees_a_gpu_of_the_size_of_its_slice(self, one_gib: SliceWorld) -> None:
        total, memory = one_gib.answer("cu.begin(); print(json.dumps([cu.total(), cu.memory()]))")
        assert total == GIB
        assert memory == [GIB - CONTEXT_BYTES, GIB]

    def test_a_slice_larger_than_the_gpu_shows_the_gpu(self) -> None:
        with a_slice(100 * GIB) as world:
            shimmed, plain = (
                world.answer("cu.begin(); print(json.dumps(cu.total()))", is_shimmed=is_shimmed)
                for is_shimmed in (True, False)
            )
        assert shimmed == plain

    _NULLS = """
cu.begin()
null, zero = c_void_p(), c_size_t(0)
calls = {
    "cuMemAlloc_v2": (null, c_size_t(4096)),
    "cuMemAllocAsync": (null, c_size_t(4096), null),
    "cuMemAllocManaged": (null, c_size_t(4096), 1),
    "cuMemAllocPitch_v2": (null, null, c_size_t(64), c_size_t(64), 4),
    "cuMemCreate": (null, c_size_t(2 * MIB), null, c_uint64(0)),
    "cuMemGetInfo_v2": (null, null),
    "cuDeviceTotalMem_v2": (null, 0),
    "cuArrayCreate_v2": (null, null),
    "cuArray3DCreate_v2": (null, null),
    "cuMipmappedArrayCreate": (null, null, 1),
    "cuDevicePrimaryCtxRetain": (null, 0),
    "cuCtxCreate_v2": (null, 0, 0),
    "cuMemPoolCreate": (null, null),
    "cuMemAllocFromPoolAsync": (null, c_size_t(4096), null, null),
    "cuIpcOpenMemHandle_v2": (null,) + (c_uint64(0),) * 3,
    "cuImportExternalMemory": (null, null),
    "cuGetProcAddress_v2": (null, null, 13000, c_uint64(0), null),
    "cuMemImportFromShareableHandle": (null, null, 1),
    "cuMemRetainAllocationHandle": (null, null),
    "cuGraphInstantiateWithFlags": (null, null, c_uint64(0)),
    "cuMemMapArrayAsync": (null, 0, null),
    "cuMemFree_v2": (null,),
    "cuMemRelease": (null,),
    "cuCtxDestroy_v2": (null,),
    "cuArrayDestroy": (null,),
    "cuMemPoolDestroy": (null,),
    "cuGraphExecDestroy": (null,),
}
print(json.dumps({name: cu.code(name, *arguments) for name, arguments in calls.items()}))
"""

    def test_null_arguments_get_the_driver_s_own_answer(self, one_gib: SliceWorld) -> None:
        shimmed, plain = (one_gib.answer(self._NULLS, is_shimmed=is_shimmed) for is_shimmed in (True, False))
        assert shimmed == plain
        assert all(code >= 0 for code in shimmed.values())

    def test_a_null_argument_leaves_nothing_charged(self, one_gib: SliceWorld) -> None:
        assert one_gib.answer(self._NULLS.replace("print(", "before = (") + "\nprint(json.dumps(cu.held()))") == (
            CONTEXT_BYTES
        )

    def test_before_init_and_without_a_context_the_errors_are_the_driver_s(self, one_gib: SliceWorld) -> None:
        ask = """
codes = [cu.code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(1)), cu.code("cuDeviceGetCount", byref(c_int()))]
cu.call("cuInit", 0)
codes += [cu.code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(1)), cu.code("cuMemGetInfo_v2", None, None)]
codes += [cu.code("cuDevicePrimaryCtxRetain", byref(c_uint64()), 77)]
print(json.dumps(codes))
"""
        assert one_gib.answer(ask) == one_gib.answer(ask, is_shimmed=False)


class Test10FreeingTakesTheSameTimeHoweverMuchIsHeld:
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


class Test11TheProcessIsLeftAsItWas:
    def test_it_keeps_umask_signals_descriptors_and_threads(self, one_gib: SliceWorld) -> None:
        assert one_gib.answer("""
def state():
    os.umask(old := os.umask(0))
    handlers = [str(signal.getsignal(number)) for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGSEGV)]
    with open("/proc/self/status") as file:
        signals = [line for line in file if line.startswith("Sig") and not line.startswith("SigQ")]
    low = sorted(os.listdir("/proc/self/fd"))[:4]
    return [old, handlers, signals, low, len(os.listdir("/proc/self/task"))]
before = state()
cu.begin(); cu.free(cu.alloc(MIB)); outcome(lambda: cu.alloc(2048 * MIB))
print(json.dumps(before == state()))
""")

    def test_a_refused_allocation_prints_nothing(self, one_gib: SliceWorld) -> None:
        done = one_gib.run("cu.begin(); [outcome(lambda: cu.alloc(2048 * MIB)) for _ in range(100)]")
        assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)

    def test_only_cuda_s_names_are_exported(self, one_gib: SliceWorld) -> None:
        listed = subprocess.run(
            ["nm", "-D", "--defined-only", str(one_gib.shim)], capture_output=True, text=True, check=True
        ).stdout.split("\n")
        names = {line.split()[2] for line in listed if line}
        assert names
        assert all(name.startswith("cu") for name in names)

    def test_a_preloaded_program_that_uses_no_cuda_is_not_touched(self, one_gib: SliceWorld) -> None:
        one_gib.limit.unlink()
        done = subprocess.run(
            ["/bin/sh", "-c", "echo hello"],
            env=one_gib.environment_for(is_shimmed=True),
            capture_output=True,
            text=True,
            check=True,
        )
        assert (done.stdout, done.stderr) == ("hello\n", "")


class Test12ManyProcessesStartAtOnce:
    def test_two_hundred_processes_each_get_a_slot_of_their_own(self, one_gib: SliceWorld) -> None:
        """One process forks them before CUDA; none may wait for another, so all hold at the same time."""
        one_gib.write_limit(context_bytes=MIB)
        one_gib.environment["PGPU_SIMGPU_BACKING"] = "none"
        slots = one_gib.answer(
            """
ready_read, ready_write = os.pipe()
go_read, go_write = os.pipe()
children = []
for _ in range(200):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = outcome(lambda: cu.call("cuInit", 0))
        finally:
            os.write(ready_write, bytes([code]))
            os.read(go_read, 1)
            os._exit(0)
    children.append(child)
codes = b"".join(os.read(ready_read, 1) for _ in children)
from pathlib import Path
from pgpu.enforcement import meter
held = meter.held_slots(Path(sys.argv[1]))
os.write(go_write, bytes(200))
for child in children:
    os.waitpid(child, 0)
print(json.dumps([sum(codes), len({slot.pid for slot in held if slot.is_alive})]))
""",
            str(one_gib.usage),
        )
        assert slots == [0, 200]

    def test_the_thousand_and_twenty_fifth_process_is_refused_with_one_line(self, one_gib: SliceWorld) -> None:
        """1,024 slots are taken by locks alone, as live processes would."""
        one_gib.answer("cu.begin(); print(0)")
        with one_gib.usage.open("r+b") as file:
            lock = struct.pack("@hhqqi", fcntl.F_WRLCK, 0, meter.LOCK_ALIVE, 1024, 0)
            fcntl.fcntl(file.fileno(), fcntl.F_OFD_SETLK, lock)
            done = one_gib.run("print(cu.code('cuInit', 0))")
        assert done.stdout.strip() == "800"
        assert done.stderr.count("\n") == 1
        assert "every slot is taken" in done.stderr
