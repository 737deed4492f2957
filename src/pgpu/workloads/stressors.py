"""Workloads that use one resource for a known time: device memory, the link to the host, or compute time."""

import argparse
import sys
from array import array
from collections.abc import Callable

from pgpu.workloads.cuda_driver import CudaError
from pgpu.workloads.workload_run import GRANULE_BYTES, MIB, WorkloadRun, wait_seconds

_BEAT_SECONDS = 0.1
# A copy takes at least tens of microseconds, and its start only a few.
_COPY_BYTES = 8 * MIB

# Timed together.
_COPIES = 4

_NANOSECONDS = 1_000_000_000


class Hog:
    """P4's bad neighbour: allocates memory until the driver refuses, reports the error, and keeps running.

    With pGPU only the request fails (P4); the program shows that it can go on.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--step-mib", type=int, default=64, help="memory of one allocation, in MiB")
        parser.add_argument("--seconds", type=float, default=5.0, help="how long it goes on after the refusal")

    def run(self, arguments: argparse.Namespace) -> int:
        """Allocate until refused, go on, and report; return the exit code."""
        this = WorkloadRun("hog")
        scratch = this.memory.take(GRANULE_BYTES)
        while True:
            try:
                this.memory.take(arguments.step_mib * MIB)
            except CudaError as error:
                sys.stderr.write(f"hog: holds {this.memory.held_bytes // MIB} MiB, then {error}; goes on\n")
                sys.stderr.flush()
                error_number = error.number
                break
        deadline_seconds = this.elapsed_seconds() + arguments.seconds
        beats = 0
        while this.elapsed_seconds() < deadline_seconds:
            this.check_round_trip(scratch, array("I", [beats]))
            this.kernels.spin(0.001, scratch)
            this.device.synchronize()
            beats += 1
            wait_seconds(_BEAT_SECONDS)
        this.finish(error_number=error_number, beats_after_refusal=beats)
        return 0


class Link:
    """Copies pinned host memory to the device for a while, then back: the bandwidth of the link between them.

    The fastest copies count, by the device's clock, since only the host makes others slower. The directions are measured one
    after the other, as pgpu never copies in both at once.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seconds", type=float, default=1.0, help="how long in each direction (1)")

    def run(self, arguments: argparse.Namespace) -> int:
        """Copy until the time is over; return the exit code."""
        this = WorkloadRun("link")
        address, host = this.memory.take(_COPY_BYTES), this.device.allocate_pinned(_COPY_BYTES)
        to_device = _fastest(this, lambda: this.device.begin_copy_in(address, host, _COPY_BYTES), arguments.seconds)
        to_host = _fastest(this, lambda: this.device.begin_copy_out(host, address, _COPY_BYTES), arguments.seconds)
        this.finish(
            size_bytes=_COPY_BYTES,
            to_device_bytes_per_second=round(_COPIES * _COPY_BYTES / to_device),
            to_host_bytes_per_second=round(_COPIES * _COPY_BYTES / to_host),
        )
        return 0


def _fastest(this: WorkloadRun, copy: Callable[[], None], seconds: float) -> float:
    """Return the shortest time of some copies in seconds."""
    until_seconds = this.elapsed_seconds() + seconds

    def several() -> None:
        for _ in range(_COPIES):
            copy()

    several()  # Not timed: the first copy includes one-time work of the driver.
    shortest = float("inf")
    while shortest == float("inf") or this.elapsed_seconds() < until_seconds:
        shortest = min(shortest, this.device.seconds_of(several))
    return shortest


class Spin:
    """Keeps a GPU busy for a known time: kernels of a given length, one after the other.

    The reported time is the kernels' own clock, if kernels compute on this device.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--kernel-ms", type=float, default=1.0, help="GPU time of a kernel, in milliseconds")
        parser.add_argument("--launches", type=int, default=1000, help="kernels to run")

    def run(self, arguments: argparse.Namespace) -> int:
        """Launch, wait for each kernel, and report; return the exit code."""
        this = WorkloadRun("spin")
        elapsed_address = this.memory.take(GRANULE_BYTES)
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
