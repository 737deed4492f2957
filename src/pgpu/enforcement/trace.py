"""The log of a traced job: reserved by the host, written by the job, read back here. Layout: native/include/trace_abi.h.

The job can write anything into it. So it is read with `pread`, every index is checked and names are decoded from arbitrary
bytes. Invalid records are dropped.
"""

import os
import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

from pgpu.enforcement import limit_file
from pgpu.errors import EnforcementError
from pgpu.structs import Struct

ABI = 1
MAGIC = 0x4543415254555047
OFFSET = 0x100000
"""Offset in the usage file."""

HEADER = struct.Struct("<QIIQQQQQQ")
HEADER_BYTES = 4096
SHAPE = struct.Struct("<QII3I3IIIIIQQQQQ16x384s")
MAX_SHAPES = 2048
RECORD = struct.Struct("<IHBBIIQQQQQQ")
RECORDS_OFFSET = HEADER_BYTES + MAX_SHAPES * SHAPE.size

DEFAULT_RECORDS = 1 << 18
"""16 MiB: a thousand training steps of a few hundred kernels. Records beyond it are counted as dropped."""

LOG_BYTES = RECORDS_OFFSET + DEFAULT_RECORDS * RECORD.size
USAGE_BYTES = OFFSET + LOG_BYTES

_WORD_MASK = (1 << 63) - 1


class RecordKind(IntEnum):
    """Type of a record."""

    PROCESS = 1
    CONTEXT = 2
    KERNEL = 3
    GRAPH = 4
    COPY = 5
    MEMORY = 6


class Direction(IntEnum):
    """Direction of a copy, named as in NVIDIA's tools."""

    OTHER = 0
    HTOD = 1
    DTOH = 2
    DTOD = 3
    PTOP = 4
    FILL = 5


class Memory(IntEnum):
    """Kinds of memory in a profile."""

    LINEAR = 0
    MANAGED = 1
    ARRAY = 2
    EXTERNAL = 3
    CONTEXT = 4
    PHYSICAL = 5
    POOL = 6
    LIMIT = 7


class TraceRecord(Struct, frozen=True):
    """One record of the log. Times are CLOCK_MONOTONIC in nanoseconds."""

    kind: RecordKind
    slot: int
    """Slot of the process in the usage file."""

    gpu: int
    """Index in the lease."""

    is_carved: bool
    """True if the requested carve-out was applied to the kernel."""

    shape: int | None
    """Index in `Log.shapes`; None for records other than kernels, and if the table was full."""

    detail: int
    at_ns: int
    """Time of the call on the host."""

    start_ns: int | None
    """Start on the GPU; None if it was not measured."""

    duration_ns: int
    stream: int
    bytes: int
    context: int
    extra: int = 0
    """For a context: maximum threads of one multiprocessor."""


class Shape(Struct, frozen=True):
    """All launches of one kernel with the same launch configuration."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    static_shared_bytes: int
    registers: int
    blocks_per_sm: int
    """Resident blocks per multiprocessor; 0 if unknown."""

    launches: int
    measured: int
    total_ns: int
    shortest_ns: int
    longest_ns: int


class Log(Struct, frozen=True):
    records: tuple[TraceRecord, ...]
    """In the order of allocation in the log."""

    shapes: tuple[Shape | None, ...]
    dropped: int
    """Records that did not fit."""

    unmeasured: int
    """Kernels, graphs and copies without a measured duration."""

    self_ns: int
    """Time that the job's threads spent writing the log."""

    self_calls: int
    measured_calls: int


def prepare(usage_path: Path) -> None:
    """Reserve space for a log behind the slots of an unused usage file.

    Raises:
        OSError: The tmpfs has no space for it.
    """
    with usage_path.open("r+b") as file:
        # All pages now: the job writes through a mapping, where a page that a full tmpfs cannot provide raises SIGBUS.
        os.posix_fallocate(file.fileno(), 0, USAGE_BYTES)
        os.pwrite(file.fileno(), HEADER.pack(MAGIC, ABI, DEFAULT_RECORDS, 0, 0, 0, 0, 0, 0), OFFSET)


