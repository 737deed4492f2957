"""A slice on simulated GPUs without pgpu's engine: limit file, shim, driver, and processes that run under it.

Delivered as a plain preload, so that it needs no privilege; what other deliveries change is tests/system's.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.native_clients import library, preloading
from tests.waiting import DEADLINE_SECONDS

from pgpu.enforcement import SliceUse, limit_file, meter
from pgpu.enforcement.growth_channel import GrowthChannel
from pgpu.gpu.catalog import parse_model
from pgpu.gpu.simulated import simulated_uuid, start_simulated
from pgpu.libraries import CUDA_SHIM, SIMULATED_CUDA, SIMULATED_NVML

MIB = 1 << 20
GIB = 1 << 30
CONTEXT_BYTES = 300 * MIB
_ROOT = Path(__file__).parent.parent
_PRELUDE = (
    "import json, os, signal, sys, ctypes\nfrom ctypes import *\nfrom tests.cuda_session import *\ncu = Session()\n"
)


class SliceWorld:
    """One job's files. GPUs of the lease are in the order of `limits_bytes`; None leaves a GPU out of the lease."""

    def __init__(self, directory: Path, limits_bytes: Sequence[int | None], model: str = "RTX 3090") -> None:
        self.directory = directory
        self.simulated = directory / "simgpu"
        found, _ = parse_model(model)
        start_simulated(self.simulated, found, len(limits_bytes))
        uuids = [simulated_uuid(self.simulated, index) for index in range(len(limits_bytes))]
        self.uuids = [uuid for uuid, limit in zip(uuids, limits_bytes, strict=True) if limit is not None]
        self.limits = [limit for limit in limits_bytes if limit is not None]
        self.environment: dict[str, str] = {}
        self._make_files()

    @property
    def limit(self) -> Path:
        return self.directory / "slice" / "limit"

    @property
    def usage(self) -> Path:
        return self.directory / "usage"

    @property
    def shim(self) -> Path:
        return self.directory / "slice" / CUDA_SHIM

    def _make_files(self) -> None:
        self.shim.parent.mkdir()
        shutil.copy(library(CUDA_SHIM), self.shim)
        self.driver = self.directory / "driver" / "libcuda.so.1"
        self.driver.parent.mkdir()
        shutil.copy(library(SIMULATED_CUDA), self.driver)
        self.usage.touch(mode=0o666)
        self.nvml = str(library(SIMULATED_NVML))
        self.write_limit()

    def write_limit(
        self,
        wait_for_memory_seconds: float = 0,
        context_bytes: int = CONTEXT_BYTES,
        resident_bytes: int | None = None,
        *,
        grows: bool = False,
    ) -> None:
        """`resident_bytes` not None: the job oversubscribes, and so much of each slice may be bound to the device."""
        self.limit.unlink(missing_ok=True)
        gpus = tuple(
            limit_file.LimitGpu(uuid, limit, context_bytes, resident_bytes=resident_bytes or 0)
            for uuid, limit in zip(self.uuids, self.limits, strict=True)
        )
        limit = limit_file.LimitFile(
            job_id="0123456789ab",
            gpus=gpus,
            real_cuda_path=str(self.driver),
            real_nvml_path=self.nvml,
            usage_path=str(self.usage),
            wait_for_memory_ns=int(wait_for_memory_seconds * 1e9),
            requires_read_only=False,
            flags=(0 if resident_bytes is None else limit_file.OVERSUBSCRIBES) | (limit_file.GROWS if grows else 0),
        )
        limit_file.write_limit(self.limit, limit)

    def use(self, index: int = 0) -> SliceUse:
        return meter.read_use(limit_file.read_limit(self.limit), self.usage)[index]

    @property
    def growth(self) -> GrowthChannel:
        return GrowthChannel(self.limit, self.usage)

    def device_bytes(self, gpu: int = 0) -> int:
        """What the simulated device counts for all processes together."""
        return sum(slot.used_bytes[gpu] for slot in meter.held_slots(self.simulated / "memory"))

    def environment_for(self, *, is_shimmed: bool) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "PGPU_SIM"))}
        found = {} if is_shimmed else {"LD_LIBRARY_PATH": str(self.driver.parent)}
        return {
            **kept,
            **found,
            **preloading(*([self.shim] if is_shimmed else [])),
            **self.environment,
            **self._found(),
        }

    def _found(self) -> dict[str, str]:
        return {"PGPU_SIMGPU_DIR": str(self.simulated), "PGPU_TEST_DRIVER": str(self.driver)}

    def start(self, snippet: str, *words: str, is_shimmed: bool = True) -> subprocess.Popen[str]:
        """Start a snippet that begins with `cu`, a Session, and all of cuda_session in reach."""
        return subprocess.Popen(
            [sys.executable, "-c", _PRELUDE + snippet, *words],
            env=self.environment_for(is_shimmed=is_shimmed),
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, snippet: str, *words: str, is_shimmed: bool = True) -> subprocess.CompletedProcess[str]:
        process = self.start(snippet, *words, is_shimmed=is_shimmed)
        output, errors = process.communicate(timeout=DEADLINE_SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def answer(self, snippet: str, *words: str, is_shimmed: bool = True) -> Any:
        """Run a snippet and return the JSON that its last line prints."""
        done = self.run(snippet, *words, is_shimmed=is_shimmed)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    @contextmanager
    def running(self, snippet: str, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A snippet that printed a line and now waits for one on stdin; it is killed at the end."""
        with self.start(snippet, *words) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            if not process.stdout.readline():
                raise AssertionError(process.stderr.read())
            try:
                yield process
            finally:
                process.kill()


@contextmanager
def a_slice(*limits_bytes: int | None, model: str = "RTX 3090") -> Iterator[SliceWorld]:
    """A slice on a tmpfs, one limit for each simulated GPU."""
    with tempfile.TemporaryDirectory(prefix="pgpu-test-", dir="/dev/shm") as directory:
        yield SliceWorld(Path(directory), limits_bytes, model)
