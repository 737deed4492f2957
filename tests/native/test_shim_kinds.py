"""Every kind of device memory that CUDA has is counted, and stops at the slice."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from tests.compute_world import a_compute_world, shared
from tests.native.test_shim_growth import granting, host
from tests.slice_world import CONTEXT_BYTES, GIB, MIB, SliceWorld, a_slice

from pgpu.enforcement import limit_file
from pgpu.enforcement.growth_channel import Wish
from pgpu.scheduling.slice_growth import Verdict

_REAL_CONTEXT_BYTES = 254 * MIB


_KINDS = {
    "an explicit pool": "pool = cu.pool()\nmake = lambda: cu.alloc_from(pool, 100 * MIB)",
    **{
        f"a managed pool that prefers {place}": f"pool = cu.pool(kind=MANAGED, place={place})\n"
        "make = lambda: cu.alloc_from(pool, 100 * MIB)"
        for place in ("NOWHERE", "ON_DEVICE", "ON_HOST", "ON_HOST_NUMA")
    },
    "the host's default managed pool": """
pool = cu.number("cuMemGetDefaultMemPool", byref(Location(ON_HOST, 0)), MANAGED)
make = lambda: cu.alloc_from(pool, 100 * MIB)""",
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


_GRAPHS = """
cu.begin()
def graph_of(size_bytes, frees=True):
    graph = cu.number("cuGraphCreate", 0)
    wanted = AllocNode(pool=PoolProps(type=PINNED, location=Location(ON_DEVICE, 0)), bytes=size_bytes)
    node = cu.number("cuGraphAddMemAllocNode", c_uint64(graph), None, c_size_t(0), byref(wanted))
    if frees:
        needs = c_uint64(node)
        cu.number("cuGraphAddMemFreeNode", c_uint64(graph), byref(needs), c_size_t(1), c_uint64(wanted.pointer))
    return graph
def instantiate(graph):
    return cu.number("cuGraphInstantiateWithFlags", c_uint64(graph), c_uint64(0))
def launch(executable, stream=0):
    cu.call("cuGraphLaunch", c_uint64(executable), c_uint64(stream))
"""


_MODULES = """
cu.begin()
def kernel_of(library):
    return cu.number("cuLibraryGetKernel", c_uint64(library), b"first")
def launch(function):
    cu.call("cuLaunchKernel", c_uint64(function), 1, 1, 1, 1, 1, 1, 0, c_uint64(0), None, None)
def image_of(size_bytes, attribute=""):
    return (f".version 7.0\\n.target sm_50\\n.address_size 64\\n"
            f".visible .global {attribute} .align 4 .b8 table[{size_bytes}];\\n.visible .entry first() {{ ret; }}").encode()
def load(size_bytes):
    return cu.number("cuModuleLoadData", image_of(size_bytes))
def load_library(size_bytes):
    return cu.number("cuLibraryLoadData", image_of(size_bytes), None, None, 0, None, None, 0)
"""


_USES = (
    'cu.number("cuLibraryGetGlobal", None, c_uint64(library), b"table")',
    'cu.number("cuLibraryGetModule", c_uint64(library))',
    'cu.number("cuKernelGetFunction", c_uint64(kernel_of(library)))',
)


@pytest.fixture
def a_gib(one_gib: SliceWorld) -> SliceWorld:
    """Contexts are charged what they take: nothing is left over that modules could have."""
    one_gib.write_limit(context_bytes=_REAL_CONTEXT_BYTES)
    return one_gib


@pytest.fixture
def half_gib() -> Iterator[SliceWorld]:
    with a_slice(512 * MIB) as world:
        world.write_limit(context_bytes=_REAL_CONTEXT_BYTES)
        yield world


_WAIT_NS = 300_000_000
"""A launch of nothing takes a small part of it."""

_NEIGHBOUR = """
cu.begin()
print("ready", flush=True)
while True:
    cu.free(cu.alloc(int(sys.argv[1])))
"""


@contextmanager
def _beside_a_neighbour(world: SliceWorld, size_bytes: int) -> Iterator[None]:
    """A process of another job that allocates and frees without pause."""
    with world.start(_NEIGHBOUR, str(size_bytes), is_shimmed=False) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield
            assert process.poll() is None
        finally:
            process.kill()


class TestModulesAreCharged:
    @pytest.mark.parametrize("size", ["MIB", "50 * MIB", "100 * MIB"])
    def test_by_the_memory_of_their_variables_whatever_their_size(self, a_gib: SliceWorld, size: str) -> None:
        held = a_gib.answer(f"""{_MODULES}
