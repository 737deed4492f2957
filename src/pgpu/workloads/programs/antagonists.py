"""Antagonists: neighbours that use up one resource, so that the slowdown of a program beside one shows its demand.

`l2_sweep` reads as many bytes as the L2 cache holds, over and over; `dram_stream` reads memory that no cache holds. By default
both run on a tenth of the multiprocessors, one block on each. `fma_chains` keeps all arithmetic lanes busy with few threads;
`crowd` fills a share of the room for threads with threads that wait; both use no memory. Launches take about the same time, and
some are always queued ahead, until the time is over.

Source: sensitivity by an antagonist is Bubble-Up's (Mars et al., MICRO 2011).
"""

from __future__ import annotations

import argparse
import ctypes
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgpu.workloads.cuda_driver import Argument, Device, Module
from pgpu.workloads.kernels import Filling
from pgpu.workloads.workload_run import GRANULE_BYTES, MIB, WorkloadRun

LAUNCH_SECONDS = 0.002
"""Duration of a launch: short beside a time slice, long beside the cost of a launch."""

_LAUNCHES_AHEAD = 4
_MOST_AT_ONCE = 1 << 30
_TRIES = 3
BLOCK_THREADS = 512
"""Four for each arithmetic lane of a multiprocessor, and a half, a third or a quarter of its room."""

_MOST_SHARE_PERCENT = 100
_NANOSECONDS = 1_000_000_000
_QUAD_BYTES = 16
_SECTOR_BYTES = 32
# Multiple of the L2 cache's size that is read before an address is read again.
_MEMORY_IN_CACHES = 8


@dataclass(frozen=True, slots=True)
class Done:
    """The work of an antagonist."""

    amount: int
    """Sum of its launches' amounts."""

    seconds: float


def add_usual_arguments(parser: argparse.ArgumentParser, *, usual_percent: int) -> None:
    """Add the options of all antagonists."""
    parser.add_argument("--seconds", type=float, default=10.0, help="how long (10)")
    parser.add_argument(
        "--sms-percent", type=int, default=usual_percent, help=f"share of the multiprocessors ({usual_percent})"
    )


def take(this: WorkloadRun, launch: Callable[[int], None], seconds: float, amount: int | None = None) -> Done:
    """Write `running` to standard error, and launch until the time is over.

    Args:
        this: The program.
        launch: Launches work of an amount.
        seconds: How long.
        amount: Of each launch; None: measured, so that a launch takes `LAUNCH_SECONDS`.
    """
    amount = amount or _amount_for(this, launch)
    sys.stderr.write(f"{this.workload}: running\n")
    sys.stderr.flush()
    return launch_repeatedly(this, lambda: launch(amount), seconds, amount)


def launch_repeatedly(this: WorkloadRun, start: Callable[[], None], seconds: float, amount: int) -> Done:
    """Start the same work repeatedly; the next launches are queued before the last ones are waited for, so the GPU is never idle.

    Args:
        this: The program.
        start: Launches an amount.
        seconds: How long.
        amount: Of each start.
    """
    began_seconds = this.elapsed_seconds()
    done = 0
    last = None
    while this.elapsed_seconds() - began_seconds < seconds:
        for _ in range(_LAUNCHES_AHEAD):
            start()
        done += _LAUNCHES_AHEAD * amount
        mark = this.device.mark()
        if last is not None:
            this.device.wait_for(last)
        last = mark
    this.device.synchronize()
    return Done(done, this.elapsed_seconds() - began_seconds)


def _amount_for(this: WorkloadRun, launch: Callable[[int], None]) -> int:
    """Return a power of two with which a launch takes at least `LAUNCH_SECONDS`."""
    amount = 1
    while amount < _MOST_AT_ONCE:
        # The fastest of some launches, since a busy host makes single ones slow.
        shortest_seconds = math.inf
        for _ in range(_TRIES):
            began_seconds = this.elapsed_seconds()
            launch(amount)
            this.device.synchronize()
            shortest_seconds = min(shortest_seconds, this.elapsed_seconds() - began_seconds)
        if shortest_seconds >= LAUNCH_SECONDS:
            break
        amount *= 2
    return amount


def _l2_bytes(device: Device) -> int:
    return device.l2_bytes or 4 * MIB


def _memory_bytes(device: Device) -> int:
    return max(64 * MIB, _MEMORY_IN_CACHES * _l2_bytes(device))


