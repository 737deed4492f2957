"""The benchmark's kernels: PTX with annotations for the simulated driver. Drawn at random, or given.

Nothing in `pgpu.advising` was fitted on them: the seed of the drawing is the only thing that chooses them.
"""

import random
from dataclasses import dataclass

from benchmarks.advice.stage import Program

from pgpu.gpu.products import GpuModel

_PTX = """.version 7.0
.target sm_52
.address_size 64
// pgpu.cost kernel {notes}
.visible .entry kernel()
{{
    ret;
}}
"""
_ITERATION_SECONDS = 0.020
_MOST_LAUNCHES = 100

LEAST_LAUNCH_SECONDS = 0.0004
"""Shorter kernels are not drawn: on a busy machine their launches, not they, would be measured."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn kernel, before its duration is measured."""

    name: str
    notes: str
    blocks: int
    threads: int
    pause_fraction: float
    """Of its time alone; 0 computes always."""

    def program(self, launch_seconds: float) -> Program:
        """Return a program with iterations of about the same length as all others.

        Args:
            launch_seconds: Of one launch alone.
        """
        launches = max(1, min(_MOST_LAUNCHES, round(_ITERATION_SECONDS / launch_seconds)))
        pause_seconds = launches * launch_seconds * self.pause_fraction / (1 - self.pause_fraction)
        return program(self.name, self.notes, self.blocks, self.threads, launches, pause_seconds)


def program(  # noqa: PLR0917 - what a launch is
    name: str, notes: str, blocks: int, threads: int, launches: int, pause_seconds: float = 0.0
) -> Program:
    """Make a program of one kernel."""
    return Program(name, _PTX.format(notes=notes), "kernel", blocks, threads, (), launches, pause_seconds)


def drawn(model: GpuModel, number: int, seed: int) -> Drawn:
    """Draw a kernel: its shape, and how much of the GPU's arithmetic, memory and caches it asks for.

    Each amount is drawn as a part of what the GPU does in some milliseconds, log-uniformly, so that any of them may be what
    the kernel is bound by, or none (then its threads' latency is). Half of them reuse much through L2 or L1.
    """
    chance = random.Random(f"{seed}/{model.slug}/{number}")
    threads = chance.choice([64, 128, 256, 512])
    resident = model.sm_count * model.capability.threads_per_sm
    blocks = max(1, round(resident * 10 ** chance.uniform(-1.3, 0.6) / threads))
    amounts = _Amounts(model, blocks * threads, 10 ** chance.uniform(-0.3, 0.8) / 1000)
    notes = [f"accesses={round(10 ** chance.uniform(1, 3.2))}"]
    notes.append(f"flop={amounts.flop(10 ** chance.uniform(-2, 0))}")
    notes.append(f"dram_bytes={amounts.bytes(10 ** chance.uniform(-2, 0))}")
    reuses = chance.choice(["", "", "l1", "l2"])
    if reuses == "l2":
        notes.append(f"l2_reads={amounts.bytes(_L2_SPEED * 10 ** chance.uniform(-0.7, 0.3))}")
        notes.append(f"l2_total_bytes={round(model.l2_bytes * chance.uniform(0.05, 1.2))}")
    if reuses == "l1":
        notes.append(f"l1_reads={amounts.bytes(_L2_SPEED * 10 ** chance.uniform(-0.7, 0.3))}")
        notes.append(f"l1_bytes={chance.choice([16, 32, 64, 128])}")
    pause = chance.choice([0.0, 0.0, 0.0, chance.uniform(0.1, 0.7)])
    return Drawn(f"{model.slug}-{number}", " ".join(notes), blocks, threads, pause)


_L2_SPEED = 3
"""About so many times faster than memory is L2."""


@dataclass(frozen=True, slots=True)
class _Amounts:
    """What each thread asks for so that all together take a part of a time on this GPU."""

    model: GpuModel
    threads: int
    seconds: float

    def flop(self, part: float) -> int:
        """Return each thread's operations."""
        whole = 2 * 128 * self.model.sm_count * self.model.sm_clock_mhz * 1e6 * self.seconds
        return max(1, round(whole * part / self.threads))

    def bytes(self, part: float) -> int:
        """Return each thread's bytes."""
        return max(1, round(self.model.bandwidth_bytes_per_second * self.seconds * part / self.threads))
