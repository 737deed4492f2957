"""A device whose kernels compute on the host, from the very CUDA C that the GPU's PTX is made of.

Without it the workloads' own checks would first run where a GPU is. It refuses `spin` and `crowd`, which read a GPU's clock, and
says nothing of speed.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pgpu.workloads
from pgpu.workloads.cuda_driver import Argument, ContextSize, Device, Module
from pgpu.workloads.kernels import Kernels
from pgpu.workloads.workload_run import HeldMemory, WorkloadRun

ROOM = Path(pgpu.workloads.__file__).parent
COMPILER = shutil.which("c++")
KERNEL = re.compile(r'extern "C" __global__ void (\w+)\(([^)]*)\)')
CLOCK_READERS = re.compile(r'extern "C" __global__ void (?:spin|crowd)\(.*?^}', re.MULTILINE | re.DOTALL)


def launcher(name: str, parameters: str) -> str:
    """C++ that runs one kernel over a grid."""
    names = ", ".join(parameter.split()[-1].lstrip("*") for parameter in parameters.split(","))
    head = f'extern "C" void launch_{name}(unsigned int blocks, unsigned int threads, {parameters})'
    return f"{head} {{ run_grid(blocks, threads, [&] {{ {name}({names}); }}); }}\n"


def build(source: Path, folder: Path) -> ctypes.CDLL:
    """Compile one file of kernels for this host, once for each folder."""
    library = folder / f"{source.stem}.so"
    if not library.exists():
        _compile(source, library)
    return ctypes.CDLL(str(library))


def _compile(source: Path, library: Path) -> None:
    text = CLOCK_READERS.sub("", source.read_text())
    whole = library.with_suffix(".cpp")
    launchers = (launcher(name, parameters) for name, parameters in KERNEL.findall(text))
    whole.write_text('#include "kernels_on_host.h"\n' + text + "".join(launchers))
    flags = ("-O0", "-shared", "-fPIC", "-w", "-include", "cmath", "-D__expf=expf", "-D__logf=logf")
    subprocess.run([str(COMPILER), *flags, f"-I{Path(__file__).parent}", "-o", library, whole], check=True)


class HostModule(Module):
    """Kernels of one source."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def launch(self, kernel: str, threads: int, arguments: Sequence[Argument], *, block_threads: int = 128) -> None:
        values = [(kind or ctypes.c_void_p)(value) for value, kind in arguments]
        blocks = -(-threads // block_threads)
        getattr(self._library, f"launch_{kernel}")(ctypes.c_uint(blocks), ctypes.c_uint(block_threads), *values)


class HostDevice(Device):
    """Memory and kernels of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[int, Any] = {}

    @property
    def name(self) -> str:
        return "host"

    @property
    def sm_count(self) -> int:
        return 4

    @property
    def l2_bytes(self) -> int:
        return 1 << 16

    def allocate(self, amount_bytes: int) -> int:
        memory = ctypes.create_string_buffer(amount_bytes + 256)
        address = (ctypes.addressof(memory) + 255) // 256 * 256
        self._held[address] = memory
        return address

    def write(self, address: int, values: array[Any]) -> None:
        host, count = values.buffer_info()
        ctypes.memmove(address, host, count * values.itemsize)

    def read(self, address: int, values: array[Any]) -> None:
        host, count = values.buffer_info()
        ctypes.memmove(host, address, count * values.itemsize)

    def synchronize(self) -> None:
        pass

    def mark(self) -> None:
        pass

    def wait_for(self, mark: Any) -> None:
        pass

    def load(self, ptx: bytes) -> Module:
        source = next(path for path in ROOM.rglob("*.cu") if path.with_suffix(".ptx").read_bytes() == ptx)
        return HostModule(build(source, self._folder))


class HostRun(WorkloadRun):
    """A workload's run on such a device."""

    def __init__(self, workload: str, folder: Path) -> None:
        self.workload = workload
        self.began_at_seconds = 0.0
        self._began_seconds = 0.0
        self.device = HostDevice(folder)
        self.kernels = Kernels(self.device)
        self.context = ContextSize(0, "assumed")
        self.memory = HeldMemory(self.device, self.elapsed_seconds)
