"""One run of a workload: its clock, its device, its memory, and the JSON line at its end.

The JSON line is the only output on standard output.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pgpu.workloads.cuda_driver import ContextSize, CudaError, Device, measure_context
from pgpu.workloads.kernels import Kernels

MIB = 1 << 20
GRANULE_BYTES = 2 * MIB
"""The driver maps device memory in pages of this size, so smaller allocations take as much."""

# When this program's code executed, before it loads the driver or waits for its start.
_EXECUTED_AT_SECONDS = time.time()

# Never set: a wait for it lasts as long as its timeout.
_NEVER = threading.Event()


class WorkloadError(Exception):
    """The workload failed; the message goes to standard error, and the exit code is 1."""


def wait_seconds(seconds: float) -> None:
    """Wait, in place of the host work of a real program, without using a core."""
    if seconds > 0:
        _NEVER.wait(seconds)


def wait_for_start_line() -> None:
    """Write `ready` to standard error and wait for a line on standard input, so that many can start at one moment."""
    sys.stderr.write("ready\n")
    sys.stderr.flush()
    sys.stdin.readline()


def wait_for_start_signal() -> None:
    """Write `ready` to standard error and wait for SIGUSR1: a start line for jobs whose standard input is not connected."""
    # Blocked before the line is written: a signal that arrives before the wait stays pending.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    sys.stderr.write("ready\n")
    sys.stderr.flush()
    signal.sigwait({signal.SIGUSR1})


def whole_granules(amount_bytes: int) -> int:
    """Round down to whole pages of the driver."""
    return max(0, amount_bytes) // GRANULE_BYTES * GRANULE_BYTES


@dataclass(slots=True)
class HeldMemory:
    """Memory of this process, its context included, with the time of each change; never freed before its end."""

    device: Device
    now_seconds: Callable[[], float]
    """Seconds since the workload began."""

    held_bytes: int = 0
    refusals: int = 0
    timeline: list[tuple[float, int]] = field(default_factory=list)
    """(seconds, bytes held from then on)."""

    addresses: list[int] = field(default_factory=list)

    def count(self, amount_bytes: int) -> None:
        """Count memory that the driver allocated by itself, such as the context."""
        self.held_bytes += amount_bytes
        self.timeline.append((round(self.now_seconds(), 4), self.held_bytes))

    def take(self, amount_bytes: int) -> int:
        """Allocate, and return the address.

        Raises:
            CudaError: Refused; counted in `refusals` if there is no room.
        """
        try:
            address = self.device.allocate(amount_bytes)
        except CudaError as error:
            self.refusals += error.is_out_of_memory
            raise
        self.addresses.append(address)
        self.count(amount_bytes)
        return address

    def try_take(self, amount_bytes: int) -> bool:
        """Allocate; return whether there was room."""
        try:
            self.take(amount_bytes)
        except CudaError as error:
            if not error.is_out_of_memory:
                raise
            return False
        return True


class WorkloadRun:
    """A workload from its first CUDA call to its result."""

    def __init__(self, workload: str) -> None:
        self.workload = workload
        self.began_at_seconds = time.time()
        self._began_seconds = time.monotonic()
        self.device = Device()
        self.kernels = Kernels(self.device)
        # After the kernels are loaded, since their code belongs to the context's memory.
        free_bytes, total_bytes = self.device.memory_bytes()
        self.context: ContextSize = measure_context(self.device.uuid, total_bytes - free_bytes)
        self.memory = HeldMemory(self.device, self.elapsed_seconds)
        self.memory.count(self.context.context_bytes)

    def elapsed_seconds(self) -> float:
        """Seconds since the workload began."""
        return time.monotonic() - self._began_seconds

    def check_round_trip(self, address: int, values: array[Any]) -> None:
        """Copy an array to the device and back.

        Raises:
            WorkloadError: The bytes differ.
        """
        self.device.write(address, values)
        returned = array(values.typecode, bytes(values.itemsize * len(values)))
        self.device.read(address, returned)
        if returned != values:
            raise WorkloadError("a copy to the device and back returned other bytes")

    def finish(self, *, error: str | None = None, **details: object) -> None:
        """Write the JSON line."""
        result = {
            "schema_version": 1,
            "workload": self.workload,
            "gpu": self.device.name,
            "error": error,
            "executed_at_seconds": _EXECUTED_AT_SECONDS,
            "began_at_seconds": self.began_at_seconds,
            "seconds": round(self.elapsed_seconds(), 4),
            "context_bytes": self.context.context_bytes,
            "context_source": self.context.source,
            "held_bytes": self.memory.held_bytes,
            "refusals": self.memory.refusals,
            "memory_timeline": self.memory.timeline,
            **details,
        }
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
