"""The usage file of a slice, as the host reads it: the job's meter.

The layout is native/include/meter_abi.h; a test compares both. The job can write anything into the file. It is therefore
read with `pread` and bounds checks, never mapped, and the host never waits for a lock in it.
"""

import fcntl
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pgpu.enforcement import SliceUse
from pgpu.enforcement.limit_file import ABI, MAX_GPUS, OLDEST_ABI, OVERSUBSCRIBES, LimitFile, LimitGpu, explaining
from pgpu.errors import EnforcementError
from pgpu.structs import Struct, replace

MAX_SLOTS = 1024
USAGE_MAGIC = 0x4547415355555047
LOCK_ALIVE = 0x40000000
LOCK_HOLDING = 0x40010000

MAX_PAGED_GPUS = 8
"""GPUs of a job that oversubscribes; entries of the usage file from this index on count the memory that stays on the device."""

USAGE_HEADER = struct.Struct("<QII48x")
USAGE_GPU = struct.Struct("<QQQQQQQQ")
USAGE_SLOT_HEADER = struct.Struct("<IIQQQQQ16x")
USAGE_ENTRY = struct.Struct("<QQQQQQ")
USAGE_HEADER_BYTES = 4096
USAGE_SLOT_BYTES = USAGE_SLOT_HEADER.size + MAX_GPUS * USAGE_ENTRY.size
USAGE_BYTES = USAGE_HEADER_BYTES + MAX_SLOTS * USAGE_SLOT_BYTES

_FLOCK = struct.Struct("hh4xqqi4x")
"""`struct flock` of 64-bit Linux."""

_MOST = (1 << 62) - 1
"""A job may write any number; a larger one, with the overhead, would not be one that the ledger can store."""

_Totals = tuple[int, int, int, int, int]

_UNUSED: Sequence[_Totals] = ((0, 0, 0, 0, 0),) * MAX_GPUS


class UsedSlot(Struct, frozen=True):
    """One process of a slice, or the memory that its forked children still hold."""

    pid: int
    """In the process's own PID namespace."""

    start_time_ticks: int
    pid_namespace: int
    """Inode of /proc/PID/ns/pid; 0 if unknown."""

    is_alive: bool
    used_bytes: tuple[int, ...]
    """On each GPU, in the limit file's order."""

    in_flight: int = 0
    """Bit i: work of this process may be in flight on GPU i."""

    in_flight_until_ns: int = 0
    """Expected end of all of it, by CLOCK_MONOTONIC."""

    stays: bool = False
    """True if the process has had memory that drivers cannot checkpoint."""

    sizes_itself: bool = False
    """True if the process took half or more of the memory that it was shown before it held any."""


def read_use(limit: LimitFile, usage_path: Path) -> Sequence[SliceUse]:
    """Read the use of each GPU's slice, in the limit file's order.

    Raises:
        EnforcementError: The usage file cannot be read, or is corrupt.
    """
    with _opened(usage_path) as descriptor:
        totals = _totals(descriptor, usage_path)
        slots = [] if totals is _UNUSED else list(_slots(descriptor))
    # Slots of dead processes are still part of the file's totals until a process of the job takes them back.
    dead = [slot for slot, is_held in slots if not is_held]
    stays = any(slot.stays for slot, is_held in slots if is_held)
    sizes_itself = any(slot.sizes_itself for slot, _ in slots)
    processes = sum(slot.is_alive and any(slot.used_bytes) for slot, _ in slots)
    uses = [
        replace(
            _slice_use(gpu, index, totals[index], dead), stays=stays, processes=processes, sizes_itself=sizes_itself
        )
        for index, gpu in enumerate(limit.gpus)
    ]
    if not limit.flags & OVERSUBSCRIBES:
        return uses
    entries = range(MAX_PAGED_GPUS, MAX_PAGED_GPUS + len(uses))
    resident = [_slice_use(gpu, at, totals[at], dead) for at, gpu in zip(entries, limit.gpus, strict=True)]
    # Allocations that failed for lack of device memory alone count as refusals, too.
    return [
        replace(use, resident_bytes=min(part.used_bytes, use.used_bytes), refusals=use.refusals + part.refusals)
        for use, part in zip(uses, resident, strict=True)
    ]


def held_slots(usage_path: Path) -> Sequence[UsedSlot]:
    """Return the slots with a living process, or with driver descriptors that a forked child may still hold.

    Raises:
        EnforcementError: The file cannot be read.
    """
    with _opened(usage_path) as descriptor:
        return [slot for slot, is_held in _slots(descriptor) if is_held]


def in_flight_until_ns(usage_path: Path) -> Sequence[int]:
    """Return, for each entry of the limit file, the expected end of the work in flight of all living processes.

    Returns:
        Nanoseconds of CLOCK_MONOTONIC, at least 1; 0 where nothing is in flight. Slots of dead processes are ignored.

    Raises:
        EnforcementError: The file cannot be read.
    """
    found = [0] * MAX_GPUS
    for slot in held_slots(usage_path):
        for gpu in range(MAX_GPUS):
            if slot.in_flight >> gpu & 1:
                found[gpu] = max(found[gpu], slot.in_flight_until_ns, 1)
    return found


