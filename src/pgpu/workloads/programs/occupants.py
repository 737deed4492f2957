"""Neighbours that take the multiprocessors themselves: their arithmetic, or room for threads.

`fma_chains` keeps all lanes busy with few threads; `crowd` fills a part of all room with threads that wait. They refuse to
touch memory, so that what a program loses beside one it lacks itself.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgpu.workloads.cuda_driver import Argument, Device
from pgpu.workloads.memory_pool import GRANULE_BYTES
from pgpu.workloads.programs.antagonist_loop import LAUNCH_SECONDS, add_usual_arguments, take
from pgpu.workloads.workload_run import Run

BLOCK_THREADS = 512
"""Four for each lane of a multiprocessor, and a half, a third or a quarter of its room."""

_MOST_SHARE_PERCENT = 100
_NANOSECONDS = 1_000_000_000


def one_block_each(device: Device) -> int:
    """Return how many blocks stand one on each multiprocessor."""
    return device.sm_count


def all_room(device: Device) -> int:
    """Return how many blocks a whole GPU holds at once."""
    return device.sm_count * (device.threads_per_sm // BLOCK_THREADS)


@dataclass(frozen=True, slots=True)
class Occupant:
    """One of the two as a workload of the command line."""

    kernel: str
    whole: Callable[[Device], int]
    """How many blocks take it all."""

    arguments: Callable[[int, int], Sequence[Argument]]
    """Of an amount and the address of a word that stays as it is."""

    amount: int | None
    """Of each launch; None is what takes long enough."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Name what a user may choose."""
        add_usual_arguments(parser, usual_percent=_MOST_SHARE_PERCENT)

    def run(self, arguments: argparse.Namespace) -> int:
        """Take the resource until the time is over; return the exit code."""
        this = Run(self.kernel)
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


FMA_CHAINS = Occupant(
    "fma_chains", one_block_each, lambda rounds, sink: [(rounds, ctypes.c_uint), (sink, None)], amount=None
)
CROWD = Occupant(
    "crowd",
    all_room,
    lambda nanoseconds, _: [(nanoseconds, ctypes.c_ulonglong)],
    amount=round(LAUNCH_SECONDS * _NANOSECONDS),
)
