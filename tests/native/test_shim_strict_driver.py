"""The shim before a driver of the test's own, which has green contexts and, as NVIDIA's, handles that are addresses."""

import os
import subprocess
from collections.abc import Iterator

import pytest
from tests.cuda_session import NOT_PERMITTED, OUT_OF_MEMORY
from tests.native_clients import client_path
from tests.slice_world import CONTEXT_BYTES, MIB, SliceWorld, a_slice
from tests.waiting import DEADLINE_SECONDS


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


@pytest.mark.parametrize(("function", "more"), [("cuGLCtxCreate_v2", ""), ("cuVDPAUCtxCreate_v2", ", 7, c_void_p(1)")])
def test_a_context_that_shares_with_a_graphics_interface_is_charged_and_refunded(
    world: SliceWorld, function: str, more: str
) -> None:
    steps = f"""
cu.call("cuInit", 0)
context = cu.number("{function}", 0, 0{more})
print("made", flush=True); sys.stdin.readline()
cu.call("cuCtxDestroy_v2", c_uint64(context))
print("destroyed", flush=True); sys.stdin.readline()
"""
    with world.running(steps) as job:
        held = [world.use().used_bytes]
        _step(job)
        held.append(world.use().used_bytes)
    assert held == [CONTEXT_BYTES, 0]


@pytest.mark.parametrize(("function", "more"), [("cuGLCtxCreate_v2", ""), ("cuVDPAUCtxCreate_v2", ", 7, c_void_p(1)")])
def test_a_context_that_shares_with_a_graphics_interface_needs_its_place_in_the_slice(
    world: SliceWorld, function: str, more: str
) -> None:
    world.limits = [CONTEXT_BYTES - MIB]
    world.write_limit()
    steps = f"""
cu.call("cuInit", 0)
print(json.dumps(outcome(lambda: cu.number("{function}", 0, 0{more}))))
"""
    assert world.answer(steps) == OUT_OF_MEMORY


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


def test_nobody_destroys_a_pool_while_a_thread_asks_the_driver_about_it(world: SliceWorld) -> None:
    """Played by the driver: while it is asked, a thread of its own destroys the pool through the shim."""
    world.environment["PGPU_TEST_DESTROY_WHEN_ASKED"] = "1"
    held = world.answer("""
cu.call("cuInit", 0)
cu.number("cuDevicePrimaryCtxRetain", 0)
cu.pool()
cu.alloc_async(64 * MIB)
print(json.dumps("alive"))
""")
    assert held == "alive"


def test_a_context_that_is_made_during_another_thread_s_first_init_is_charged(world: SliceWorld) -> None:
    world.environment["PGPU_TEST_BEGIN_EARLY"] = "1"
    with world.running("cu.call('cuInit', 0); print('begun', flush=True); sys.stdin.readline()"):
        assert world.use().used_bytes == CONTEXT_BYTES


@pytest.mark.parametrize("ordinal", [1, 65, 1999])
def test_a_device_outside_the_lease_is_refused_whatever_its_number(world: SliceWorld, ordinal: int) -> None:
    world.environment["PGPU_TEST_DEVICES"] = "2000"
    codes = world.answer(
        """
cu.call("cuInit", 0)
ordinal = int(sys.argv[1])
attempts = (lambda: cu.number("cuDevicePrimaryCtxRetain", ordinal), lambda: cu.create(2 * MIB, ordinal=ordinal))
print(json.dumps([outcome(attempt) for attempt in attempts]))
""",
        str(ordinal),
    )
    assert codes == [NOT_PERMITTED, NOT_PERMITTED]


class TestAProcessWithoutMemoryForTheTableOfWhatItHolds:
    """Its address space is as large as it may get."""

    _FILL = """
import resource
cu.call("cuInit", 0)
cu.number("cuDevicePrimaryCtxRetain", 0)
pointers = [0] * 2000
with open("/proc/self/statm") as file:
    size_bytes = int(file.read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (size_bytes, resource.RLIM_INFINITY))
done = 0
try:
    while done < 2000:
        pointers[done] = cu.alloc(512)
        done += 1
except Refused as refused:
    code = refused.code
"""

    def test_is_refused_before_anything_is_lost_from_sight(self, world: SliceWorld) -> None:
        done, code, again, held = world.answer(
            self._FILL
            + """
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
again = outcome(lambda: cu.free(cu.alloc(512)))
for pointer in pointers[:done]:
    cu.free(pointer)
print(json.dumps([done, code, again, cu.held()]))
"""
        )
        assert 500 <= done < 1024
        assert (code, again, held) == (OUT_OF_MEMORY, 0, CONTEXT_BYTES)

    def test_gets_nothing_uncounted_from_a_pool(self, world: SliceWorld) -> None:
        code = world.answer(
            self._FILL.replace("except Refused as refused:\n    code = refused.code", "except Refused:\n    pass")
            + "code = outcome(lambda: cu.alloc_async(2048 * MIB))\n"
            + "resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
            + "print(json.dumps(code))"
        )
        assert code == OUT_OF_MEMORY


