"""P4's bad neighbour: takes memory until the driver refuses, says with which error, and keeps running.

It refuses to die of the refusal: with pGPU only the request fails (P4), and this job shows it by going on.
"""

import argparse
import sys
from array import array

from pgpu.workloads.cuda_driver import CudaError
from pgpu.workloads.memory_pool import GRANULE_BYTES, MIB
from pgpu.workloads.workload_run import Run, wait_seconds

_BEAT_SECONDS = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Name what a user may choose."""
    parser.add_argument("--step-mib", type=int, default=64, help="memory of one allocation, in MiB")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long it goes on after the refusal")


def run(arguments: argparse.Namespace) -> int:
    """Take until refused, go on, and report; return the exit code."""
    this = Run("hog")
    scratch = this.memory.take(GRANULE_BYTES)
    error_number = _take_until_refused(this, arguments.step_mib * MIB)
    beats = _go_on(this, scratch, arguments.seconds)
    this.finish(error_number=error_number, beats_after_refusal=beats)
    return 0


def _take_until_refused(this: Run, step_bytes: int) -> int:
    """Return the driver's error number, after saying it on standard error."""
    while True:
        try:
            this.memory.take(step_bytes)
        except CudaError as error:
            sys.stderr.write(f"hog: holds {this.memory.held_bytes // MIB} MiB, then {error}; goes on\n")
            sys.stderr.flush()
            return error.number


def _go_on(this: Run, scratch: int, seconds: float) -> int:
    """Use the GPU in a regular beat until the time is over, and return the number of beats."""
    deadline_seconds = this.elapsed_seconds() + seconds
    beats = 0
    while this.elapsed_seconds() < deadline_seconds:
        this.check_round_trip(scratch, array("I", [beats]))
        this.kernels.spin(0.001, scratch)
        this.device.synchronize()
        beats += 1
        wait_seconds(_BEAT_SECONDS)
    return beats