def save(usage_path: Path) -> bytes | None:
    """Return the log of a usage file in the format of `read`, without unused records; None if there is none.

    Raises:
        EnforcementError: The file cannot be read.
    """
    try:
        descriptor = os.open(usage_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as exc:
        raise EnforcementError(f"{usage_path} cannot be read: {exc.strerror}") from exc
    try:
        header = os.pread(descriptor, HEADER.size, OFFSET)
        if len(header) < HEADER.size:
            return None
        _, _, capacity, claimed, *_ = HEADER.unpack(header)
        # `claimed` counts every record that a thread wanted to write, also those that did not fit. The job can write the header, so
        # neither number may exceed the space that `prepare` reserved.
        end = OFFSET + RECORDS_OFFSET + min(capacity, claimed, DEFAULT_RECORDS) * RECORD.size
        parts = []
        at = OFFSET
        # One pread() returns at most 2 GiB, and less if a signal interrupts it.
        while at < end and (part := os.pread(descriptor, end - at, at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def read(data: bytes) -> Log:
    """Decode a saved log.

    Raises:
        EnforcementError: It is not a log of this version.
    """
    if len(data) < HEADER.size:
        raise EnforcementError("the trace is cut short")
    magic, abi, capacity, claimed, unmeasured, _, self_ns, self_calls, measured = HEADER.unpack_from(data)
    if magic != MAGIC or abi != ABI:
        raise EnforcementError("the trace is none of this version")
    # Shapes are a hash table whose first word is the key; 0 marks an unused entry. Unused entries stay, since records refer to indexes.
    last = min(RECORDS_OFFSET, len(data)) - SHAPE.size
    shapes = tuple(
        None if data[at : at + 8] == bytes(8) else _shape(data, at) for at in range(HEADER_BYTES, last + 1, SHAPE.size)
    )
    return Log(
        records=tuple(_records(data, shapes)),
        shapes=shapes,
        dropped=max(0, min(claimed, _WORD_MASK) - min(capacity, DEFAULT_RECORDS)),
        unmeasured=min(unmeasured, claimed),
        self_ns=self_ns,
        self_calls=self_calls,
        measured_calls=min(measured, self_calls),
    )


def _shape(data: bytes, at: int) -> Shape | None:
    fields = SHAPE.unpack_from(data, at)
    _, is_ready, name_length = fields[:3]
    grid, block = fields[3:6], fields[6:9]
    dynamic_bytes, static_bytes, registers, blocks_per_sm = fields[9:13]
    launches, measured, total_ns, shortest_ns, longest_ns = fields[13:18]
    # The job stores the key first and `is_ready` after the name: a process that was killed in between leaves counts without a name.
    if not is_ready:
        return Shape("", (0, 0, 0), (0, 0, 0), 0, 0, 0, 0, launches, measured, total_ns, 0, longest_ns)
    return Shape(
        name=_name(fields[18], name_length),
        grid=grid,
        block=block,
        dynamic_shared_bytes=dynamic_bytes,
        static_shared_bytes=static_bytes,
        registers=registers,
        blocks_per_sm=blocks_per_sm,
        launches=launches,
        measured=min(measured, launches),
        total_ns=total_ns,
        # Stored + 1, since 0 is the initial value and stands for no measurement.
        shortest_ns=max(0, shortest_ns - 1),
        longest_ns=longest_ns,
    )


def _name(field: bytes, length: int) -> str:
    """Decode a name, which may be truncated and contain any bytes."""
    text = field[: min(length, len(field))].partition(b"\0")[0].decode("utf-8", "backslashreplace")
    printable = "".join(character if character.isprintable() else "\ufffd" for character in text)
    return f"{printable}…" if length > len(field) else printable


def _records(data: bytes, shapes: tuple[Shape | None, ...]) -> Iterator[TraceRecord]:
    kinds = {kind.value: kind for kind in RecordKind}
    whole = (len(data) - RECORDS_OFFSET) // RECORD.size * RECORD.size
    for fields in RECORD.iter_unpack(data[RECORDS_OFFSET : RECORDS_OFFSET + max(0, whole)]):
        number, slot, gpu, flags, shape, detail, at_ns, start_ns, duration_ns, stream, size, context = fields
        # The job stores the kind last. 0 is a place that was claimed and not filled yet, or whose process was killed.
        kind = kinds.get(number)
        if kind is None or gpu >= limit_file.MAX_GPUS or at_ns > _WORD_MASK or start_ns + duration_ns > _WORD_MASK:
            continue
        has_shape = kind is RecordKind.KERNEL and 0 < shape <= len(shapes) and shapes[shape - 1] is not None
        yield TraceRecord(
            kind=kind,
            slot=slot,
            gpu=gpu,
            is_carved=bool(flags & 1),
            shape=shape - 1 if has_shape else None,
            detail=detail,
            at_ns=at_ns,
            start_ns=start_ns or None,
            duration_ns=duration_ns,
            stream=stream,
            bytes=size,
            context=context,
            extra=shape if kind is RecordKind.CONTEXT else 0,
        )
