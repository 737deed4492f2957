"""A program behind the shim meets CUDA's own errors, figures and functions, and its process is left as it was."""

import subprocess

import pytest
from tests.slice_world import CONTEXT_BYTES, GIB, SliceWorld, a_slice


class TestFunctionsReachTheDriverThroughTheirOwnVariants:
    @pytest.mark.parametrize(
        "name",
        [
            "cuMemAllocAsync",
            "cuMemFreeAsync",
            "cuStreamSynchronize",
            "cuLaunchKernel",
            "cuLaunchKernelEx",
            "cuLaunchCooperativeKernel",
            "cuGraphLaunch",
        ],
    )
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


class TestErrorsAndFiguresAreCudas:
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


class TestTheProcessIsLeftAsItWas:
    def test_it_keeps_umask_signals_descriptors_and_threads(self, one_gib: SliceWorld) -> None:
        assert one_gib.answer("""
def state():
    os.umask(old := os.umask(0))
    handlers = [str(signal.getsignal(number)) for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGSEGV)]
    with open("/proc/self/status") as file:
        signals = [line for line in file if line.startswith("Sig") and not line.startswith("SigQ")]
    low = sorted(os.listdir("/proc/self/fd"))[:4]
    # But for the driver's own thread.
    names = [open(f"/proc/self/task/{thread}/comm").read() for thread in os.listdir("/proc/self/task")]
    return [old, handlers, signals, low, len([name for name in names if name != "cuda-restore\\n"])]
import threading
# Whereupon the C library handles two signals of its own.
threading.Thread(target=threading.Event().wait, daemon=True).start()
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
