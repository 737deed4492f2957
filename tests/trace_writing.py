"""Logs as a shim would write them, for tests of what is read out of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from pgpu.enforcement import trace
from pgpu.enforcement.trace import RecordKind

STREAM = 7


@dataclass(frozen=True)
class Written:
    """One record, and what of it matters to a test."""

    kind: int
    at_ns: int = 0
    start_ns: int = 0
    duration_ns: int = 0
    size: int = 0
    detail: int = 0
    shape: int = 0
    slot: int = 0
    gpu: int = 0
    stream: int = STREAM

    def packed(self) -> bytes:
        words = (self.kind, self.slot, self.gpu, 0, self.shape, self.detail, self.at_ns, self.start_ns)
        return trace.RECORD.pack(*words, self.duration_ns, self.stream, self.size, 99)


def kernel(start_ns: int, duration_ns: int, shape: int = 1, gpu: int = 0) -> Written:
    return Written(RecordKind.KERNEL, at_ns=start_ns, start_ns=start_ns, duration_ns=duration_ns, shape=shape, gpu=gpu)


def memory(at_ns: int, kind: trace.Memory, size: int, slot: int = 0) -> Written:
    return Written(RecordKind.MEMORY, at_ns=at_ns, detail=kind, size=size, slot=slot)


@dataclass(frozen=True)
class WrittenShape:
    """All launches of one kernel."""

    name: str = "dense"
    grid: tuple[int, int, int] = (82, 1, 1)
    launches: int = 1
    total_ns: int = 1000
    blocks_per_sm: int = 2
    is_ready: int = 1

    def packed(self) -> bytes:
        name = self.name.encode()
        words = (1, self.is_ready, len(name), *self.grid, 256, 1, 1, 0, 0, 32, self.blocks_per_sm)
        each_ns = self.total_ns // max(1, self.launches)
        return trace.SHAPE.pack(*words, self.launches, self.launches, self.total_ns, each_ns + 1, each_ns, name)


def log(
    records: Sequence[Written] = (),
    shapes: Sequence[WrittenShape] = (WrittenShape(),),
    *,
    claimed: int | None = None,
    capacity: int = trace.DEFAULT_RECORDS,
    unmeasured: int = 0,
) -> bytes:
    """A saved log."""
    counts = (len(records) if claimed is None else claimed, unmeasured, 0, 1000, len(records), len(records))
    header = trace.HEADER.pack(trace.MAGIC, trace.ABI, capacity, *counts).ljust(trace.HEADER_BYTES, b"\0")
    rows = b"".join(each.packed() for each in shapes).ljust(trace.MAX_SHAPES * trace.SHAPE.size, b"\0")
    return header + rows + b"".join(each.packed() for each in records)
