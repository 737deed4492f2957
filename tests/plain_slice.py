"""A slice of simulated GPUs delivered as a plain preload, for tests that need neither engine nor namespaces."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.native_clients import library, preloading
from tests.nvml_world import MIB, SimulatedGpus, held
from tests.waiting import DEADLINE_SECONDS

from pgpu.enforcement.limit_file import LimitFile, LimitGpu, read_limit, write_limit
from pgpu.enforcement.meter import read_use
from pgpu.libraries import CUDA_SHIM, NVML_SHIM, SIMULATED_CUDA, SIMULATED_NVML

CONTEXT_BYTES = 254 * MIB
"""Of the catalog's RTX 3090."""


class PlainSlice:
    """A lease of some simulated GPUs; programs that `run` are in it."""

    def __init__(
        self, directory: Path, *, model: str = "RTX 3090", gpus: Sequence[int] = (0,), limit_bytes: int = 2048 * MIB
    ) -> None:
        """Make simulated GPUs and a slice of each of `gpus`, by index, in this order."""
        self.gpus = SimulatedGpus(directory / "simgpu", model)
        self.uuids = [self.gpus.uuids[index] for index in gpus]
        self.limit_bytes = limit_bytes
        self.directory = directory / "slice"
        self.directory.mkdir()
        self.cuda_library, self.library = (self._deliver(name) for name in (CUDA_SHIM, NVML_SHIM))
        self.limit = self.directory / "limit"
        self.usage = self.directory / "usage"
        self.usage.touch(0o666)
        self.write_limit(library(SIMULATED_NVML))

    def write_limit(self, real_nvml: Path | str) -> None:
        self.limit.unlink(missing_ok=True)
        write_limit(
            self.limit,
            LimitFile(
                job_id="1" * 12,
                gpus=tuple(LimitGpu(uuid, self.limit_bytes, CONTEXT_BYTES) for uuid in self.uuids),
                real_cuda_path=str(library(SIMULATED_NVML).with_name(Path(SIMULATED_CUDA).name)),
                real_nvml_path=str(real_nvml),
                usage_path=str(self.usage),
                requires_read_only=False,
            ),
        )

    @property
    def environment(self) -> dict[str, str]:
        return {
            **self.gpus.environment,
            **preloading(self.cuda_library, self.library),
            "CUDA_VISIBLE_DEVICES": ",".join(self.uuids),
        }

    def run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    def run_python(self, code: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-c", code, *words, **environment)

    def report(self, *uuids: str) -> dict[str, Any]:
        """Say what pynvml tells through the NVML shim, loaded by its path."""
        return self.gpus.report(self.library, *uuids)

    def held(self, *gpu_and_bytes: int) -> AbstractContextManager[int]:
        """Hold memory of the slice in a process of its own, whose PID is given."""
        return held(self.usage, *gpu_and_bytes)

    def used_bytes(self) -> list[int]:
        return [use.used_bytes for use in read_use(read_limit(self.limit), self.usage)]

    def peak_bytes(self) -> list[int]:
        return [use.peak_bytes for use in read_use(read_limit(self.limit), self.usage)]

    def _deliver(self, name: str) -> Path:
        target = self.directory / name
        shutil.copy(library(name), target)
        os.chmod(target, 0o755)  # noqa: PTH101 - a preload must be readable and executable
        return target
