"""Programs that other people wrote, unmodified, in a slice of the simulated GPU.

Each must see a GPU of the slice's size, be refused past it with CUDA's own error, and work on after it freed something.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.native_clients import client_path, framework_python
from tests.nvml_world import MIB
from tests.plain_slice import CONTEXT_BYTES, PlainSlice

LIMIT_BYTES = 2048 * MIB

CUDA_BINDINGS = """
import json
from cuda.bindings import driver

def check(result):
    assert result[0] == driver.CUresult.CUDA_SUCCESS, result[0]
    return result[1] if len(result) == 2 else result[1:]

check((*driver.cuInit(0), None))
device = check(driver.cuDeviceGet(0))
check((*driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))), None))
held = []
while True:
    error, pointer = driver.cuMemAlloc(256 << 20)
    if error != driver.CUresult.CUDA_SUCCESS:
        break
    held.append(pointer)
full = check(driver.cuMemGetInfo())
check((*driver.cuMemFree(held.pop()), None))
after = driver.cuMemAlloc(256 << 20)[0]
data = bytes(range(256)) * 4
check((*driver.cuMemcpyHtoD(held[0], data, len(data)), None))
back = bytearray(len(data))
check((*driver.cuMemcpyDtoH(back, held[0], len(data)), None))
print(json.dumps({"count": len(held) + 1, "error": int(error), "full": full, "after": int(after),
                  "total": check(driver.cuDeviceTotalMem(device)), "same": bytes(back) == data}))
"""

NUMBA = """
import json, warnings
warnings.simplefilter("ignore")
import numpy
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError
block = numpy.arange(32 << 20, dtype=numpy.uint8)
context = cuda.current_context()
total = context.get_memory_info().total
held, code = [], None
while code is None:
    try:
        held.append(cuda.to_device(block))
    except CudaAPIError as error:
        code = error.code
same = bool((held[3].copy_to_host() == block).all())
count = len(held)
held.clear()
context.deallocations.clear()
again = cuda.to_device(block)
print(json.dumps({"count": count, "code": int(code), "total": int(total), "same": same, "again": again.nbytes}))
"""

PYNVML = """
import json, os
from cuda.bindings import driver
import pynvml
driver.cuInit(0)
context = driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])[1]
driver.cuCtxSetCurrent(context)
driver.cuMemAlloc(100 << 20)
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
print(json.dumps({"total": memory.total, "used": memory.used, "free": memory.free, "own_pid": os.getpid(),
                  "processes": [[p.pid, p.usedGpuMemory] for p in processes],
                  "free_of_cuda": driver.cuMemGetInfo()[1]}))
"""


@pytest.fixture
def slice_() -> Iterator[PlainSlice]:
    directory = Path(tempfile.mkdtemp(prefix="pgpu-test-clients-", dir="/dev/shm"))
    yield PlainSlice(directory, limit_bytes=LIMIT_BYTES)
    shutil.rmtree(directory)


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def test_cuda_bindings_gets_its_slice_and_not_a_block_more(slice_: PlainSlice) -> None:
    report = result_of(slice_.run_python(CUDA_BINDINGS))
    fitting = (LIMIT_BYTES - CONTEXT_BYTES) // (256 * MIB)
    assert report["count"] == fitting
    assert (report["error"], report["after"], report["same"]) == (2, 0, True)
    assert report["total"] == LIMIT_BYTES
    assert report["full"] == [LIMIT_BYTES - CONTEXT_BYTES - fitting * 256 * MIB, LIMIT_BYTES]
    assert slice_.peak_bytes() == [CONTEXT_BYTES + fitting * 256 * MIB]


@pytest.mark.frameworks("numba")
def test_numba_gets_its_slice_and_works_on_after_a_refusal(slice_: PlainSlice) -> None:
    report = result_of(slice_.run(framework_python("numba"), "-c", NUMBA))
    assert report["count"] == (LIMIT_BYTES - CONTEXT_BYTES) // (32 * MIB)
    assert (report["code"], report["same"], report["again"]) == (2, True, 32 * MIB)
    assert report["total"] == LIMIT_BYTES


def test_pynvml_beside_cuda_tells_what_cuda_tells(slice_: PlainSlice) -> None:
    report = result_of(slice_.run_python(PYNVML))
    used = CONTEXT_BYTES + 100 * MIB
    assert (report["total"], report["used"], report["free"]) == (LIMIT_BYTES, used, LIMIT_BYTES - used)
    assert report["free_of_cuda"] == report["free"]
    assert report["processes"] == [[report["own_pid"], used]]


@pytest.mark.parametrize("way", ["linked", "dlsym", "entry-point"])
def test_a_c_program_gets_its_slice_however_it_reaches_the_driver(slice_: PlainSlice, way: str) -> None:
    report = result_of(slice_.run(client_path("clients", f"client-{way}")))
    assert report == {"blocks": (LIMIT_BYTES - CONTEXT_BYTES) // (64 * MIB), "error": 2, "total": LIMIT_BYTES}


def test_a_slice_is_shared_by_all_its_programs(slice_: PlainSlice) -> None:
    with slice_.held(0, 1024 * MIB):
        report = result_of(slice_.run_python(CUDA_BINDINGS))
    assert report["count"] == (1024 * MIB - CONTEXT_BYTES) // (256 * MIB)


def test_what_a_program_held_is_free_when_it_has_ended(slice_: PlainSlice) -> None:
    result_of(slice_.run_python(CUDA_BINDINGS))
    assert slice_.used_bytes() == [0]


def test_two_gpus_of_a_lease_keep_their_slices_apart() -> None:
    directory = Path(tempfile.mkdtemp(prefix="pgpu-test-clients-", dir="/dev/shm"))
    two = PlainSlice(directory, model="RTX 3090x3", gpus=(2, 0), limit_bytes=LIMIT_BYTES)
    try:
        code = CUDA_BINDINGS.replace("cuDeviceGet(0)", "cuDeviceGet(1)")
        report = result_of(two.run_python(code))
        assert report["count"] == (LIMIT_BYTES - CONTEXT_BYTES) // (256 * MIB)
        assert two.peak_bytes() == [0, CONTEXT_BYTES + report["count"] * 256 * MIB]
    finally:
        shutil.rmtree(directory)
