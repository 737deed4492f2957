"""Several jobs that share the time of one simulated GPU, without pgpu's engine: limit files, boards, shim and load.

What each job really got is the simulated driver's own account, which no job can change.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.native_clients import client_path
from tests.slice_world import GIB, SliceWorld
from tests.waiting import DEADLINE_SECONDS, until

from pgpu.enforcement import limit_file, meter
from pgpu.enforcement.board import BOARD_BYTES, BoardGpu, read_board
from pgpu.enforcement.compute_word import ComputeWord, Hold
from pgpu.gpu.simulated import CONFIGURATION_NAME
from pgpu.gpu.simulated_activity import read_device_times, read_lost_ns

LAUNCHING = """
text = b".version 7.0\\n.target sm_60\\n.address_size 64\\n.visible .entry nothing()\\n{\\n ret;\\n}\\n"
cu.begin()
module, kernel = c_void_p(), c_void_p()
cu.call("cuModuleLoadData", byref(module), text)
cu.call("cuModuleGetFunction", byref(kernel), module, b"nothing")
def launch():
    return cu.code("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
assert launch() == 0
"""
"""Begins a program that launches with `launch()`, and has done so."""

_PERIOD_NS = 100_000_000
ENOUGH_NS = 250_000_000
"""GPU time after which a share can be judged: several periods of the smallest that is asked for here."""

SLACK = 0.04
"""Of the GPU's time: what starting, and a measurement's end, may cost."""


def shared(share: float = 0.0, weight: int = 100, *, is_strict: bool = False) -> ComputeWord:
    """The word of a job in a time-sliced GPU."""
    return ComputeWord(share, weight, is_measured=True, is_shared=True, is_strict=is_strict)


def divided(user_share: float, weight: int = 100) -> ComputeWord:
    """The word of a job without a share beside jobs of other users."""
    return ComputeWord(weight=weight, is_measured=True, user_share=user_share)


@dataclass
class Load:
    """One process that keeps the GPU busy."""

    process: "subprocess.Popen[str]"

    def finish(self) -> dict[str, Any]:
        """End it and return what it did."""
        output, errors = self.process.communicate(timeout=DEADLINE_SECONDS)
        assert self.process.returncode == 0, errors
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.communicate()


class ComputeJob(SliceWorld):
    """One job; its GPUs are those of the world."""

    def __init__(self, directory: Path, simulated: Path, uuids: Sequence[str], board: Path, name: str) -> None:
        self.directory = directory
        self.simulated = simulated
        self.uuids = list(uuids)
        self.limits = [8 * GIB] * len(uuids)
        self.environment = {}
        directory.mkdir()
        self._make_files()
        self.time = board / name
        self.time.write_bytes(bytes(BOARD_BYTES))
        (directory / "time").symlink_to(self.time)
        (directory / "board").symlink_to(board)

    def share(self, word: ComputeWord, gpu: int = 0) -> None:
        limit_file.set_compute_word(self.limit, self.uuids[gpu], word)

    def hold(self, gpu: int = 0, *, is_held: bool) -> ComputeWord:
        return limit_file.set_held(self.limit, self.uuids[gpu], Hold.TURNS, is_held=is_held)

    def told(self, gpu: int = 0) -> BoardGpu:
        return read_board(self.time, meter.in_flight_until_ns(self.usage))[gpu]

    def load(self, *words: str, client: str = "compute-load", is_shimmed: bool = True) -> Load:
        """Start a load, without pgpu unless it is shimmed, and return once it is about to begin."""
        process = subprocess.Popen(
            [str(client_path("compute", client)), *words],
            env=self.environment_for(is_shimmed=is_shimmed),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        # Byte by byte from the pipe: a buffered read would take the report of a short load, which `communicate` then misses.
        line = b""
        while not line.endswith(b"\n") and (byte := os.read(process.stdout.fileno(), 1)):
            line += byte
        if line != b"ready\n":
            raise AssertionError(process.stderr.read())
        return Load(process)


@dataclass
class ComputeWorld:
    """The simulated GPUs and the board that the jobs share."""

    directory: Path
    gpu_count: int = 1
    configuration: str = ""
    jobs: list[ComputeJob] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.directory / "board").mkdir()
        (self.directory / "first").mkdir()
        self._first = SliceWorld(self.directory / "first", [8 * GIB] * self.gpu_count)
        with (self._first.simulated / CONFIGURATION_NAME).open("a") as file:
            file.write(f"{self.configuration}\n")

    def job(self, word: ComputeWord | None = None, *, user: int | None = None) -> ComputeJob:
        """Without a user, the job is of one of its own."""
        number = len(self.jobs)
        name = f"{number if user is None else user:08x}{number:016x}"
        job = ComputeJob(
            self.directory / f"job{number}", self._first.simulated, self._first.uuids, self.directory / "board", name
        )
        for gpu in range(self.gpu_count):
            if word is not None:
                job.share(word, gpu)
        self.jobs.append(job)
        return job

    def got_ns(self, pids: Sequence[int], gpu: int = 0) -> dict[int, int]:
        """What each process has really had of a GPU."""
        slots = {slot.pid: number for number, slot in self._slots()}
        times = {each.slot: each.consumed_ns for each in read_device_times(self._first.simulated, gpu)}
        return {pid: times.get(slots[pid], 0) for pid in pids}

    def lost_ns(self, gpu: int = 0) -> int:
        """What nobody has had of a GPU's time although it was wanted."""
        return read_lost_ns(self._first.simulated, gpu)

    def facts(self) -> dict[str, str]:
        """What gpus.conf tells of the last GPU."""
        lines = (self._first.simulated / CONFIGURATION_NAME).read_text("utf-8").splitlines()
        return {key: value for key, _, value in (line.partition("=") for line in lines) if value}

    def _slots(self) -> list[tuple[int, meter.UsedSlot]]:
        return list(enumerate(meter.held_slots(self._first.simulated / "memory")))


@contextmanager
def a_compute_world(gpu_count: int = 1, configuration: str = "") -> Iterator[ComputeWorld]:
    """`configuration`: a line more for the last GPU in gpus.conf."""
    with tempfile.TemporaryDirectory(prefix="pgpu-test-", dir="/dev/shm") as directory:
        yield ComputeWorld(Path(directory), gpu_count, configuration)


def until_used(world: ComputeWorld, loads: Sequence[Load], enough_ns: int = ENOUGH_NS) -> int:
    """Wait until these processes have had that much together; return what they have had."""
    pids = [load.process.pid for load in loads]
    until(lambda: sum(world.got_ns(pids).values()) >= enough_ns, lambda: "the processes got no GPU time")
    return sum(world.got_ns(pids).values())


def most_ns(share: float, began_ns: int, longest_ns: int) -> float:
    """What a share allows since then: what was saved up before, and a debt of one launch."""
    passed_ns = time.monotonic_ns() - began_ns
    return (share + SLACK) * passed_ns + 2 * share * _PERIOD_NS + longest_ns
