"""Simulated GPUs and what a monitoring tool would see of them, each tool in a process of its own.

NVML is one library for a whole process, so the tests' own process never loads the one under test.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.native_clients import client_path, preloading
from tests.waiting import DEADLINE_SECONDS

from pgpu.gpu.catalog import parse_model
from pgpu.gpu.simulated import simulated_uuid, start_simulated

MIB = 1 << 20
RTX_3090_BYTES = 24_265 * MIB
RTX_3090_TOTAL_BYTES = 24_576 * MIB

_NO_NAMESPACE_EXIT_CODE = 77

_REPORT = """
import ctypes, json, sys
ctypes.CDLL(sys.argv[1])
import pynvml as nvml
nvml.nvmlInit()
def told(question, *arguments):
    try:
        return question(*arguments)
    except nvml.NVMLError as error:
        return str(error)
def device(index):
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return {
        "uuid": nvml.nvmlDeviceGetUUID(handle),
        "name": nvml.nvmlDeviceGetName(handle),
        "index": nvml.nvmlDeviceGetIndex(handle),
        "bus_id": nvml.nvmlDeviceGetPciInfo(handle).busId,
        "v1": [getattr(nvml.nvmlDeviceGetMemoryInfo(handle), word) for word in ("total", "used", "free")],
        "v2": [getattr(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2), word)
               for word in ("total", "reserved", "used", "free")],
        "bar1": nvml.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Total,
        "processes": sorted([p.pid, p.usedGpuMemory] for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
        "nearest": len(nvml.nvmlDeviceGetTopologyNearestGpus(handle, nvml.NVML_TOPOLOGY_HOSTBRIDGE)),
        "power_limit": told(nvml.nvmlDeviceSetPowerManagementLimit, handle, 1),
    }
found = [told(lambda uuid: nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(uuid)), uuid) for uuid in sys.argv[2:]]
print(json.dumps({"devices": [device(i) for i in range(nvml.nvmlDeviceGetCount())], "by_uuid": found}))
"""


class SimulatedGpus:
    """Several simulated GPUs of one model in a directory."""

    def __init__(self, directory: Path, model: str = "RTX 3090x3") -> None:
        self.directory = directory
        found, self.count = parse_model(model)
        start_simulated(directory, found, self.count)

    @property
    def uuids(self) -> list[str]:
        return [simulated_uuid(self.directory, index) for index in range(self.count)]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **preloading(), "PGPU_SIMGPU_DIR": str(self.directory)}

    @contextmanager
    def held(self, *gpu_and_bytes: int, **how: Any) -> Iterator[int]:
        """Hold device memory in a process of its own, whose PID, as it knows itself, is given."""
        with held(self.directory / "memory", *gpu_and_bytes, **how) as pid:
            yield pid

    def report(self, library: Path, *uuids: str) -> dict[str, Any]:
        """Say what pynvml tells through a library, and the index at which it finds each UUID."""
        return nvml_report(library, *uuids, environment=self.environment)


def nvml_report(library: Path, *uuids: str, environment: Mapping[str, str]) -> dict[str, Any]:
    done = run_with_library(_REPORT, library, *uuids, environment=environment)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def run_with_library(
    code: str, library: Path, *words: str, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, str(library), *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )


@contextmanager
def held(usage_path: Path, *gpu_and_bytes: int, in_pid_namespace: bool = False) -> Iterator[int]:
    """Hold bytes in a usage file, in a process of its own, whose PID, as it knows itself, is given."""
    command = [str(client_path("nvml", "nvml-hold")), str(usage_path), *map(str, gpu_and_bytes)]
    environment = {**os.environ, **({"PGPU_HOLD_IN_PID_NAMESPACE": "1"} if in_pid_namespace else {})}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line and process.wait() == _NO_NAMESPACE_EXIT_CODE:
            pytest.skip("no PID namespace can be made here")
        yield int(line)
        process.stdin.close()
    assert process.returncode == 0
