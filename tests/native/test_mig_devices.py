"""MIG on simulated GPUs: what CUDA and NVML show of instances, alone and through the shim of a job that has one."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.native_clients import library, preloading
from tests.nvml_world import MIB, SimulatedGpus, run_with_library
from tests.plain_slice import PlainSlice
from tests.waiting import DEADLINE_SECONDS

from pgpu.gpu.simulated import simulated_instance_uuid
from pgpu.libraries import SIMULATED_CUDA, SIMULATED_NVML

MODEL = "H100 mig 1g.10gb+2g.20gb x2"
SMALL_BYTES, LARGE_BYTES = 9_984 * MIB, 20_096 * MIB
NVML = library(SIMULATED_NVML)

CUDA_DEVICES = """
import ctypes, json, sys, uuid
cu = ctypes.CDLL(sys.argv[1])
assert cu.cuInit(0) == 0
count, size, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(100)
cu.cuDeviceGetCount(ctypes.byref(count))
found = []
for device in range(count.value):
    identity = ctypes.create_string_buffer(16)
    cu.cuDeviceGetUuid_v2(identity, device)
    cu.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    cu.cuDeviceGetName(name, 100, device)
    found.append([str(uuid.UUID(bytes=identity.raw)), size.value, name.value.decode()])
print(json.dumps(found))
"""

FILL = """
import ctypes, json, sys
cu = ctypes.CDLL(sys.argv[1])
context, at = ctypes.c_void_p(), ctypes.c_uint64()
assert cu.cuInit(0) == 0 and cu.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
answers = [cu.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(int(size))) for size in sys.argv[2:]]
print(json.dumps(answers), flush=True)
sys.stdin.readline()
"""

NVML_DEVICES = """
import ctypes, json, sys
ctypes.CDLL(sys.argv[1])
import pynvml as nvml
nvml.nvmlInit()
def value(number):
    return getattr(number, "value", number)
def told(question, *arguments):
    try:
        return question(*arguments)
    except nvml.NVMLError as error:
        return str(error)
def device(handle):
    memory = told(nvml.nvmlDeviceGetMemoryInfo, handle)
    return {"uuid": nvml.nvmlDeviceGetUUID(handle), "name": nvml.nvmlDeviceGetName(handle),
            "is_mig": value(nvml.nvmlDeviceIsMigDeviceHandle(handle)), "memory": [memory.total, memory.used],
            "pids": [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)],
            "busy": str(told(nvml.nvmlDeviceGetUtilizationRates, handle)),
            "again": nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(handle)))}
def whole(index):
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    handles = [told(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, i)
               for i in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))]
    instances = [instance for instance in handles if not isinstance(instance, str)]
    return {**device(handle), "mode": nvml.nvmlDeviceGetMigMode(handle), "most": len(handles),
            "refused": sorted(set(instance for instance in handles if isinstance(instance, str))),
            "parents": [nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(i)) for i in instances],
            "ids": [[value(nvml.nvmlDeviceGetGpuInstanceId(i)), value(nvml.nvmlDeviceGetComputeInstanceId(i))] for i in instances],
            "instances": [device(instance) for instance in instances]}
print(json.dumps([whole(index) for index in range(nvml.nvmlDeviceGetCount())]))
"""

SOURCE = """
import json, sys
from pathlib import Path
from pgpu.gpu.nvml import NvmlSource
print(json.dumps([[gpu.place, gpu.uuid, gpu.parent_uuid] for gpu in NvmlSource(Path(sys.argv[2])).gpus()]))
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="pgpu-test-mig-", dir="/dev/shm"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def gpus(directory: Path) -> SimulatedGpus:
    (directory / "simgpu").mkdir()
    return SimulatedGpus(directory / "simgpu", MODEL)


def uuid_of(gpus: SimulatedGpus, gpu: int, instance: int) -> str:
    return simulated_instance_uuid(gpus.directory, gpu, instance)


def environment(gpus: SimulatedGpus, visible: str | None) -> dict[str, str]:
    kept = {name: value for name, value in gpus.environment.items() if name != "CUDA_VISIBLE_DEVICES"}
    return kept if visible is None else {**kept, "CUDA_VISIBLE_DEVICES": visible}


