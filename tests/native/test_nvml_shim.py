"""What a job's own monitoring tools see: its slice, its GPUs and its own processes."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native_clients import client_path, library
from tests.nvml_world import MIB, run_with_library
from tests.plain_slice import PlainSlice
from tests.waiting import DEADLINE_SECONDS

from pgpu.enforcement.limit_file import set_limit_bytes, set_overhead_bytes
from pgpu.libraries import NVML_SHIM, SIMULATED_NVML

EXPORT_TABLE = "nvmlInternalGetExportTable"
"""In no header, exported by every NVML of NVIDIA's: nvidia-smi asks for it."""

INIT = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).nvmlInit_v2())"


@pytest.fixture
def slice_() -> Iterator[PlainSlice]:
    directory = Path(tempfile.mkdtemp(prefix="pgpu-test-nvml-", dir="/dev/shm"))
    yield PlainSlice(directory, model="RTX 3090x3", gpus=(2, 0))
    shutil.rmtree(directory)


def init(slice_: PlainSlice) -> subprocess.CompletedProcess[str]:
    return run_with_library(INIT, slice_.library, environment=slice_.gpus.environment)


def test_the_lease_s_gpus_are_all_there_is_and_in_its_order(slice_: PlainSlice) -> None:
    report = slice_.report(*slice_.gpus.uuids)
    assert [device["uuid"] for device in report["devices"]] == slice_.uuids
    assert [device["index"] for device in report["devices"]] == [0, 1]
    assert report["by_uuid"] == [1, "Not Found", 0]


def test_neighbours_of_a_gpu_are_only_those_of_the_lease(slice_: PlainSlice) -> None:
    assert [device["nearest"] for device in slice_.report()["devices"]] == [1, 1]
    assert slice_.gpus.report(library(SIMULATED_NVML))["devices"][0]["nearest"] == 2


def test_both_versions_of_memory_info_show_the_slice(slice_: PlainSlice) -> None:
    with slice_.held(0, 300 * MIB):
        devices = slice_.report()["devices"]
    assert devices[0]["v1"] == [2048 * MIB, 300 * MIB, 1748 * MIB]
    assert devices[0]["v2"] == [2048 * MIB, 0, 300 * MIB, 1748 * MIB]
    assert devices[1]["v2"] == [2048 * MIB, 0, 0, 2048 * MIB]


def test_a_resize_and_the_driver_s_overhead_show_at_once(slice_: PlainSlice) -> None:
    set_limit_bytes(slice_.limit, slice_.uuids[0], 512 * MIB)
    set_overhead_bytes(slice_.limit, slice_.uuids[0], 12 * MIB)
    assert slice_.report()["devices"][0]["v1"] == [512 * MIB, 12 * MIB, 500 * MIB]


def test_a_full_device_is_told_as_it_is(slice_: PlainSlice) -> None:
    with slice_.gpus.held(2, 24_000 * MIB):
        device = slice_.report()["devices"][0]
    assert device["v2"] == [2048 * MIB, 0, 0, 265 * MIB]


def test_the_bar1_window_is_left_alone(slice_: PlainSlice) -> None:
    real = slice_.gpus.report(library(SIMULATED_NVML))["devices"][0]["bar1"]
    assert slice_.report()["devices"][0]["bar1"] == real


def test_process_lists_show_the_slice_s_own_processes_with_the_meter_s_figures(slice_: PlainSlice) -> None:
    with slice_.gpus.held(0, MIB, 2, MIB), slice_.held(0, 300 * MIB) as own:
        devices = slice_.report()["devices"]
    assert devices[0]["processes"] == [[own, 300 * MIB]]
    assert devices[1]["processes"] == []


def test_every_version_of_a_structure_is_filled_to_its_size_and_not_past_it(slice_: PlainSlice) -> None:
    with slice_.held(0, 100 * MIB) as first, slice_.held(0, 50 * MIB) as second:
        command = [client_path("nvml", "nvml-structures"), slice_.library]
        environment = slice_.gpus.environment
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
        )
    assert done.returncode == 0, done.stderr
    compute = [line.split()[1:] for line in done.stdout.splitlines() if "Compute" in line and "MPS" not in line]
    expected = sorted([f"{first}:{100 * MIB}", f"{second}:{50 * MIB}"])
    assert [sorted(entries) for entries in compute] == [expected] * 3


