"""Neighbours that take one resource and leave the rest alone: what a program loses beside one tells what it needs.

`l2_sweep` touches as many bytes as the L2 cache holds, over and over; `dram_stream` reads memory that no cache holds.
Without other words both run on a tenth of the multiprocessors: one block for each. They refuse to take more memory than their
buffer.

Source: the probes of "pgpu advise"; sensitivity by an antagonist is Bubble-Up's (Mars et al., MICRO 2011).
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pgpu.workloads.cuda_driver import Device, Module
from pgpu.workloads.kernels import Filling
from pgpu.workloads.memory_pool import GRANULE_BYTES, MIB
from pgpu.workloads.programs.antagonist_loop import add_usual_arguments, take
from pgpu.workloads.workload_run import Run

_QUAD_BYTES = 16
_SECTOR_BYTES = 32
_MEMORY_IN_CACHES = 8
"""How many times the L2 cache's size is read from memory before an address comes again."""


def _l2_bytes(device: Device) -> int:
    return device.l2_bytes or 4 * MIB


def _memory_bytes(device: Device) -> int:
    return max(64 * MIB, _MEMORY_IN_CACHES * _l2_bytes(device))


@dataclass(frozen=True, slots=True)
class Antagonist:
    """One of the two as a workload of the command line."""

    kernel: str
    usual_bytes: Callable[[Device], int]
    block_threads: int

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Name what a user may choose."""
        parser.add_argument(
            "--size-mib", type=float, help="buffer, in MiB (what the name says, of this GPU's L2 cache)"
        )
        add_usual_arguments(parser, usual_percent=10)

    def run(self, arguments: argparse.Namespace) -> int:
        """Take the resource until the time is over; return the exit code."""
        this = Run(self.kernel)
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


L2_SWEEP = Antagonist("l2_sweep", _l2_bytes, 512)
"""Blocks that leave room for another program's on each multiprocessor."""

DRAM_STREAM = Antagonist("dram_stream", _memory_bytes, 1024)
"""Few multiprocessors, and as much from each as one block can ask for."""


def blocks_for(sm_count: int, percent: int) -> int:
    """Return how many blocks stand on this share of the multiprocessors, one on each and at least one."""
    return max(1, sm_count * min(percent, 100) // 100)


class Sweep:
    """The kernel with its buffer `data` of zeros, and the word `sink` that stays as it is."""

    def __init__(self, this: Run, kernel: str, size_bytes: int, blocks: int, block_threads: int) -> None:
        self._kernel, self._blocks, self._block_threads = kernel, blocks, block_threads
        self.sink = this.memory.take(GRANULE_BYTES)
        self.data = this.memory.take(size_bytes)
        self._quads = size_bytes // _QUAD_BYTES
        self._module: Module = this.device.load((Path(__file__).parent / "antagonists.ptx").read_bytes())
        this.kernels.fill(self.data, Filling("f", size_bytes // 4), seed=0)
        this.device.synchronize()

    def launch(self, sweeps: int) -> None:
        """Read the buffer so many times."""
        arguments = [
            (self.data, None),
            (self._quads, ctypes.c_ulonglong),
            (sweeps, ctypes.c_uint),
            (self.sink, None),
        ]
        threads = self._blocks * self._block_threads
        self._module.launch(self._kernel, threads, arguments, block_threads=self._block_threads)