def test_a_child_of_the_bare_system_call_is_refused_and_never_stuck(world: SliceWorld) -> None:
    # The thread sanitizer would keep each of the children for a second more.
    world.environment["TSAN_OPTIONS"] = f"{os.environ.get('TSAN_OPTIONS', '')}:atexit_sleep_ms=0"
    done = subprocess.run(
        [str(client_path("shim", "shim-raw-clone"))],
        env=world.environment_for(is_shimmed=True),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("300\n", 0), done.stderr


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


class TestAModuleWithLargeVariables:
    """This driver's modules are their size, and what a neighbour takes while the first one is loaded."""

    _LOAD = """
def free_of_device():
    free = c_size_t()
    Session(os.environ["PGPU_TEST_DRIVER"]).call("cuMemGetInfo_v2", byref(free), byref(c_size_t()))
    return free.value
cu.call("cuInit", 0)
cu.number("cuDevicePrimaryCtxRetain", 0)
image, load = sys.argv[1].encode(), sys.argv[2]
options = (None, None, 0) * 2 if "Library" in load else ()
before = free_of_device()
code = outcome(lambda: cu.number(load, image, *options))
print(json.dumps([code, (before - free_of_device()) // MIB]))
"""

    @pytest.mark.parametrize(
        ("image", "expected"),
        [
            (f"{900 * MIB}", [OUT_OF_MEMORY, 0]),
            (f"{600 * MIB}", [0, 600]),
            (f"{MIB} {900 * MIB}", [0, 901]),
            (f"{900 * MIB} {900 * MIB}", [OUT_OF_MEMORY, 900]),
        ],
    )
    def test_is_refused_where_it_passes_the_slice_and_not_for_what_a_neighbour_takes(
        self, world: SliceWorld, image: str, expected: list[int]
    ) -> None:
        assert world.answer(self._LOAD, image, "cuModuleLoadData") == expected

    def test_is_refused_as_a_library_too(self, world: SliceWorld) -> None:
        assert world.answer(self._LOAD, f"{900 * MIB}", "cuLibraryLoadData") == [OUT_OF_MEMORY, 0]


_BEGIN = "cu.call('cuInit', 0); cu.number('cuDevicePrimaryCtxRetain', 0)\n"
_HOLD = _BEGIN + "cu.alloc(400 * MIB); print('held', flush=True); sys.stdin.readline()"


class TestTheDriverMayStillBeTakingBackWhatADeadProcessHeld:
    """It says out of memory a few times though the slice has room; whoever saw the dead one's end is patient."""

    def test_after_its_bytes_were_taken_back_by_a_look_at_the_memory(self, world: SliceWorld) -> None:
        ask = _BEGIN + (
            "print('ready', flush=True); sys.stdin.readline()\n"
            "cu.memory(); print(outcome(lambda: cu.alloc(MIB)), flush=True); sys.stdin.readline()"
        )
        world.write_limit(context_bytes=100 * MIB)
        with world.running(_HOLD) as dead:
            world.environment["PGPU_TEST_REFUSALS"] = "5"
            with world.running(ask) as job:
                dead.kill()
                dead.wait()
                assert _step(job) == "0\n"

    def test_after_its_bytes_were_taken_back_by_a_sibling(self, world: SliceWorld) -> None:
        look = _BEGIN + "print('ready', flush=True); sys.stdin.readline(); cu.memory(); print('seen', flush=True)"
        ask = _BEGIN + (
            "print('ready', flush=True); sys.stdin.readline()\n"
            "print(outcome(lambda: cu.alloc(MIB)), flush=True); sys.stdin.readline()"
        )
        world.write_limit(context_bytes=100 * MIB)
        with world.running(_HOLD) as dead, world.running(look) as sibling:
            world.environment["PGPU_TEST_REFUSALS"] = "5"
            with world.running(ask) as job:
                dead.kill()
                dead.wait()
                assert _step(sibling) == "seen\n"
                assert _step(job) == "0\n"

    def test_after_its_slot_was_taken_over(self, world: SliceWorld) -> None:
        with world.running(_HOLD) as dead:
            dead.kill()
            dead.wait()
        world.environment["PGPU_TEST_REFUSALS"] = "5"
        assert world.answer(_BEGIN + "print(json.dumps(outcome(lambda: cu.alloc(MIB))))") == 0

    def test_and_nobody_is_patient_where_nobody_died(self, world: SliceWorld) -> None:
        world.environment["PGPU_TEST_REFUSALS"] = "1"
        code = world.answer(_BEGIN + "print(json.dumps(outcome(lambda: cu.alloc(MIB))))")
        assert code == OUT_OF_MEMORY


def _step(job: subprocess.Popen[str]) -> str:
    """Let the job go on to where it prints its next line."""
    assert job.stdin is not None
    assert job.stdout is not None
    job.stdin.write("go\n")
    job.stdin.flush()
    line = job.stdout.readline()
    assert line
    return line