def test_threads_may_begin_ask_and_end_at_once(slice_: PlainSlice) -> None:
    command = [client_path("nvml", "nvml-threads"), slice_.library]
    environment = slice_.gpus.environment
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_setting_is_left_to_the_driver_to_refuse(slice_: PlainSlice) -> None:
    assert slice_.report()["devices"][0]["power_limit"] == "Not Supported"


def test_without_a_limit_file_nvml_is_refused_with_one_line(slice_: PlainSlice) -> None:
    slice_.limit.unlink()
    done = init(slice_)
    assert (done.stdout, done.stderr) == ("4\n", "pgpu: NVML is refused here: there is no limit file\n")


def test_a_garbled_limit_file_refuses_nvml(slice_: PlainSlice) -> None:
    slice_.limit.write_bytes(b"\0" * 4096)
    done = init(slice_)
    assert (done.stdout, done.stderr) == ("4\n", "pgpu: NVML is refused here: the limit file is invalid\n")


def test_after_a_refusal_every_question_is_uninitialised_and_the_error_has_words(slice_: PlainSlice) -> None:
    slice_.limit.unlink()
    code = """
import ctypes, sys
nvml = ctypes.CDLL(sys.argv[1])
nvml.nvmlErrorString.restype = ctypes.c_char_p
count = ctypes.c_uint()
print(nvml.nvmlInit_v2(), nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), nvml.nvmlDeviceGetName(None, None, 0),
      nvml.nvmlShutdown(), nvml.nvmlErrorString(4).decode())
"""
    done = run_with_library(code, slice_.library, environment=slice_.gpus.environment)
    assert done.stdout == "4 1 1 1 Insufficient Permissions\n"
    assert done.stderr.count("\n") == 1


def test_a_container_without_nvml_has_none_behind_the_shim_either(slice_: PlainSlice) -> None:
    slice_.write_limit("")
    done = init(slice_)
    assert (done.stdout, done.stderr) == ("12\n", "")


def test_a_real_path_that_leads_back_to_the_shim_is_noticed(slice_: PlainSlice) -> None:
    slice_.write_limit(slice_.library)
    done = init(slice_)
    assert done.stdout == "12\n"
    assert "leads back to pgpu" in done.stderr


def test_forged_usage_is_an_error_and_never_an_unlimited_gpu(slice_: PlainSlice) -> None:
    slice_.usage.write_bytes(b"\xff" * 8192)
    code = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
import pynvml as nvml
nvml.nvmlInit()
try:
    nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0))
except nvml.NVMLError as error:
    print(error)
"""
    done = run_with_library(code, slice_.library, environment=slice_.gpus.environment)
    assert done.stdout == "Unknown Error\n"


def test_it_exports_exactly_what_nvml_exports() -> None:
    def exported(name: str) -> set[str]:
        command = ("nm", "-D", "--defined-only", library(name))
        symbols = subprocess.run(command, capture_output=True, text=True, check=True)
        return {line.split()[-1] for line in symbols.stdout.splitlines()}

    assert exported(NVML_SHIM) == exported(SIMULATED_NVML) | {EXPORT_TABLE}


def test_a_private_table_is_the_real_library_s_also_before_init(slice_: PlainSlice) -> None:
    code = f"""
import ctypes, sys
table, name = ctypes.c_void_p(), ctypes.create_string_buffer(16)
result = ctypes.CDLL(sys.argv[1]).{EXPORT_TABLE}(ctypes.byref(table), name)
print(result, table.value == ctypes.addressof(name))
"""
    without = run_with_library(code, slice_.library, environment=slice_.gpus.environment)
    slice_.write_limit(client_path("nvml", "nvml-tables.so"))
    done = run_with_library(code, slice_.library, environment=slice_.gpus.environment)
    assert (without.stdout, done.stdout, done.stderr) == ("13 False\n", "0 True\n", "")
