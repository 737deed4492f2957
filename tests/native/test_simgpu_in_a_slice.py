"""What the simulated driver learned last, met by an unmodified client (cuda-bindings) behind the shim."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.plain_slice import PlainSlice

_BEGIN = """
from cuda.bindings import driver as d

def ok(answer):
    assert answer[0] == d.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]

ok(d.cuInit(0))
"""

_GREEN = """
whole = ok(d.cuDeviceGetDevResource(0, d.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
groups, count, rest = ok(d.cuDevSmResourceSplitByCount(1, whole, 0, 8))
green = ok(d.cuGreenCtxCreate(ok(d.cuDevResourceGenerateDesc(groups, 1)), 0, 1))
ok(d.cuCtxSetCurrent(ok(d.cuCtxFromGreenCtx(green))))
free, total = ok(d.cuMemGetInfo())
print((total - free) >> 20, total >> 20)
assert d.cuMemAlloc(3 << 30)[0] == d.CUresult.CUDA_ERROR_OUT_OF_MEMORY
address = ok(d.cuMemAlloc(1 << 20))
stream = ok(d.cuGreenCtxStreamCreate(green, d.CUstream_flags.CU_STREAM_NON_BLOCKING, 0))
ok(d.cuMemsetD8Async(address, 1, 1 << 20, stream))
ok(d.cuStreamSynchronize(stream))
ok(d.cuMemFree(address))
ok(d.cuGreenCtxDestroy(green))
"""

_EVENT = """
import ctypes, os, sys, subprocess
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0))))
if len(sys.argv) > 1:
    handle = d.CUipcEventHandle()
    ctypes.memmove(handle.getPtr(), bytes.fromhex(sys.argv[1]), 64)
    event = ok(d.cuIpcOpenEventHandle(handle))
    ok(d.cuEventSynchronize(event))
    print("seen")
else:
    event = ok(d.cuEventCreate(d.CUevent_flags.CU_EVENT_INTERPROCESS | d.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    ok(d.cuEventRecord(event, 0))
    handle = ok(d.cuIpcGetEventHandle(event))
    raw = ctypes.string_at(handle.getPtr(), 64)
    subprocess.run([sys.executable, "-c", os.environ["SCRIPT"], raw.hex()], check=True)
"""


@pytest.fixture
def slice_of_h100() -> Iterator[PlainSlice]:
    with tempfile.TemporaryDirectory(prefix="simgpu-", dir="/dev/shm") as directory:
        yield PlainSlice(Path(directory), model="H100")


def _printed(slice_: PlainSlice, script: str) -> list[str]:
    done = slice_.run_python(script, SCRIPT=script)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_green_context_is_charged_as_the_primary_one_and_bound_by_the_slice(slice_of_h100: PlainSlice) -> None:
    used_mib, total_mib = map(int, _printed(slice_of_h100, _BEGIN + _GREEN))
    assert total_mib == 2048
    assert 0 < used_mib < 1024
    assert slice_of_h100.used_bytes() == [0]


def test_another_process_of_the_slice_waits_for_an_event(slice_of_h100: PlainSlice) -> None:
    assert _printed(slice_of_h100, _BEGIN + _EVENT) == ["seen"]
