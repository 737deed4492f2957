"""One run of a workload: its clock, its device, and the one JSON line that it ends with.

It refuses to print anything else on standard output, so that a caller can read the last line.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from array import array
from typing import Any

from pgpu.workloads.context_size import ContextSize, measure_context
from pgpu.workloads.cuda_driver import Device
from pgpu.workloads.kernels import Kernels
from pgpu.workloads.memory_pool import HeldMemory

_NEVER = threading.Event()


class WorkloadError(Exception):
    """The workload could not do its work; the message is for standard error, the exit code is 1."""


def wait_seconds(seconds: float) -> None:
    """Spend host time that a real program would spend on its own work, without a core."""
    if seconds > 0:
        _NEVER.wait(seconds)


def wait_for_start_line() -> None:
    """Say `ready` on standard error and wait for a line on standard input, so that many can start at one moment."""
    sys.stderr.write("ready\n")
    sys.stderr.flush()
    sys.stdin.readline()


class Run:
    """A workload between its first CUDA call and its result."""

    def __init__(self, workload: str) -> None:
        self.workload = workload
        self.began_at_seconds = time.time()
        self._began_seconds = time.monotonic()
        self.device = Device()
        self.kernels = Kernels(self.device)
        free_bytes, total_bytes = self.device.memory_bytes()
        self.context: ContextSize = measure_context(self.device.uuid, total_bytes - free_bytes)
        self.memory = HeldMemory(self.device, self.elapsed_seconds)
        self.memory.count(self.context.context_bytes)

    def elapsed_seconds(self) -> float:
        """Seconds since the workload began."""
        return time.monotonic() - self._began_seconds

    def check_round_trip(self, address: int, values: array[Any]) -> None:
        """Copy to the device and back.

        Raises:
            WorkloadError: Not the same bytes came back.
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
