"""Copies pinned host memory to the device for a while, and back for a while: how fast the link between them is.

The fastest copies count, by the device's clock: whatever made others slower was the host. One direction after the other; it
refuses to measure both at once, which no part of pgpu does.
"""

import argparse
from collections.abc import Callable

from pgpu.workloads.memory_pool import MIB
from pgpu.workloads.workload_run import Run

_BUFFER_BYTES = 8 * MIB
"""Tens of microseconds at the least: starting a copy takes few."""

_COPIES = 4
"""Timed together."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Name what a user may choose."""
    parser.add_argument("--seconds", type=float, default=1.0, help="how long in each direction (1)")


def run(arguments: argparse.Namespace) -> int:
    """Copy until the time is over; return the exit code."""
    this = Run("link")
    address, host = this.memory.take(_BUFFER_BYTES), this.device.pinned(_BUFFER_BYTES)
    to_device = _fastest(this, lambda: this.device.begin_copy_in(address, host, _BUFFER_BYTES), arguments.seconds)
    to_host = _fastest(this, lambda: this.device.begin_copy_out(host, address, _BUFFER_BYTES), arguments.seconds)
    this.finish(
        size_bytes=_BUFFER_BYTES,
        to_device_bytes_per_second=round(_COPIES * _BUFFER_BYTES / to_device),
        to_host_bytes_per_second=round(_COPIES * _BUFFER_BYTES / to_host),
    )
    return 0


def _fastest(this: Run, copy: Callable[[], None], seconds: float) -> float:
    """Return the shortest time of some copies in seconds."""
    until_seconds = this.elapsed_seconds() + seconds

    def several() -> None:
        for _ in range(_COPIES):
            copy()

    several()
    shortest = float("inf")
    while shortest == float("inf") or this.elapsed_seconds() < until_seconds:
        shortest = min(shortest, this.device.seconds_of(several))
    return shortest