def cuda_devices(gpus: SimulatedGpus, visible: str | None) -> Any:
    done = run_with_library(CUDA_DEVICES, library(SIMULATED_CUDA), environment=environment(gpus, visible))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def nvml_devices(library: Path, gpus: SimulatedGpus) -> Any:
    done = run_with_library(NVML_DEVICES, library, environment=gpus.environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_cuda_shows_one_instance_whatever_it_is_asked_for(gpus: SimulatedGpus) -> None:
    first, second = uuid_of(gpus, 0, 0), uuid_of(gpus, 0, 1)
    small = [[first.removeprefix("MIG-"), SMALL_BYTES, "NVIDIA H100 80GB HBM3 MIG 1g.10gb"]]
    large = [[second.removeprefix("MIG-"), LARGE_BYTES, "NVIDIA H100 80GB HBM3 MIG 2g.20gb"]]
    for visible in (None, first, "0", gpus.uuids[0], f"{first},{second}"):
        assert cuda_devices(gpus, visible) == small, visible
    for visible in (second, second[:12], f"{second},{first}", f"{second},no-such-gpu"):
        assert cuda_devices(gpus, visible) == large, visible
    assert cuda_devices(gpus, "1")[0][0] == uuid_of(gpus, 1, 0).removeprefix("MIG-")


def test_an_instance_is_full_by_itself(gpus: SimulatedGpus) -> None:
    cuda = str(library(SIMULATED_CUDA))
    command = [sys.executable, "-c", FILL, cuda]
    first, second = (environment(gpus, uuid_of(gpus, 0, number)) for number in (0, 1))
    with subprocess.Popen(
        [*command, str(9_000 * MIB), str(1_000 * MIB)],
        env=first,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == [0, 2]
        done = subprocess.run(
            [*command, str(19_000 * MIB)],
            env=second,
            input="\n",
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=True,
        )
        assert json.loads(done.stdout) == [0]
        report = nvml_devices(NVML, gpus)[0]
        process.communicate("\n")
    assert [instance["pids"] for instance in report["instances"]] == [[process.pid], []]
    used = [instance["memory"][1] for instance in report["instances"]]
    assert used[0] > 9_000 * MIB
    assert used[1] == 0


def test_nvml_lists_the_instances_below_their_gpu(gpus: SimulatedGpus) -> None:
    report = nvml_devices(NVML, gpus)
    assert [gpu["uuid"] for gpu in report] == gpus.uuids
    for index, gpu in enumerate(report):
        assert (gpu["is_mig"], gpu["mode"], gpu["most"]) == (0, [1, 1], 7)
        assert [one["uuid"] for one in gpu["instances"]] == [uuid_of(gpus, index, number) for number in (0, 1)]
        assert gpu["parents"] == [gpu["uuid"]] * 2
        assert gpu["ids"] == [[1, 0], [2, 0]]
        assert gpu["refused"] == ["Not Found"]
        assert [one["memory"] for one in gpu["instances"]] == [[SMALL_BYTES, 0], [LARGE_BYTES, 0]]
        assert {one["is_mig"] for one in gpu["instances"]} == {1}
        for one in (gpu, *gpu["instances"]):
            assert one["again"] == one["uuid"]
            assert one["busy"] == "Not Supported"


def listed(directory: Path) -> Any:
    done = run_with_library(SOURCE, NVML, str(directory), environment={**os.environ, **preloading()})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_divided_gpu_is_told_of_as_its_instances_in_their_order(gpus: SimulatedGpus) -> None:
    assert listed(gpus.directory) == [
        [f"{gpu}:{number}", uuid_of(gpus, gpu, number), gpus.uuids[gpu]] for gpu in (0, 1) for number in (0, 1)
    ]


def test_instances_that_share_memory_are_not_told_of(gpus: SimulatedGpus) -> None:
    configuration = gpus.directory / "gpus.conf"
    wholes, *instances = configuration.read_text().split("[mig]\n")
    shared = [
        instances[0],
        instances[1].replace("gpu_instance=2", "gpu_instance=1\ncompute_instance=1"),
        *instances[2:],
    ]
    configuration.write_text("[mig]\n".join([wholes, *shared]))
    assert [place for place, _, _ in listed(gpus.directory)] == ["1:0", "1:1"]


def test_a_divided_gpu_without_instances_is_none_to_anybody(gpus: SimulatedGpus) -> None:
    configuration = gpus.directory / "gpus.conf"
    configuration.write_text(configuration.read_text().partition("[mig]\n")[0])
    assert listed(gpus.directory) == []
    no_device = 100
    script = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).cuInit(0))"
    done = run_with_library(script, library(SIMULATED_CUDA), environment=environment(gpus, None))
    assert int(done.stdout) == no_device


@pytest.mark.parametrize(
    ("before", "after"),
    [("parent=1", "parent=2"), ("mig=1", "mig=0"), ("uuid=MIG-", "uuid=GPU-"), ("uuid=GPU-", "uuid=MIG-")],
)
def test_instances_of_no_divided_gpu_are_refused(gpus: SimulatedGpus, before: str, after: str) -> None:
    configuration = gpus.directory / "gpus.conf"
    configuration.write_text(configuration.read_text().replace(before, after))
    script = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).nvmlInit_v2())"
    done = run_with_library(script, NVML, environment=gpus.environment)
    driver_not_loaded = 9
    assert int(done.stdout) == driver_not_loaded


def test_a_job_s_nvml_shows_its_instance_alone_and_the_slice_as_its_memory(directory: Path) -> None:
    slice_ = PlainSlice(directory, model=MODEL)
    slice_.uuids = [uuid_of(slice_.gpus, 1, 1)]
    slice_.write_limit(NVML)
    with slice_.held(0, 300 * MIB) as pid:
        report = nvml_devices(slice_.library, slice_.gpus)
    assert [gpu["uuid"] for gpu in report] == slice_.gpus.uuids[1:]
    assert [one["uuid"] for one in report[0]["instances"]] == slice_.uuids
    for one in (report[0], *report[0]["instances"]):
        assert (one["memory"], one["pids"]) == ([2048 * MIB, 300 * MIB], [pid])
