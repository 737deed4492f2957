"""The board: the file in which a job reports its GPU time, as the host reads it.

The layout is native/include/board_abi.h; a test compares both. The job can write anything into the file. It is therefore
read with `pread` and bounds checks and never mapped, and its content only affects what is displayed of the job itself.
"""

import contextlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from pgpu.enforcement.compute_word import ComputeWord
from pgpu.errors import EnforcementError
from pgpu.structs import Struct

ABI = 2
MAGIC = 0x454D495455555047
MAX_GPUS = 16
HEADER = struct.Struct("<QII112x")
GPU = struct.Struct("<16s8QqQ32x")
BOARD_BYTES = 4096


class BoardGpu(Struct, frozen=True):
    """One GPU of a job, in its limit file's order. Times are nanoseconds; moments are CLOCK_MONOTONIC's, 0 means never."""

    compute: ComputeWord
    """The word as the job applies it."""

    wanted_ns: int
    """Last time that a process had work to launch or in flight."""

    busy_since_ns: int
    """Start of the current work in flight, as published to other jobs; 0 if nothing is in flight."""

    busy_until_ns: int
    """Expected end of the work in flight."""

    busy_ns: int
    """Total time with work in flight, up to `busy_since_ns`."""

    used_ns: int
    """Measured GPU time since the job began."""

    waited_ns: int
    """Total time that launches were delayed."""

    launches: int
    """Number of kernels, graphs and copies."""

    budget_ns: int
    """GPU time that may be used now; a negative value is debt."""

    in_flight_until_ns: int
    """Expected end of the work in flight of all living processes; 0 if nothing is in flight. A process publishes its work here before
    it checks the hold bits. So if this is 0 after a hold was set, nothing runs and nothing will start."""


def read_board(path: Path, in_flight_until_ns: Sequence[int]) -> Sequence[BoardGpu]:
    """Read a job's board; empty until one of its processes has registered.

    Args:
        path: The board file.
        in_flight_until_ns: For each GPU, the value of `meter.in_flight_until_ns`.

    Raises:
        EnforcementError: The file cannot be read, or is not a board.
    """
    with contextlib.ExitStack() as stack:
        try:
            # O_NONBLOCK and O_NOCTTY: the job may have replaced its file by a FIFO or a terminal, and open() must not block on it.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
            stack.callback(os.close, descriptor)
            data = os.pread(descriptor, BOARD_BYTES, 0)
        except OSError as exc:
            raise EnforcementError(f"{path} cannot be used: {exc.strerror}") from exc
    if len(data) < BOARD_BYTES:
        raise EnforcementError(f"the board {path} is cut short")
    magic, abi, count = HEADER.unpack_from(data)
    if magic == 0:  # allocated by the host, and no process of the job has registered yet
        return ()
    if magic != MAGIC or abi != ABI or count > MAX_GPUS:
        raise EnforcementError(f"{path} is no board of this version")
    gpus = []
    for index in range(count):
        fields = GPU.unpack_from(data, HEADER.size + index * GPU.size)
        _, word, wanted, since, until, busy, used, waited, launches, budget, _ = fields
        gpus.append(
            BoardGpu(
                ComputeWord.unpack(word), wanted, since, until, busy, used, waited, launches, budget,
                in_flight_until_ns[index],
            )
        )  # fmt: skip
    return gpus
