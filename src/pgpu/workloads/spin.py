"""Keeps a GPU busy for a known time: kernels of a given length, one after the other.

It refuses to count time that no kernel ran: what is reported is the kernels' own clock where they compute.
"""

import argparse
from array import array

from pgpu.workloads.workload_run import Run

_SCRATCH_BYTES = 1 << 21
_NANOSECONDS = 1_000_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Name what a user may choose."""
    parser.add_argument("--kernel-ms", type=float, default=1.0, help="GPU time of a kernel, in milliseconds")
    parser.add_argument("--launches", type=int, default=1000, help="kernels to run")


def run(arguments: argparse.Namespace) -> int:
    """Launch, wait for each kernel, and report; return the exit code."""
    this = Run("spin")
    elapsed_address = this.memory.take(_SCRATCH_BYTES)
    is_computed = this.kernels.compute_here(elapsed_address)
    gpu_nanoseconds = 0
    elapsed = array("Q", [0])
    began_seconds = this.elapsed_seconds()
    for _ in range(arguments.launches):
        this.kernels.spin(arguments.kernel_ms / 1000, elapsed_address)
        this.device.read(elapsed_address, elapsed)
        gpu_nanoseconds += elapsed[0]
    this.finish(
        launches=arguments.launches,
        kernel_seconds=gpu_nanoseconds / _NANOSECONDS if is_computed else None,
        compute_seconds=round(this.elapsed_seconds() - began_seconds, 6),
        computed=is_computed,
    )
    return 0