@dataclass(frozen=True, slots=True)
class MemoryAntagonist:
    """Reads as much as the L2 cache holds (`l2_sweep`), or memory that no cache holds (`dram_stream`)."""

    kernel: str
    usual_bytes: Callable[[Device], int]
    block_threads: int

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--size-mib", type=float, help="buffer, in MiB (by the size of this GPU's L2 cache)")
        add_usual_arguments(parser, usual_percent=10)

    def run(self, arguments: argparse.Namespace) -> int:
        """Use the resource until the time is over; return the exit code."""
        this = WorkloadRun(self.kernel)
        size_bytes = round((arguments.size_mib or 0.0) * MIB) // _SECTOR_BYTES * _SECTOR_BYTES
        size_bytes = size_bytes or self.usual_bytes(this.device)
        blocks = blocks_for(this.device.sm_count, arguments.sms_percent)
        sweep = Sweep(this, self.kernel, size_bytes, blocks, self.block_threads)
        done = take(this, sweep.launch, arguments.seconds)
        this.finish(
            size_bytes=size_bytes,
            blocks=blocks,
            sweeps=done.amount,
            compute_seconds=round(done.seconds, 6),
            bytes_per_second=round(done.amount * size_bytes / done.seconds) if done.seconds else None,
        )
        return 0


L2_SWEEP = MemoryAntagonist("l2_sweep", _l2_bytes, 512)
"""Its blocks leave room for another program's on each multiprocessor."""

DRAM_STREAM = MemoryAntagonist("dram_stream", _memory_bytes, 1024)
"""Few multiprocessors, with the most requests that one block can have."""


def blocks_for(sm_count: int, percent: int) -> int:
    """Return the number of blocks for this share of the multiprocessors, one on each and at least one."""
    return max(1, sm_count * min(percent, 100) // 100)


class Sweep:
    """The kernel with its buffer `data` of zeros and the word `sink`, which it never changes."""

    def __init__(self, this: WorkloadRun, kernel: str, size_bytes: int, blocks: int, block_threads: int) -> None:
        self._kernel, self._blocks, self._block_threads = kernel, blocks, block_threads
        self.sink = this.memory.take(GRANULE_BYTES)
        self.data = this.memory.take(size_bytes)
        self._quads = size_bytes // _QUAD_BYTES
        self._module: Module = this.device.load((Path(__file__).parent / "antagonists.ptx").read_bytes())
        this.kernels.fill(self.data, Filling("f", size_bytes // 4), seed=0)
        this.device.synchronize()

    def launch(self, sweeps: int) -> None:
        """Read the buffer this many times."""
        arguments = [
            (self.data, None),
            (self._quads, ctypes.c_ulonglong),
            (sweeps, ctypes.c_uint),
            (self.sink, None),
        ]
        threads = self._blocks * self._block_threads
        self._module.launch(self._kernel, threads, arguments, block_threads=self._block_threads)


def one_block_each(device: Device) -> int:
    """Return one block for each multiprocessor."""
    return device.sm_count


def all_room(device: Device) -> int:
    """Return how many blocks the GPU runs at once."""
    return device.sm_count * (device.threads_per_sm // BLOCK_THREADS)


@dataclass(frozen=True, slots=True)
class ComputeAntagonist:
    """Keeps all arithmetic lanes busy (`fma_chains`), or fills the room for threads (`crowd`)."""

    kernel: str
    whole: Callable[[Device], int]
    """Returns the number of blocks for all of the resource."""

    arguments: Callable[[int, int], Sequence[Argument]]
    """Makes the kernel's arguments from an amount and the address of an unused word."""

    amount: int | None
    """Of each launch; None: measured."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_usual_arguments(parser, usual_percent=_MOST_SHARE_PERCENT)

    def run(self, arguments: argparse.Namespace) -> int:
        """Use the resource until the time is over; return the exit code."""
        this = WorkloadRun(self.kernel)
        sink = this.memory.take(GRANULE_BYTES)
        module = this.device.load((Path(__file__).parent / "occupants.ptx").read_bytes())
        percent = min(arguments.sms_percent, _MOST_SHARE_PERCENT)
        blocks = max(1, self.whole(this.device) * percent // _MOST_SHARE_PERCENT)

        def launch(amount: int) -> None:
            words = self.arguments(amount, sink)
            module.launch(self.kernel, blocks * BLOCK_THREADS, words, block_threads=BLOCK_THREADS)

        done = take(this, launch, arguments.seconds, self.amount)
        this.finish(blocks=blocks, amount=done.amount, compute_seconds=round(done.seconds, 6))
        return 0


FMA_CHAINS = ComputeAntagonist(
    "fma_chains", one_block_each, lambda rounds, sink: [(rounds, ctypes.c_uint), (sink, None)], amount=None
)
CROWD = ComputeAntagonist(
    "crowd",
    all_room,
    lambda nanoseconds, _: [(nanoseconds, ctypes.c_ulonglong)],
    amount=round(LAUNCH_SECONDS * _NANOSECONDS),
)