module = load({size})
held = [cu.held()]
cu.call("cuModuleUnload", c_uint64(module))
print(json.dumps([{size}, held[0], cu.held()]))
""")
        assert held == [held[0], _REAL_CONTEXT_BYTES + held[0], _REAL_CONTEXT_BYTES]

    def test_many_small_ones_stop_at_the_slice_at_once(self, half_gib: SliceWorld) -> None:
        done, code, held_bytes = half_gib.answer(f"""{_MODULES}
done = count_until_refused(lambda: load(10 * MIB), 63)
print(json.dumps([*done, cu.held()]))
""")
        assert (done, code) == ((512 * MIB - _REAL_CONTEXT_BYTES) // (10 * MIB), 2)
        assert held_bytes == _REAL_CONTEXT_BYTES + done * 10 * MIB

    @pytest.mark.parametrize("use", _USES)
    @pytest.mark.parametrize(("size", "beyond"), [("10 * MIB", 0), ("5 * MIB", 1)])
    def test_lazily_loaded_ones_stop_at_the_slice(self, half_gib: SliceWorld, use: str, size: str, beyond: int) -> None:
        """A small one that does not fit cannot be undone: it is counted past the slice, and no other is loaded."""
        size_bytes, codes = half_gib.answer(f"""{_MODULES}
def load_and_use():
    library = load_library({size})
    {use}
codes = [outcome(load_and_use) for _ in range(63)]
print(json.dumps([{size}, codes]))
""")
        room = 512 * MIB - _REAL_CONTEXT_BYTES
        assert codes == [0] * min(63, room // size_bytes) + [2] * (63 - room // size_bytes)
        assert half_gib.use().peak_bytes == _REAL_CONTEXT_BYTES + (codes.count(0) + beyond) * size_bytes

    @pytest.mark.parametrize("has_nvml", [False, True])
    def test_many_large_ones_stop_at_the_slice_where_the_driver_has_no_figure_for_a_process(
        self, a_gib: SliceWorld, has_nvml: bool
    ) -> None:
        conf = a_gib.simulated / "gpus.conf"
        conf.write_text(conf.read_text().replace("[gpu]\n", "[gpu]\nhides_processes=1\n"))
        a_gib.nvml = a_gib.nvml if has_nvml else ""
        a_gib.write_limit(context_bytes=_REAL_CONTEXT_BYTES)
        done, code, device_bytes = a_gib.answer(f"""{_MODULES}
done = count_until_refused(lambda: load(100 * MIB), 40)
print(json.dumps([*done, cu.held()]))
""")
        assert (done, code) == ((GIB - _REAL_CONTEXT_BYTES) // (100 * MIB), 2)
        assert device_bytes == _REAL_CONTEXT_BYTES + done * 100 * MIB

    def test_a_context_takes_its_modules_with_it(self, a_gib: SliceWorld) -> None:
        held = a_gib.answer(f"""{_MODULES}
context = cu.number("cuCtxCreate_v2", 0, 0)
load(50 * MIB)
during = cu.held()
cu.call("cuCtxDestroy_v2", c_uint64(context))
cu.use(0)
print(json.dumps([during, cu.held()]))
""")
        assert held == [2 * _REAL_CONTEXT_BYTES + 50 * MIB, _REAL_CONTEXT_BYTES]

    def test_those_loaded_by_a_first_launch_stop_at_the_slice_one_step_late(self, half_gib: SliceWorld) -> None:
        codes, again = half_gib.answer(f"""{_MODULES}
libraries = []
def load_and_launch():
    libraries.append(load_library(10 * MIB))
    launch(kernel_of(libraries[-1]))
codes = [outcome(load_and_launch) for _ in range(63)]
for library in libraries[:2]:
    cu.call("cuLibraryUnload", c_uint64(library))
