"""What a job tells of its GPU time, as the host reads it.

The layout is native/include/board_abi.h; a test holds both against each other. The file belongs to the job, so this module
refuses to trust it: it is read with `pread` and bounds checks, never mapped, and what it says decides nothing but what is
shown of the job itself.
"""

import contextlib
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pgpu.enforcement.compute_word import ComputeWord
from pgpu.errors import EnforcementError

ABI = 2
MAGIC = 0x454D495455555047
MAX_GPUS = 16
HEADER = struct.Struct("<QII112x")
GPU = struct.Struct("<16s8QqQ32x")
BOARD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class BoardGpu:
    """One GPU of a job, in its limit file's order. Times are nanoseconds; moments are CLOCK_MONOTONIC's, 0 is never."""

    compute: ComputeWord
    """As the job applies it."""

    wanted_ns: int
    """When a process last had something to launch or in flight."""

    busy_since_ns: int
    """Since when something is in flight, as other jobs see it; 0: nothing is."""

    busy_until_ns: int
    """When what is in flight should be done."""

    busy_ns: int
    """Time with something in flight, until `busy_since_ns`."""

    used_ns: int
    """GPU time, measured, since the job began."""

    waited_ns: int
    """Time that launches were held back."""

    launches: int
    """Kernels, graphs and copies."""

    budget_ns: int
    """GPU time that may be used now; below zero is debt."""

    in_flight_until_ns: int
    """When what any living process has in flight should be done; 0: nothing is in flight. A process enters here before it looks
    whether it is held: who reads 0 after it has held the job knows that nothing runs, and that nothing will."""


def read_board(path: Path, in_flight_until_ns: Sequence[int]) -> Sequence[BoardGpu]:
    """Read a job's board; empty until one of its processes has entered.

    Args:
        path: Its file.
        in_flight_until_ns: Of each GPU, as the slots of the job's processes tell it (`meter.in_flight_until_ns`).

    Raises:
        EnforcementError: It cannot be read, or is none.
    """
    data = _read(path)
    if len(data) < BOARD_BYTES:
        raise EnforcementError(f"the board {path} is cut short")
    magic, abi, count = HEADER.unpack_from(data)
    if magic == 0:
        return ()
    if magic != MAGIC or abi != ABI or count > MAX_GPUS:
        raise EnforcementError(f"{path} is no board of this version")
    return [_gpu(data, index, in_flight_until_ns[index]) for index in range(count)]


def _gpu(data: bytes, index: int, until_ns: int) -> BoardGpu:
    fields = GPU.unpack_from(data, HEADER.size + index * GPU.size)
    _, word, wanted, since, until, busy, used, waited, launches, budget, _ = fields
    return BoardGpu(ComputeWord.unpack(word), wanted, since, until, busy, used, waited, launches, budget, until_ns)


def _read(path: Path) -> bytes:
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
            stack.callback(os.close, descriptor)
            return os.pread(descriptor, BOARD_BYTES, 0)
        except OSError as exc:
            raise EnforcementError(f"{path} cannot be used: {exc.strerror}") from exc
