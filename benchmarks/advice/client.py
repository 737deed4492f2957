"""One program of the benchmark, as a process: a kernel again and again, with pauses, for a time.

Reads one JSON object from its first argument, prints `ready`, waits for a line, and prints one JSON object. It calls
the driver through ctypes alone, since hundreds of these start.
"""

import ctypes
import json
import sys
import threading
import time
from typing import Any

_CARVEOUT = 9
"""CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT."""

_SM_COUNT = 16
_L2_BYTES = 38
_LEAST_ITERATIONS = 3
_NEVER = threading.Event()


class Driver:
    """The few functions that are used."""

    def __init__(self, path: str) -> None:
        self._cuda = ctypes.CDLL(path)
        self._call("cuInit", 0)
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._call("cuCtxSetCurrent", context)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._cuda, name)(*arguments)
        if status != 0:
            raise SystemExit(f"{name}: CUDA error {status}")

    def allocate(self, size_bytes: int) -> int:
        """Return the address of new device memory."""
        address = ctypes.c_ulonglong()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        return address.value

    def attribute(self, number: int) -> int:
        """Return a figure of the device."""
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, 0)
        return value.value

    def kernel(self, ptx: str, entry: str) -> ctypes.c_void_p:
        """Load a module and return a kernel of it."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ptx.encode() + b"\0")
        self._call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        return function

    def prefer_shared(self, function: ctypes.c_void_p, percent: int) -> None:
        """Set the preferred share of shared memory in L1 and shared memory together, in percent."""
        self._call("cuFuncSetAttribute", function, _CARVEOUT, percent)

    def blocks_per_sm(self, function: ctypes.c_void_p, block_threads: int) -> int:
        """Return how many blocks of this size a multiprocessor holds at once."""
        found = ctypes.c_int()
        self._call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            ctypes.byref(found),
            function,
            block_threads,
            ctypes.c_size_t(0),
        )
        return found.value

    def launch(self, function: ctypes.c_void_p, blocks: int, threads: int, arguments: list[int]) -> None:
        """Launch a kernel on the default stream."""
        values = [ctypes.c_ulonglong(value) for value in arguments]
        pointers = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        self._call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, None, pointers, None)

    def event(self) -> ctypes.c_void_p:
        """Return an event that was recorded behind everything launched so far."""
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), 0)
        self._call("cuEventRecord", event, None)
        return event

    def wait_for(self, event: ctypes.c_void_p) -> None:
        """Wait for an event."""
        self._call("cuEventSynchronize", event)

    def seconds_between(self, first: ctypes.c_void_p, last: ctypes.c_void_p) -> float:
        """Return the GPU's time between two events."""
        milliseconds = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), first, last)
        return milliseconds.value / 1000


def main() -> None:
    """Run one program."""
    spec = json.loads(sys.argv[1])
    driver = Driver(spec["library"])
    function = driver.kernel(spec["ptx"], spec["entry"])
    if spec["carveout_percent"] is not None:
        driver.prefer_shared(function, spec["carveout_percent"])
    spec["arguments"] = [*map(driver.allocate, spec["buffers_bytes"]), *spec["arguments"]]
    facts = {
        "sm_count": driver.attribute(_SM_COUNT),
        "l2_bytes": driver.attribute(_L2_BYTES),
        "blocks_per_sm": driver.blocks_per_sm(function, spec["threads"]),
    }
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    ends, kernel_seconds = _run(driver, function, spec)
    print(json.dumps({**facts, "ends": ends, "kernel_seconds": kernel_seconds}))


def _run(driver: Driver, function: ctypes.c_void_p, spec: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Return when each iteration ended and how long its kernels took, by the GPU's clock.

    Without pauses one iteration is launched ahead, so that a late wake-up on a busy machine costs no GPU time.
    """
    began_seconds = time.monotonic()
    first = driver.event()
    starts: list[ctypes.c_void_p] = []
    ends: list[ctypes.c_void_p] = []
    while time.monotonic() - began_seconds < spec["seconds"] or len(ends) < _LEAST_ITERATIONS:
        if spec["pause_seconds"] > 0:
            _NEVER.wait(spec["pause_seconds"])
        starts.append(driver.event())
        for _ in range(spec["launches"]):
            driver.launch(function, spec["blocks"], spec["threads"], spec["arguments"])
        ends.append(driver.event())
        if spec["pause_seconds"] > 0:
            driver.wait_for(ends[-1])
        elif len(ends) > 1:
            driver.wait_for(ends[-2])
    driver.wait_for(ends[-1])
    took = [driver.seconds_between(start, end) for start, end in zip(starts, ends, strict=True)]
    return [driver.seconds_between(first, end) for end in ends], took


if __name__ == "__main__":
    main()