print(json.dumps([codes, [outcome(lambda: launch(kernel_of(libraries[-1]))), outcome(load_and_launch)]]))
""")
        fit = (512 * MIB - _REAL_CONTEXT_BYTES) // (10 * MIB)
        assert codes == [0] * (fit + 1) + [2] * (62 - fit)
        assert half_gib.use().peak_bytes == _REAL_CONTEXT_BYTES + (fit + 1) * 10 * MIB
        assert again == [0, 0]

    def test_by_a_first_launch_under_a_share(self) -> None:
        with a_compute_world() as world:
            job = world.job(shared(0.5))
            job.write_limit(context_bytes=_REAL_CONTEXT_BYTES)
            job.share(shared(0.5))
            held = job.answer(f"""{_MODULES}
kernel = kernel_of(load_library(10 * MIB))
held = [cu.held()]
for _ in range(2):
    launch(kernel)
    held.append(cu.held())
print(json.dumps(held))
""")
        assert held == [_REAL_CONTEXT_BYTES, *[_REAL_CONTEXT_BYTES + 10 * MIB] * 2]

    def test_by_a_first_launch_whose_wait_for_a_larger_slice_is_no_time_of_the_kernel(self) -> None:
        seen_at_ns: list[int] = []

        def grant_late(wishes: Sequence[Wish]) -> Verdict:
            seen_at_ns.append(time.monotonic_ns())
            return granting(job)(wishes) if seen_at_ns[-1] - seen_at_ns[0] > _WAIT_NS else Verdict.WAIT

        with a_compute_world() as world:
            job = world.job()
            job.limits = [_REAL_CONTEXT_BYTES + 5 * MIB]
            job.write_limit(context_bytes=_REAL_CONTEXT_BYTES, grows=True)
            job.share(shared(0.5))
            with host(job, grant_late):
                held = job.answer(f"""{_MODULES}
launch(kernel_of(load_library(10 * MIB)))
cu.call("cuCtxSynchronize")
print(json.dumps(cu.held()))
""")
            assert held == _REAL_CONTEXT_BYTES + 10 * MIB
            assert len(seen_at_ns) > 1
            assert job.told().used_ns < _WAIT_NS

    def test_with_what_was_taken_before_and_are_not_refused_for_it(self, half_gib: SliceWorld) -> None:
        """A kernel that was not looked up by its name is not watched: the next load finds what its launch took."""
        codes = half_gib.answer(f"""{_MODULES}
kernel = c_uint64()
cu.call("cuLibraryEnumerateKernels", byref(kernel), 1, c_uint64(load_library(10 * MIB)))
launch(kernel.value)
cu.alloc(512 * MIB - cu.held())
print(json.dumps([outcome(lambda: load(size)) for size in (0, MIB)]))
""")
        assert codes == [0, 2]
        assert half_gib.use().peak_bytes == 522 * MIB

    @pytest.mark.parametrize("use", [*_USES, "launch(kernel_of(library))"])
    def test_a_library_when_it_is_used(self, a_gib: SliceWorld, use: str) -> None:
        held = a_gib.answer(f"""{_MODULES}
library = load_library(100 * MIB)
held = [cu.held()]
for _ in range(2):
    {use}
    held.append(cu.held())
cu.call("cuLibraryUnload", c_uint64(library))
print(json.dumps(held + [cu.held()]))
""")
        assert held == [_REAL_CONTEXT_BYTES, *[_REAL_CONTEXT_BYTES + 100 * MIB] * 2, _REAL_CONTEXT_BYTES]

    def test_a_library_with_variables_beyond_the_slice_is_unloaded_at_its_first_use(self, a_gib: SliceWorld) -> None:
        snippet = f"""{_MODULES}
library = load_library(900 * MIB)
code = outcome(lambda: cu.number("cuLibraryGetGlobal", None, c_uint64(library), b"table"))
print(json.dumps([code, cu.held(), cu.code("cuLibraryUnload", c_uint64(library))]), flush=True)
sys.stdin.readline()
"""
        with a_gib.start(snippet) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == f"[2, {_REAL_CONTEXT_BYTES}, 0]\n"
            assert a_gib.device_bytes() < 300 * MIB
            process.kill()

    def test_a_managed_variable_when_its_address_is_asked_for_once(self, a_gib: SliceWorld) -> None:
        held = a_gib.answer(f"""{_MODULES}
module = cu.number("cuModuleLoadData", image_of(100 * MIB, ".attribute(.managed)"))
held = [cu.held()]
for _ in range(2):
    cu.number("cuModuleGetGlobal_v2", None, c_uint64(module), b"table")
    held.append(cu.held())
