"""A program of the sharing storm: launches kernels for a while, looks that its memory stays what it wrote, and tells both.

It is started as `python3 FILE SECONDS MIB`, in a container too, and needs nothing but Python. How often it has launched and how
far it has come stands in the file STORM_FILE, which outlives any death. STORM_CHILDREN processes of the same slice do the same
beside it, each in a file of its own; whoever kills one of them harms the others not.
"""

import ctypes
import mmap
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

PROGRESS = struct.Struct("<QQ")
"""Launches, and a stage."""

BEGAN, WORKS, WHOLE = 0, 1, 2
"""Stages: started; has its memory and launches; ran to its end."""

_KERNEL_NS = 3_000_000
_WRITTEN_BYTES = 4096
_LOOK_EVERY = 16
_PTX = b"""// pgpu.cost spin argument=0 ns_per_unit=1
.version 7.0
.target sm_60
.address_size 64
.visible .entry spin(.param .u64 ns)
{
 ret;
}
"""


class Cuda:
    """The driver, each of whose refusals ends the program with its name."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        """Call, or leave with one line that says what was refused and why."""
        code = getattr(self._driver, name)(*arguments)
        if code != 0:
            words = ctypes.c_char_p()
            self._driver.cuGetErrorName(code, ctypes.byref(words))
            raise SystemExit(f"{name}: {(words.value or b'').decode()} ({code})")

    def spin_kernel(self) -> ctypes.c_void_p:
        """Load the kernel."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), _PTX)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"spin")
        return function


def work(seconds: float, size_mib: int) -> None:
    """Hold this much memory and launch for so long."""
    progress = _progress(Path(os.environ["STORM_FILE"]))
    cuda = Cuda()
    memory, kernel = ctypes.c_uint64(), cuda.spin_kernel()
    cuda.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size_mib << 20))
    cost = ctypes.c_uint64(_KERNEL_NS)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(cost))
    until_seconds, count, written = time.monotonic() + seconds, 0, None
    while time.monotonic() < until_seconds:
        cuda.call("cuLaunchKernel", kernel, 100, 1, 1, 128, 1, 1, 0, None, parameters, None)
        cuda.call("cuCtxSynchronize")
        if count % _LOOK_EVERY == 0:
            written = _look(cuda, memory, written, count)
        count += 1
        progress[:] = PROGRESS.pack(count, WORKS)
    progress[:] = PROGRESS.pack(count, WHOLE)


def _look(cuda: Cuda, memory: ctypes.c_uint64, written: "int | None", count: int) -> int:
    """See that what was written last is there, and write something else."""
    seen = ctypes.c_ubyte()
    if written is not None:
        cuda.call("cuMemcpyDtoH_v2", ctypes.byref(seen), memory, ctypes.c_size_t(1))
        if seen.value != written:
            raise SystemExit(f"its memory changed from {written} to {seen.value}")
    cuda.call("cuMemsetD8_v2", memory, count // _LOOK_EVERY % 251, ctypes.c_size_t(_WRITTEN_BYTES))
    return count // _LOOK_EVERY % 251


def _progress(path: Path) -> mmap.mmap:
    with path.open("w+b") as file:
        file.write(PROGRESS.pack(0, BEGAN))
        file.flush()
        return mmap.mmap(file.fileno(), PROGRESS.size)


def main() -> None:
    """Start the others, work, and wait for them."""
    words = [sys.executable, __file__, *sys.argv[1:]]
    file, count = os.environ["STORM_FILE"], int(os.environ.get("STORM_CHILDREN", "0"))
    environments = [{**os.environ, "STORM_FILE": f"{file}.{at}", "STORM_CHILDREN": "0"} for at in range(count)]
    children = [subprocess.Popen(words, env=environment) for environment in environments]
    work(float(sys.argv[1]), int(sys.argv[2]))
    for child in children:
        child.wait()


if __name__ == "__main__":
    main()
