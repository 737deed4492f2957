"""A simulated GPU in a directory of its own, with programs run on it alone, in turns, or under its MPS."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pgpu.enforcement.mps import find_control
from pgpu.enforcement.mps.control import PIPE_VARIABLE, MpsControl
from pgpu.gpu.products import GpuModel
from pgpu.gpu.simulated import simulated_uuid, start_simulated
from pgpu.libraries import SIMULATED_CUDA, library_path

_CLIENT = Path(__file__).parent / "client.py"
_TMPFS = "/dev/shm"  # noqa: S108 - the state of simulated GPUs lies on a tmpfs
_WARM_UP = 0.15
"""Share of the time that is left out as warm-up: not all programs run yet."""


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel, and how it is run."""

    name: str
    ptx: str
    entry: str
    blocks: int
    threads: int
    arguments: tuple[int, ...]
    launches: int
    """In each iteration."""

    pause_seconds: float
    """On the host, before each iteration."""

    buffers_bytes: tuple[int, ...] = ()
    """Device memory; its addresses are the kernel's first arguments; `arguments` are the rest."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One program's run."""

    iteration_seconds: float
    kernel_seconds: float
    """Of an iteration."""

    iterations: int
    facts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Stage:
    """One GPU."""

    model: GpuModel
    directory: Path
    control: MpsControl

    def run(
        self,
        programs: Sequence[Program],
        seconds: float,
        *,
        under_mps: bool = False,
        carveout_percent: int | None = None,
        library: str | None = None,
    ) -> list[Measured]:
        """Run programs at the same time, each for so long, and return how fast each was."""
        environment = {**os.environ, "PGPU_SIMGPU_DIR": str(self.directory)}
        environment.pop(PIPE_VARIABLE, None)
        if under_mps:
            environment[PIPE_VARIABLE] = str(self.control.pipe_directory)
        driver = library or str(library_path(SIMULATED_CUDA))
        children = [_start(program, driver, seconds, carveout_percent, environment) for program in programs]
        try:
            for child in children:
                _expect_ready(child)
            for child in children:
                _send_off(child)
            return [_measured(child, seconds) for child in children]
        finally:
            for child in children:
                child.kill()
                child.wait()


@contextmanager
def staged(model: GpuModel, folder: Path | None = None) -> Iterator[Stage]:
    """Make a GPU with an MPS control daemon, and take both away."""
    parent = Path(tempfile.mkdtemp(prefix="advice-", dir=folder or _TMPFS))
    gpu, pipe, log = parent / "gpu", parent / "pipe", parent / "log"
    try:
        start_simulated(gpu, model, 1)
        pipe.mkdir()
        log.mkdir()
        program = find_control(is_simulated=True)
        if program is None:
            raise RuntimeError("there is no simulated MPS")
        control = MpsControl(program, pipe, log, simulated_uuid(gpu, 0), gpu)
        control.start()
        try:
            yield Stage(model, gpu, control)
        finally:
            control.quit(1)
    finally:
        shutil.rmtree(parent, ignore_errors=True)


def _start(
    program: Program, library: str, seconds: float, carveout_percent: int | None, environment: dict[str, str]
) -> subprocess.Popen[str]:
    spec = {**asdict(program), "library": library, "seconds": seconds, "carveout_percent": carveout_percent}
    return subprocess.Popen(
        [sys.executable, "-S", "-E", str(_CLIENT), json.dumps(spec)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def _expect_ready(child: subprocess.Popen[str]) -> None:
    line = child.stdout.readline() if child.stdout else ""
    if line != "ready\n":
        raise RuntimeError(f"a program did not come up: {line!r}")


def _send_off(child: subprocess.Popen[str]) -> None:
    if child.stdin:
        child.stdin.write("go\n")
        child.stdin.flush()


def _measured(child: subprocess.Popen[str], seconds: float) -> Measured:
    """Read a program's result and keep the time in which all programs ran: it may have run alone afterwards."""
    text, _ = child.communicate(timeout=120)
    found: dict[str, Any] = json.loads(text)
    ends, took = found.pop("ends"), found.pop("kernel_seconds")
    whole = [index for index, end in enumerate(ends) if end <= seconds] or [0]
    start = ends[whole[-1]] * _WARM_UP
    kept = [index for index in whole if index > 0 and ends[index - 1] >= start] or [whole[-1]]
    first = ends[kept[0] - 1] if kept[0] > 0 else 0.0
    return Measured(
        iteration_seconds=(ends[kept[-1]] - first) / len(kept),
        kernel_seconds=statistics.fmean(took[index] for index in kept),
        iterations=len(kept),
        facts={name: int(value) for name, value in found.items()},
    )
