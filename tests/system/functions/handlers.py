"""Handlers that the tests serve; this file is the source directory's module, imported by zygotes."""

import asyncio
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from pgpu import Batch, Context, function


class Echo:
    """Answers with its argument, and says which process it is."""

    def __call__(self, x: int = 0) -> dict[str, int]:
        return {"x": x, "pid": os.getpid()}


class Reverse:
    def __call__(self, body: bytes) -> bytes:
        return body[::-1]


class RefusedError(Exception):
    pgpu_status = 404


FAILURES = {
    "raise": KeyError("somebody's secret"),
    "refuse": RefusedError("not this one"),
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
}


@dataclass
class Leaver:
    """An argument whose making ends the interpreter."""

    why: str

    def __post_init__(self) -> None:
        raise SystemExit(self.why)


def leave(it: Leaver) -> str:
    return it.why


async def leave_soon(it: Leaver) -> str:
    return it.why


@function(batch=Batch(8))
def leave_together(it: list[Leaver]) -> list[str]:
    return [each.why for each in it]


def leave_in_the_middle(count: int) -> Iterator[int]:
    yield from range(count)
    raise KeyboardInterrupt


class Fickle:
    """Does what it is told."""

    def __init__(self, notes: str = "") -> None:
        self.notes = Path(notes) if notes else None

    def note(self, line: str) -> None:
        if self.notes is not None:
            with self.notes.open("a") as file:
                file.write(line + "\n")

    def another(self, do: str) -> int:
        return os.fork() if do == "fork" else subprocess.Popen(["sleep", "600"], start_new_session=True).pid

    def __call__(self, do: str, ctx: Context, seconds: float = 0.0) -> str:
        self.note(f"begin {do}")
        if do == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif do in FAILURES:
            raise FAILURES[do]
        elif do == "burn":
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass
        elif do == "hang":
            threading.Event().wait()
        elif do in {"start", "fork"}:
            pid = self.another(do)
            self.note(f"{do}ed {pid}" if pid else "came back")
        elif do == "until cancelled":
            while not ctx.is_cancelled:
                threading.Event().wait(0.01)
            self.note("cancelled")
        return do

    def close(self) -> None:
        self.note("close")


class Stream:
    def __init__(self, notes: str = "") -> None:
        self.notes = notes

    def __call__(self, count: int, fail_at: int = -1) -> Iterator[int]:
        try:
            for number in range(count):
                if number == fail_at:
                    raise ValueError("in the middle")
                yield number
        finally:
            if self.notes:
                Path(self.notes).write_text("closed")


class AsyncStream:
    async def __call__(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            await asyncio.sleep(0)
            yield number


@function(batch=Batch(8))
class Batched:
    def __call__(self, x: list[int], hold: list[str]) -> list[int | Exception]:
        for gate in filter(None, hold):
            Path(f"{gate}-reached").touch()
            while not Path(gate).exists():
                threading.Event().wait(0.005)
        return [len(x) if each > 0 else ValueError(each) for each in x]


@function(concurrency=4)
class Meeting:
    """Answers once four calls are inside."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(4)

    def __call__(self) -> str:
        self.barrier.wait()
        return threading.current_thread().name


@function(concurrency=4)
class AsyncMeeting:
    def __init__(self) -> None:
        self.inside = 0

    async def warmup(self) -> None:
        self.all_in = asyncio.Event()

    async def __call__(self) -> str:
        self.inside += 1
        if self.inside == 4:
            self.all_in.set()
        await self.all_in.wait()
        return "met"


class Broken:
    def __init__(self, until: str = "/nowhere") -> None:
        if not Path(until).exists():
            raise RuntimeError("no weights")

    def __call__(self) -> str:
        return "mended"


class SlowToStart:
    def __init__(self, gate: str) -> None:
        while not Path(gate).exists():
            threading.Event().wait(0.005)

    def __call__(self) -> int:
        return os.getpid()


class Ill:
    """Is well until its process id is in the file."""

    def __init__(self, notes: str) -> None:
        self.notes = Path(notes)

    def __call__(self) -> int:
        return os.getpid()

    def health(self) -> bool:
        while self.notes.exists() and self.notes.read_text() == f"hang {os.getpid()}":
            threading.Event().wait(0.01)
        return not self.notes.exists() or self.notes.read_text() != str(os.getpid())


class OnGpu:
    """Counts its calls in memory of a GPU, through the driver's interface."""

    def __init__(self, mib: int) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        context, self._memory = ctypes.c_void_p(), ctypes.c_uint64()
        self._check(self._cuda.cuInit(0))
        self._check(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self._check(self._cuda.cuCtxSetCurrent(context))
        self._check(self._cuda.cuMemAlloc_v2(ctypes.byref(self._memory), ctypes.c_size_t(mib << 20)))
        self._check(self._cuda.cuMemsetD8_v2(self._memory, 0, ctypes.c_size_t(4096)))
        self._calls = 0

    def _check(self, result: int) -> None:
        assert result == 0, f"CUDA error {result}"

    def __call__(self, x: int) -> dict[str, int]:
        seen = ctypes.c_ubyte(255)
        self._check(self._cuda.cuMemcpyDtoH_v2(ctypes.byref(seen), self._memory, ctypes.c_size_t(1)))
        self._calls += x
        self._check(self._cuda.cuMemsetD8_v2(self._memory, seen.value + x, ctypes.c_size_t(4096)))
        return {"pid": os.getpid(), "calls": self._calls, "seen": seen.value + x}
