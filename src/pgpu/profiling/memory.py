"""Memory by kind over time, from what each process said that it holds. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pgpu.enforcement.trace import Kind, Memory, Record

MOST_POINTS = 600
"""Of a timeline; past that the largest of each stretch stands for it."""


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """What one GPU's slice held from a moment on."""

    at_ns: int
    bytes_by_kind: Mapping[Memory, int]
    """Without kinds that hold nothing."""

    @property
    def total_bytes(self) -> int:
        """Of all kinds."""
        return sum(self.bytes_by_kind.values())


def timeline(records: Iterable[Record], gpu: int) -> list[MemoryPoint]:
    """Follow what the processes of a job hold on one GPU; a process that takes another's slot has outlived it."""
    held: defaultdict[Memory, int] = defaultdict(int)
    of_slot: dict[tuple[int, Memory], int] = {}
    points: list[MemoryPoint] = []
    for record in sorted(records, key=lambda each: each.at_ns):
        if record.kind is Kind.PROCESS:
            changed = [(key, 0) for key in of_slot if key[0] == record.slot]
        elif record.kind is Kind.MEMORY and record.gpu == gpu and record.detail < len(Memory):
            changed = [((record.slot, Memory(record.detail)), record.bytes)]
        else:
            continue
        for key, now_bytes in changed:
            held[key[1]] += now_bytes - of_slot.get(key, 0)
            of_slot[key] = now_bytes
        if changed:
            points.append(MemoryPoint(record.at_ns, {kind: size for kind, size in held.items() if size > 0}))
    return points


def peak(points: Iterable[MemoryPoint]) -> MemoryPoint | None:
    """Return the first moment at which the most was held; None if nothing ever was."""
    return max(points, key=lambda point: point.total_bytes, default=None)


def thinned(points: list[MemoryPoint], most: int = MOST_POINTS) -> list[MemoryPoint]:
    """Return at most so many points, among them the first, the last and the peak."""
    if len(points) <= most:
        return points
    step = -(-(len(points) - 2) // (most - 2))
    stretches = (points[at : min(at + step, len(points) - 1)] for at in range(1, len(points) - 1, step))
    return [points[0], *(max(each, key=lambda point: point.total_bytes) for each in stretches if each), points[-1]]
