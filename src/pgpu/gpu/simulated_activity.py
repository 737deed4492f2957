"""Reader of the GPU time that each process really got on a simulated GPU, which no real GPU reports.

Tests and benchmarks compare pgpu's own measurements with it. Slots are those of the file `memory` beside it, a usage file that
names the process of each. A file of another size is rejected.
"""

import struct
import time
from pathlib import Path

from pgpu.errors import NodeError
from pgpu.structs import Struct

ACTIVITY_NAME = "activity"
TURNS_NAME = "turns"

_GPUS = 16
_SLOTS = 1024
_SLOT_BYTES = 320
_HEADER = struct.Struct("<3Q512x")
_SLOT = struct.Struct("<4QQQQQ")
_TURNS_BYTES = 94_208
_LOST = struct.Struct("<56xQ")
_GPU_BYTES = _HEADER.size + _SLOTS * _SLOT_BYTES


class DeviceTime(Struct, frozen=True):
    """GPU time of one process on one GPU since it took its slot."""

    slot: int
    """Of the files `activity` and `memory`."""

    consumed_ns: int
    """Time that its finished work takes alone on a GPU: work done, regardless of other processes."""

    busy_ns: int
    """Real time in which its work was running, without turns of others."""

    pending_ns: int
    """Queued work, measured as `consumed_ns`."""


def read_device_times(state_directory: Path, gpu_index: int, now_ns: int | None = None) -> list[DeviceTime]:
    """Return the GPU time of every process that ever took a slot.

    Args:
        state_directory: Of the simulated GPUs.
        gpu_index: In the order of gpus.conf, 0-15.
        now_ns: CLOCK_MONOTONIC; by default now. The last written state is extrapolated to this moment.

    Raises:
        NodeError: The file does not exist (no program has started yet), or is not of this simulated driver.
    """
    path = state_directory / ACTIVITY_NAME
    content = _content(path)
    if len(content) != _GPUS * _GPU_BYTES:
        raise NodeError(f"{path} is no activity file of this version's simulated driver")
    start = gpu_index * _GPU_BYTES
    slots_used = min(_HEADER.unpack_from(content, start)[1], _SLOTS)
    at_ns = time.monotonic_ns() if now_ns is None else now_ns
    rows = (_SLOT.unpack_from(content, start + _HEADER.size + slot * _SLOT_BYTES) for slot in range(slots_used))
    return [_time(slot, row, at_ns) for slot, row in enumerate(rows) if row[0] != 0]


def read_lost_ns(state_directory: Path, gpu_index: int) -> int:
    """Return how long a GPU was idle although processes had work: context switches, and unused turns.

    Args:
        state_directory: Of the simulated GPUs.
        gpu_index: In the order of gpus.conf, 0-15.

    Raises:
        NodeError: The file does not exist (no program has started yet), or is not of this simulated driver.
    """
    path = state_directory / TURNS_NAME
    content = _content(path)
    if len(content) != _GPUS * _TURNS_BYTES:
        raise NodeError(f"{path} is no account of turns of this version's simulated driver")
    return int(_LOST.unpack_from(content, gpu_index * _TURNS_BYTES)[0])


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise NodeError(f"{path} cannot be read: {error.strerror}") from error


def _time(slot: int, row: tuple[int, ...], now_ns: int) -> DeviceTime:
    updated_ns, consumed_ns, pending_ns, until_ns, busy_ns, _server, _block_ns, pending_busy_ns = row
    done = 0.0
    if until_ns > updated_ns and now_ns > updated_ns:
        done = min(1.0, (now_ns - updated_ns) / (until_ns - updated_ns))
    return DeviceTime(
        slot,
        consumed_ns + int(pending_ns * done),
        busy_ns + int(pending_busy_ns * done),
        pending_ns - int(pending_ns * done),
    )
