"""The simulated driver's NVML, asked as monitoring tools ask NVIDIA's."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native_clients import client_path, library, preloading
from tests.nvml_world import MIB, RTX_3090_BYTES, RTX_3090_TOTAL_BYTES, SimulatedGpus, run_with_library
from tests.waiting import DEADLINE_SECONDS

from pgpu.libraries import SIMULATED_NVML

LIBRARY = library(SIMULATED_NVML)
EXPORTS = Path(__file__).parents[2] / "native" / "api" / "nvml_functions.def"

EVERY_QUERY = """
import ctypes, inspect, sys
ctypes.CDLL(sys.argv[1])
import pynvml as nvml
nvml.nvmlInit()
handle = nvml.nvmlDeviceGetHandleByIndex(0)
answered = 0
for name, question in sorted(vars(nvml).items()):
    if not name.startswith("nvmlDeviceGet") or not callable(question):
        continue
    parameters = list(inspect.signature(question).parameters.values())
    if len(parameters) != 1 or parameters[0].name not in {"handle", "device"}:
        continue
    try:
        question(handle)
        answered += 1
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoData):
        pass
print(answered)
"""


@pytest.fixture
def gpus() -> Iterator[SimulatedGpus]:
    directory = Path(tempfile.mkdtemp(prefix="pgpu-test-nvml-", dir="/dev/shm"))
    yield SimulatedGpus(directory)
    shutil.rmtree(directory)


def test_every_gpu_is_found_by_index_and_by_uuid(gpus: SimulatedGpus) -> None:
    report = gpus.report(LIBRARY, *gpus.uuids, "GPU-00000000-0000-0000-0000-000000000000")
    assert [device["uuid"] for device in report["devices"]] == gpus.uuids
    assert {device["name"] for device in report["devices"]} == {"NVIDIA GeForce RTX 3090"}
    assert report["by_uuid"] == [0, 1, 2, "Not Found"]
    assert report["devices"][1]["bus_id"] == "00000000:02:00.0"


def test_an_idle_gpu_holds_only_what_its_driver_reserves(gpus: SimulatedGpus) -> None:
    device = gpus.report(LIBRARY)["devices"][0]
    reserved = RTX_3090_TOTAL_BYTES - RTX_3090_BYTES
    assert device["v1"] == [RTX_3090_TOTAL_BYTES, reserved, RTX_3090_BYTES]
    assert device["v2"] == [RTX_3090_TOTAL_BYTES, reserved, 0, RTX_3090_BYTES]
    assert device["processes"] == []


def test_memory_and_processes_are_told_for_each_gpu_apart(gpus: SimulatedGpus) -> None:
    with gpus.held(0, 100 * MIB, 2, 7 * MIB) as first, gpus.held(0, 50 * MIB) as second:
        devices = gpus.report(LIBRARY)["devices"]
    assert [device["v2"][2] for device in devices] == [150 * MIB, 0, 7 * MIB]
    assert devices[0]["processes"] == sorted([[first, 100 * MIB], [second, 50 * MIB]])
    assert devices[1]["processes"] == []
    assert devices[2]["processes"] == [[first, 7 * MIB]]


def test_a_process_that_ended_is_gone_with_its_memory(gpus: SimulatedGpus) -> None:
    with gpus.held(0, MIB):
        pass
    device = gpus.report(LIBRARY)["devices"][0]
    assert (device["v2"][2], device["processes"]) == (0, [])


def test_a_process_of_another_pid_namespace_is_listed_by_its_host_pid(gpus: SimulatedGpus) -> None:
    with gpus.held(0, MIB, in_pid_namespace=True) as inner_pid:
        ((pid, used_bytes),) = gpus.report(LIBRARY)["devices"][0]["processes"]
        inside = re.search(r"^NSpid:.*\s(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert inner_pid == 1
    assert inside is not None
    assert int(inside[1]) == inner_pid
    assert used_bytes == MIB


def test_inside_a_pid_namespace_only_its_own_processes_are_listed_by_their_own_pids(gpus: SimulatedGpus) -> None:
    holder = client_path("nvml", "nvml-hold")
    inside = f"""