cu.call("cuModuleUnload", c_uint64(module))
large = cu.number("cuModuleLoadData", image_of(900 * MIB, ".attribute(.managed)"))
code = outcome(lambda: cu.number("cuModuleGetGlobal_v2", None, c_uint64(large), b"table"))
print(json.dumps(held + [code, cu.held()]))
""")
        full = _REAL_CONTEXT_BYTES + 100 * MIB
        assert held == [_REAL_CONTEXT_BYTES, full, full, 2, _REAL_CONTEXT_BYTES]

    def test_a_managed_variable_of_a_library_until_it_is_unloaded(self, a_gib: SliceWorld) -> None:
        held = a_gib.answer(f"""{_MODULES}
def measure():
    image = image_of(100 * MIB, ".attribute(.managed)")
    library = cu.number("cuLibraryLoadData", image, None, None, 0, None, None, 0)
    module = cu.number("cuLibraryGetModule", c_uint64(library))
    cu.number("cuModuleGetGlobal_v2", None, c_uint64(module), b"table")
    during = cu.held()
    cu.call("cuLibraryUnload", c_uint64(library))
    return [during, cu.held()]
print(json.dumps([measure() for _ in range(2)]))
""")
        assert held == [[_REAL_CONTEXT_BYTES + 100 * MIB, _REAL_CONTEXT_BYTES]] * 2

    def test_beside_managed_memory_by_what_repeated_loads_take(self, a_gib: SliceWorld) -> None:
        held = a_gib.answer(f"""{_MODULES}
cu.number("cuMemAllocManaged", c_size_t(100 * MIB), 1)
load(10 * MIB)
print(cu.held())
""")
        assert held == _REAL_CONTEXT_BYTES + 110 * MIB

    @pytest.mark.parametrize("neighbour_bytes", [10 * MIB, 2048 * MIB])
    def test_for_nothing_that_a_neighbour_allocates_meanwhile(self, half_gib: SliceWorld, neighbour_bytes: int) -> None:
        """Several thousand loads, which just fit, and look-ups beside its allocations: what they take, never more."""
        with _beside_a_neighbour(half_gib, neighbour_bytes):
            codes, most, held = half_gib.answer(f"""{_MODULES}
before = cu.held()
size = (512 * MIB - before) // 10 // 512 * 512
codes, most = set(), 0
for _ in range(100):
    modules = []
    for _ in range(10):
        codes.add(outcome(lambda: modules.append(load(size))))
        for _ in range(10):
            codes.add(outcome(lambda: cu.number("cuModuleGetFunction", c_uint64(modules[-1]), b"first")))
        most = max(most, cu.held() - before - len(modules) * size)
    for module in modules:
        cu.call("cuModuleUnload", c_uint64(module))
print(json.dumps([[*codes], most, cu.held()]))
""")
        assert (codes, held) == ([0], _REAL_CONTEXT_BYTES)
        assert most <= 0

    def test_of_two_threads_by_what_both_take(self, half_gib: SliceWorld) -> None:
        codes, held = half_gib.answer(f"""{_MODULES}
from concurrent.futures import ThreadPoolExecutor
context = cu.number("cuCtxGetCurrent")
def load_often():
    cu.call("cuCtxSetCurrent", c_uint64(context))
    codes = set()
    for _ in range(300):
        modules = []
        codes.add(outcome(lambda: modules.append(load(100 * MIB))))
        for module in modules:
            cu.call("cuModuleUnload", c_uint64(module))
    return codes
with ThreadPoolExecutor(2) as pool:
    codes = set().union(*[done.result() for done in [pool.submit(load_often) for _ in range(2)]])
print(json.dumps([[*codes], cu.held()]))
""")
        assert (codes, held) == ([0], _REAL_CONTEXT_BYTES)


class TestGraphsShareWhatTheDriverShares:
    def test_instances_of_one_graph_take_its_memory_once(self, one_gib: SliceWorld) -> None:
        held = one_gib.answer(f"""{_GRAPHS}
graph = graph_of(32 * MIB)
instances = [instantiate(graph) for _ in range(24)]
held = [cu.held()]
for instance in instances:
    launch(instance)