def read_growth_words(usage_path: Path) -> Sequence[int]:
    """Return the word of each entry of the limit file in which the job wishes for a larger slice (`growth_channel`).

    Raises:
        EnforcementError: The file cannot be read.
    """
    with _opened(usage_path) as descriptor:
        data = os.pread(descriptor, MAX_GPUS * USAGE_GPU.size, USAGE_HEADER.size)
    whole = data[: len(data) // USAGE_GPU.size * USAGE_GPU.size]
    return [entry[-1] for entry in USAGE_GPU.iter_unpack(whole)]


def is_held(usage_path: Path) -> bool:
    """True if any process holds a lock of any slot, whatever the file's content is.

    Raises:
        EnforcementError: The file cannot be opened.
    """
    with _opened(usage_path) as descriptor:
        return any(_is_locked(descriptor, first, MAX_SLOTS) for first in (LOCK_ALIVE, LOCK_HOLDING))


def _slice_use(gpu: LimitGpu, index: int, total: _Totals, dead: Sequence[UsedSlot]) -> SliceUse:
    total_bytes, peak_bytes, refusals, attempted_bytes, device_refusals = total
    # Total and slots are read one after the other, without a lock that a job could keep; the difference may be negative for a moment.
    used_bytes = max(0, total_bytes - sum(slot.used_bytes[index] for slot in dead))
    if used_bytes:
        used_bytes += gpu.overhead_bytes
    peak_bytes = max(peak_bytes + gpu.overhead_bytes if peak_bytes else 0, used_bytes)
    attempted_bytes += gpu.overhead_bytes if attempted_bytes else 0
    counted = (used_bytes, peak_bytes, refusals, attempted_bytes)
    return SliceUse(gpu.uuid, *counted, gpu.context_bytes, device_refusals=device_refusals)


def _totals(descriptor: int, path: Path) -> Sequence[_Totals]:
    """Return total, peak, refusals, attempted bytes and refusals by the device of each GPU; `_UNUSED` before the first use."""
    data = os.pread(descriptor, USAGE_HEADER_BYTES, 0)
    if not data or data[:8] == bytes(8):
        return _UNUSED
    if len(data) < USAGE_HEADER_BYTES:
        raise EnforcementError(f"the usage file {path} is cut short")
    magic, abi, _ = USAGE_HEADER.unpack_from(data)
    if magic != USAGE_MAGIC or not OLDEST_ABI <= abi <= ABI:
        raise EnforcementError(f"{path} is no usage file of this version")
    entries = USAGE_GPU.iter_unpack(data[USAGE_HEADER.size : USAGE_HEADER.size + MAX_GPUS * USAGE_GPU.size])
    words = ([min(word, _MOST) for word in entry] for entry in entries)
    return [(total, peak, refusals, *rest) for total, _, peak, refusals, _, *rest, _ in words]


def _slots(descriptor: int) -> Iterator[tuple[UsedSlot, bool]]:
    """Yield each slot that was ever claimed, and True if a process may still hold its memory."""
    header = os.pread(descriptor, USAGE_HEADER.size, 0)
    touched = USAGE_HEADER.unpack(header)[2] if len(header) == USAGE_HEADER.size else 0
    for number in range(min(touched, MAX_SLOTS)):
        data = os.pread(descriptor, USAGE_SLOT_BYTES, USAGE_HEADER_BYTES + number * USAGE_SLOT_BYTES)
        if len(data) < USAGE_SLOT_BYTES:
            return
        # Read before the lock is tested: if the process ends in between, its last use counts as a dead slot's.
        is_alive = _is_locked(descriptor, LOCK_ALIVE + number)
        pid, stays, start_ticks, pid_namespace, *in_flight, sizes_itself = USAGE_SLOT_HEADER.unpack_from(data)
        offsets = range(USAGE_SLOT_HEADER.size, USAGE_SLOT_BYTES, USAGE_ENTRY.size)
        entries = (USAGE_ENTRY.unpack_from(data, at) for at in offsets)
        # Double-buffered: the lowest bit of `settled` selects the valid copy, so an update that was cut off by a kill is ignored.
        used_bytes = tuple(entry[entry[4] & 1] for entry in entries)
        rest = (*in_flight, stays != 0, sizes_itself != 0)
        slot = UsedSlot(pid, start_ticks, pid_namespace, is_alive, used_bytes, *rest)
        yield slot, is_alive or _is_locked(descriptor, LOCK_HOLDING + number)


def _is_locked(descriptor: int, byte: int, length: int = 1) -> bool:
    """Test a byte range lock without taking it; an error counts as locked, so that no memory is reclaimed by mistake."""
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, length, 0)
    try:
        # F_OFD_GETLK: the kernel drops OFD locks when the last descriptor closes, so a crash of the holder releases them.
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, question)
    except OSError:
        return True
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    with explaining(path):
        # Flags as for the board: open() must not block on a FIFO, or acquire a terminal, that the job put in place of its file.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
