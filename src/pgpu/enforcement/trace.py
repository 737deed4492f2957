"""The log of a profiled job, as the host makes room for it and reads it: native/include/trace_abi.h.

The job writes it, so nothing in it is believed: it is read with `pread`, every index is checked, text is taken as bytes
that may be anything. A log that says nonsense is one that says less.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from pgpu.enforcement import limit_file
from pgpu.errors import EnforcementError

ABI = 1
MAGIC = 0x4543415254555047
OFFSET = 0x100000
"""In the usage file."""

HEADER = struct.Struct("<QIIQQQQQQ")
HEADER_BYTES = 4096
SHAPE = struct.Struct("<QII3I3IIIIIQQQQQ16x384s")
MAX_SHAPES = 2048
RECORD = struct.Struct("<IHBBIIQQQQQQ")
RECORDS_OFFSET = HEADER_BYTES + MAX_SHAPES * SHAPE.size

DEFAULT_RECORDS = 1 << 18
"""16 MiB: a training step of a few hundred kernels for a thousand steps. What no place is left for is counted."""

LOG_BYTES = RECORDS_OFFSET + DEFAULT_RECORDS * RECORD.size
USAGE_BYTES = OFFSET + LOG_BYTES

_WORD_MASK = (1 << 63) - 1


class Kind(IntEnum):
    """What a record tells of."""

    PROCESS = 1
    CONTEXT = 2
    KERNEL = 3
    GRAPH = 4
    COPY = 5
    MEMORY = 6


class Direction(IntEnum):
    """Of a copy; named as NVIDIA's own tools do."""

    OTHER = 0
    HTOD = 1
    DTOH = 2
    DTOD = 3
    PTOP = 4
    FILL = 5


class Memory(IntEnum):
    """Kinds of memory, as a profile tells them apart."""

    LINEAR = 0
    MANAGED = 1
    ARRAY = 2
    EXTERNAL = 3
    CONTEXT = 4
    PHYSICAL = 5
    POOL = 6
    LIMIT = 7


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the log. Times are CLOCK_MONOTONIC in nanoseconds."""

    kind: Kind
    slot: int
    """Of the usage file: which process."""

    gpu: int
    """Index in the lease."""

    is_carved: bool
    """Whether the carve-out that was asked for was applied to the kernel."""

    shape: int | None
    """Index in `Log.shapes`; None of other things than kernels, and where no row was free."""

    detail: int
    at_ns: int
    """When the host asked for it."""

    start_ns: int | None
    """When it began on the GPU; None was never measured."""

    duration_ns: int
    stream: int
    bytes: int
    context: int
    extra: int = 0
    """Of a context: threads that one multiprocessor holds."""


@dataclass(frozen=True, slots=True)
class Shape:
    """All launches of one kernel with one shape."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    static_shared_bytes: int
    registers: int
    blocks_per_sm: int
    """That one multiprocessor holds at once; 0 unknown."""

    launches: int
    measured: int
    total_ns: int
    shortest_ns: int
    longest_ns: int


@dataclass(frozen=True, slots=True)
class Log:
    """What a job wrote down."""

    records: tuple[Record, ...]
    """In the order in which places were claimed."""

    shapes: tuple[Shape | None, ...]
    dropped: int
    """Records that there was no place for."""

    unmeasured: int
    """Kernels, graphs and copies whose duration nobody could tell."""

    self_ns: int
    """Time that the job's threads spent on the log."""

    self_calls: int
    measured_calls: int


def prepare(usage_path: Path) -> None:
    """Make room for a log behind the slots of a usage file that nobody uses yet.

    Raises:
        OSError: There is no room on its tmpfs.
    """
    with usage_path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, USAGE_BYTES)
        os.pwrite(file.fileno(), HEADER.pack(MAGIC, ABI, DEFAULT_RECORDS, 0, 0, 0, 0, 0, 0), OFFSET)


def save(usage_path: Path) -> bytes | None:
    """Return the log of a usage file as `read` takes it, without the places that are empty; None if there is none.

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
        count = min(capacity, claimed, DEFAULT_RECORDS)
        return _pread(descriptor, RECORDS_OFFSET + count * RECORD.size)
    finally:
        os.close(descriptor)


def _pread(descriptor: int, count: int) -> bytes:
    """One call returns at most 2 GiB, and less where a signal came."""
    parts = []
    at = OFFSET
    while count > 0 and (part := os.pread(descriptor, count, at)):
        parts.append(part)
        at += len(part)
        count -= len(part)
    return b"".join(parts)


def read(data: bytes) -> Log:
    """Read a saved log.

    Raises:
        EnforcementError: It is none of this version.
    """
    if len(data) < HEADER.size:
        raise EnforcementError("the trace is cut short")
    magic, abi, capacity, claimed, unmeasured, _, self_ns, self_calls, measured = HEADER.unpack_from(data)
    if magic != MAGIC or abi != ABI:
        raise EnforcementError("the trace is none of this version")
    shapes = tuple(_shapes(data))
    return Log(
        records=tuple(_records(data, shapes)),
        shapes=shapes,
        dropped=max(0, min(claimed, _WORD_MASK) - min(capacity, DEFAULT_RECORDS)),
        unmeasured=min(unmeasured, claimed),
        self_ns=self_ns,
        self_calls=self_calls,
        measured_calls=min(measured, self_calls),
    )


def _shapes(data: bytes) -> Iterator[Shape | None]:
    last = min(RECORDS_OFFSET, len(data)) - SHAPE.size
    for at in range(HEADER_BYTES, last + 1, SHAPE.size):
        key = data[at : at + 8]
        yield None if key == bytes(8) else _shape(data, at)


def _shape(data: bytes, at: int) -> Shape | None:
    fields = SHAPE.unpack_from(data, at)
    _, is_ready, name_length = fields[:3]
    grid, block = fields[3:6], fields[6:9]
    dynamic_bytes, static_bytes, registers, blocks_per_sm = fields[9:13]
    launches, measured, total_ns, shortest_ns, longest_ns = fields[13:18]
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
        shortest_ns=max(0, shortest_ns - 1),
        longest_ns=longest_ns,
    )


def _name(field: bytes, length: int) -> str:
    """Names may be cut, and a job may write what it likes there."""
    text = field[: min(length, len(field))].partition(b"\0")[0].decode("utf-8", "backslashreplace")
    printable = "".join(character if character.isprintable() else "\ufffd" for character in text)
    return f"{printable}…" if length > len(field) else printable


def _records(data: bytes, shapes: tuple[Shape | None, ...]) -> Iterator[Record]:
    kinds = {kind.value: kind for kind in Kind}
    whole = (len(data) - RECORDS_OFFSET) // RECORD.size * RECORD.size
    for fields in RECORD.iter_unpack(data[RECORDS_OFFSET : RECORDS_OFFSET + max(0, whole)]):
        number, slot, gpu, flags, shape, detail, at_ns, start_ns, duration_ns, stream, size, context = fields
        kind = kinds.get(number)
        if kind is None or gpu >= limit_file.MAX_GPUS or at_ns > _WORD_MASK or start_ns + duration_ns > _WORD_MASK:
            continue
        has_shape = kind is Kind.KERNEL and 0 < shape <= len(shapes) and shapes[shape - 1] is not None
        yield Record(
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
            extra=shape if kind is Kind.CONTEXT else 0,
        )