held.append(cu.held())
cu.synchronise()
print(json.dumps(held + [cu.held(), outcome(lambda: cu.alloc(600 * MIB))]))
""")
        assert held == [CONTEXT_BYTES, CONTEXT_BYTES + 32 * MIB, CONTEXT_BYTES + 32 * MIB, 0]

    def test_in_different_streams_they_are_counted_apart_until_the_driver_is_asked(self, one_gib: SliceWorld) -> None:
        codes = one_gib.answer(f"""{_GRAPHS}
graphs = [instantiate(graph_of(200 * MIB)) for _ in range(6)]
print(json.dumps([outcome(lambda: launch(graph, cu.stream())) for graph in graphs]))
""")
        assert codes == [0] * 6

    def test_a_graph_larger_than_the_rest_of_the_slice_is_refused_at_its_launch_and_leaves_nothing(
        self, one_gib: SliceWorld
    ) -> None:
        codes, held = one_gib.answer(f"""{_GRAPHS}
large = instantiate(graph_of(800 * MIB))
codes = [outcome(lambda: launch(large)), outcome(lambda: cu.call("cuGraphUpload", c_uint64(large), c_uint64(0)))]
print(json.dumps([codes, cu.held()]))
""")
        assert (codes, held) == ([2, 2], CONTEXT_BYTES)

    def test_an_upload_takes_the_memory_of_the_launch(self, one_gib: SliceWorld) -> None:
        held = one_gib.answer(f"""{_GRAPHS}
graph = instantiate(graph_of(200 * MIB))
cu.call("cuGraphUpload", c_uint64(graph), c_uint64(0))
held = [cu.held()]
launch(graph)
print(json.dumps(held + [cu.held()]))
""")
        assert held == [CONTEXT_BYTES + 200 * MIB] * 2

    def test_idle_memory_of_graphs_makes_room_for_other_memory(self, one_gib: SliceWorld) -> None:
        codes = one_gib.answer(f"""{_GRAPHS}
graph = instantiate(graph_of(600 * MIB))
launch(graph)
pointer = cu.alloc(600 * MIB)
codes = [outcome(lambda: launch(graph))]
cu.free(pointer)
print(json.dumps(codes + [outcome(lambda: launch(graph))]))
""")
        assert codes == [2, 0]


class TestEveryKindOfMemoryIsCounted:
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
        one_gib.write_limit(context_bytes=_REAL_CONTEXT_BYTES)
        with one_gib.running(snippet):
            device_bytes = one_gib.device_bytes()
            # The device counts managed memory where it lies, the slice all of it.
            elsewhere_bytes = 200 * MIB if "managed" in kind else 0
            assert device_bytes + elsewhere_bytes <= one_gib.use().used_bytes
            assert one_gib.use().used_bytes <= device_bytes + elsewhere_bytes + 4 * MIB

    @pytest.mark.parametrize(
        "pool",
        [
            "cu.pool(place=ON_HOST)",
            "cu.pool(place=ON_HOST_NUMA)",
            'cu.number("cuMemGetDefaultMemPool", byref(Location(ON_HOST, 0)), PINNED)',
        ],
    )
    def test_pinned_memory_of_the_host_is_not_device_memory(self, one_gib: SliceWorld, pool: str) -> None:
        held = one_gib.answer(f"""
cu.begin()
pool = {pool}
pointers = [cu.alloc_from(pool, 512 * MIB) for _ in range(4)]
during = cu.held()
for pointer in pointers:
    cu.free_async(pointer)
cu.synchronise()
print(json.dumps([during, cu.held()]))
""")
        assert held == [CONTEXT_BYTES, CONTEXT_BYTES]

    def test_a_managed_pool_gives_back_at_a_synchronisation(self, one_gib: SliceWorld) -> None:
        held = one_gib.answer("""
cu.begin()
pool = cu.pool(kind=MANAGED, place=ON_HOST)
cu.free_async(cu.alloc_from(pool, 200 * MIB))
before = cu.held()
cu.synchronise()
print(json.dumps([before, cu.held()]))
""")
        assert held == [CONTEXT_BYTES + 200 * MIB, CONTEXT_BYTES]

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
        limit_file.set_overhead_bytes(one_gib.limit, one_gib.uuids[0], 200 * MIB)
        free_after, code_after = one_gib.answer(ask)
        assert (code_before, code_after) == (0, 2)
        assert free_before - free_after == 200 * MIB
