"""Programs that keep a simulated GPU busy with kernels of a given demand, and the device time that they got.

Times are the device's own (`consumed_ns`, `busy_ns`), never the test machine's: that may be slow.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.native_clients import library, preloading
from tests.waiting import until

from pgpu.enforcement.mps import MpsControl
from pgpu.gpu.catalog import parse_model
from pgpu.gpu.products import GpuModel
from pgpu.gpu.simulated import simulated_uuid, start_simulated
from pgpu.gpu.simulated_activity import DeviceTime, read_device_times
from pgpu.libraries import SIMULATED_CUDA, SIMULATED_MPS_CONTROL

_ROOT = Path(__file__).parent.parent
_PROGRAM = """
import json, sys, threading, time
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint64, c_void_p
from tests.cuda_session import *
cu = Session()
cu.begin()
kernels = {}
def load(directive):
    text = f"// pgpu.cost k {directive}\\n.version 6.0\\n.target sm_50\\n.address_size 64\\n.visible .entry k() {{ ret; }}\\n"
    module = cu.number("cuModuleLoadData", c_char_p(text.encode()))
    kernels[directive] = cu.number("cuModuleGetFunction", c_uint64(module), c_char_p(b"k"))
def launch(directive, blocks, threads, shared_bytes=0):
    if directive not in kernels:
        load(directive)
    cu.call("cuLaunchKernel", c_uint64(kernels[directive]), blocks, 1, 1, threads, 1, 1, shared_bytes, None, None, None)
def run(directive, blocks, threads, shared_bytes=0):
    launch(directive, blocks, threads, shared_bytes)
    cu.call("cuCtxSynchronize")
def carve(directive, percent):
    if directive not in kernels:
        load(directive)
    cu.call("cuFuncSetAttribute", c_uint64(kernels[directive]), 9, percent)
def keep_busy(directive, blocks, threads):
    load(directive)
    def work():
        cu.call("cuCtxSetCurrent", c_uint64(context))
        while True:
            for _ in range(20_000):  # on a slow machine, too, longer than anybody looks
                launch(directive, blocks, threads)
            cu.call("cuCtxSynchronize")
    context = cu.number("cuCtxGetCurrent")
    threading.Thread(target=work, daemon=True).start()
def used():
    free, total = c_size_t(), c_size_t()
    cu.call("cuMemGetInfo_v2", byref(free), byref(total))
    return total.value - free.value
def managed(size):
    return cu.number("cuMemAllocManaged", c_size_t(size), 1)
def prefetch(pointer, size, device):
    cu.call("cuMemPrefetchAsync", c_uint64(pointer), c_size_t(size), device, None)
    cu.call("cuCtxSynchronize")
for line in sys.stdin:
    try:
        print(json.dumps(eval(line)), flush=True)
    except Refused as refused:
        print(json.dumps({"refused": refused.code}), flush=True)
"""


@dataclass
class Worker:
    """A CUDA program with a context, which evaluates one expression a line."""

    process: subprocess.Popen[str]

    def ask(self, expression: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


@dataclass
class WorkWorld:
    """One simulated GPU and everything that runs on it."""

    directory: Path
    model: GpuModel
    stack: ExitStack
    added: Mapping[str, str]

    def worker(self, added: Mapping[str, str] | None = None) -> Worker:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "PGPU_SIM"))}
        kept |= {"LD_LIBRARY_PATH": str(library(SIMULATED_CUDA).parent), "PGPU_SIMGPU_DIR": str(self.directory)}
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            env=kept | preloading() | dict(self.added) | dict(added or {}),
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        worker = Worker(process)
        self.stack.callback(worker.end)
        assert worker.ask("1") == 1
        return worker

    def times(self) -> list[DeviceTime]:
        """In the order in which the programs began."""
        return read_device_times(self.directory, 0)

    def used_while(self, milliseconds: float) -> tuple[list[float], list[float]]:
        """Return the nanoseconds that each program consumes and is busy while the first is busy for so long."""
        until(lambda: all(time.consumed_ns > 0 and time.pending_ns > 0 for time in self.times()))
        before = self.times()
        until(lambda: self.times()[0].busy_ns - before[0].busy_ns >= milliseconds * 1e6)
        pairs = list(zip(before, self.times(), strict=True))
        consumed = [float(now.consumed_ns - then.consumed_ns) for then, now in pairs]
        busy = [float(now.busy_ns - then.busy_ns) for then, now in pairs]
        return consumed, busy


@contextmanager
def work_world(model: str, *, has_mps: bool = False) -> Iterator[WorkWorld]:
    with tempfile.TemporaryDirectory(prefix="pgpu-test-", dir="/dev/shm") as directory, ExitStack() as stack:
        place = Path(directory)
        found = parse_model(model)[0]
        start_simulated(place / "gpus", found, 1)
        added = {}
        if has_mps:
            for name in ("pipe", "log"):
                (place / name).mkdir()
            uuid = simulated_uuid(place / "gpus", 0)
            control = MpsControl(library(SIMULATED_MPS_CONTROL), place / "pipe", place / "log", uuid, place / "gpus")
            control.start()
            stack.callback(control.quit, 0)
            added = {"CUDA_MPS_PIPE_DIRECTORY": str(place / "pipe")}
        yield WorkWorld(place / "gpus", found, stack, added)