import os, subprocess, sys
process = subprocess.Popen(["{holder}", "{gpus.directory}/memory", "0", "{MIB}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
pid = int(process.stdout.readline())
import ctypes
ctypes.CDLL(sys.argv[1])
import pynvml as nvml
nvml.nvmlInit()
handle = nvml.nvmlDeviceGetHandleByIndex(0)
used = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used
print([p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)] == [pid], pid < 20, used)
"""
    as_root = () if os.geteuid() == 0 else ("--map-root-user",)
    command = ("unshare", *as_root, "--pid", "--fork", "--mount-proc", sys.executable, "-c", inside, LIBRARY)
    with gpus.held(0, MIB):
        done = subprocess.run(
            command, env=gpus.environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
        )
    if "unshare failed" in done.stderr:
        pytest.skip("no PID namespace can be made here")
    assert done.stdout == f"True True {2 * MIB}\n", done.stderr


def test_a_busy_gpu_says_so_and_names_who_keeps_it_busy(gpus: SimulatedGpus) -> None:
    code = """
import ctypes, json, sys, time
ctypes.CDLL(sys.argv[1])
import pynvml as nvml
nvml.nvmlInit()
idle, busy = (nvml.nvmlDeviceGetHandleByIndex(index) for index in (1, 0))
deadline = time.monotonic() + 30
while (percent := nvml.nvmlDeviceGetUtilizationRates(busy).gpu) < 30 and time.monotonic() < deadline:
    pass
samples = [(sample.pid, sample.smUtil) for sample in nvml.nvmlDeviceGetProcessUtilization(busy, 0)]
print(json.dumps({"percent": percent, "idle": nvml.nvmlDeviceGetUtilizationRates(idle).gpu, "samples": samples,
                  "states": [nvml.nvmlDeviceGetPerformanceState(handle) for handle in (busy, idle)],
                  "hotter": nvml.nvmlDeviceGetTemperature(busy, 0) > nvml.nvmlDeviceGetTemperature(idle, 0)}))
"""
    spin = (sys.executable, "-m", "pgpu.workloads", "spin", "--kernel-ms", "50", "--launches", "1000000")
    environment = {**gpus.environment, "LD_LIBRARY_PATH": str(LIBRARY.parent)}
    with subprocess.Popen(spin, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            done = run_with_library(code, LIBRARY, environment=gpus.environment)
        finally:
            process.kill()
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["percent"] >= 30
    assert report["idle"] == 0
    assert [pid for pid, _ in report["samples"]] == [process.pid]
    assert (report["states"], report["hotter"]) == ([0, 8], True)


def test_every_version_of_a_structure_is_filled_to_its_size_and_not_past_it(gpus: SimulatedGpus) -> None:
    with gpus.held(0, 100 * MIB) as first, gpus.held(0, 50 * MIB) as second:
        command = [client_path("nvml", "nvml-structures"), LIBRARY]
        done = subprocess.run(
            command, env=gpus.environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
        )
    assert done.returncode == 0, done.stderr
    compute = [line.split()[1:] for line in done.stdout.splitlines() if "Compute" in line and "MPS" not in line]
    expected = sorted([f"{first}:{100 * MIB}", f"{second}:{50 * MIB}"])
    assert [sorted(entries) for entries in compute] == [expected] * 3


def test_threads_may_begin_ask_and_end_at_once(gpus: SimulatedGpus) -> None:
    command = [client_path("nvml", "nvml-threads"), LIBRARY]
    done = subprocess.run(
        command, env=gpus.environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_question_that_pynvml_knows_is_answered_or_not_supported_and_nothing_else(gpus: SimulatedGpus) -> None:
    done = run_with_library(EVERY_QUERY, LIBRARY, environment=gpus.environment)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


def test_without_simulated_gpus_the_driver_is_not_loaded(tmp_path: Path) -> None:
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).nvmlInit_v2())"
    done = run_with_library(code, LIBRARY, environment={**preloading(), "PGPU_SIMGPU_DIR": str(tmp_path)})
    assert done.stdout.strip() == "9"


def test_before_init_and_after_shutdown_nothing_is_told(gpus: SimulatedGpus) -> None:
    code = """
import ctypes, sys
nvml = ctypes.CDLL(sys.argv[1])
count = ctypes.c_uint()
print(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), nvml.nvmlInit_v2(), nvml.nvmlInit_v2(), nvml.nvmlShutdown(),
      nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), nvml.nvmlShutdown(),
      nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), nvml.nvmlShutdown())
"""
    done = run_with_library(code, LIBRARY, environment=gpus.environment)
    assert done.stdout.split() == ["1", "0", "0", "0", "0", "0", "1", "1"], done.stderr


def test_a_handle_that_is_none_is_refused(gpus: SimulatedGpus) -> None:
    code = """
import ctypes, sys
nvml = ctypes.CDLL(sys.argv[1])
nvml.nvmlInit_v2()
handle, value = ctypes.c_void_p(), ctypes.c_uint()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
for wrong in (None, 1, handle.value + 1, handle.value - 8, handle.value + (1 << 20)):
    print(nvml.nvmlDeviceGetIndex(ctypes.c_void_p(wrong), ctypes.byref(value)))
print(nvml.nvmlDeviceGetIndex(handle, None))
"""
    done = run_with_library(code, LIBRARY, environment=gpus.environment)
    assert done.stdout.split() == ["2"] * 6, done.stderr


def test_it_exports_exactly_what_nvml_exports() -> None:
    listed = set(re.findall(r"^NVML_FUNCTION\((\w+)\)", EXPORTS.read_text(), re.MULTILINE)) | {"nvmlErrorString"}
    assert exported(LIBRARY) == listed


def exported(library: Path) -> set[str]:
    symbols = subprocess.run(("nm", "-D", "--defined-only", library), capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in symbols.stdout.splitlines()}
