"""What is free of each GPU of a cluster, and who has the rest. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pgpu.kubernetes.extender.scheduled_objects import (
    WHOLE_MILLI,
    ClaimKey,
    ClaimState,
    ConsumedGpu,
    GpuAsk,
    PublishedSlice,
    SharedGpu,
)
from pgpu.kubernetes.names import DeviceKind


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """One GPU."""

    node: str
    card: SharedGpu
    holders: tuple[tuple[ClaimKey, ConsumedGpu], ...] = ()
    """Claims that have a part of it, in the order of their names."""

    kind: DeviceKind | None = None
    """How those share it who have a part of it; None where nobody has."""

    @property
    def free_bytes(self) -> int:
        """Memory that a claim could get."""
        held_bytes = sum(taken.memory_bytes for _, taken in self.holders)
        return 0 if self.kind is DeviceKind.WHOLE else max(0, self.card.memory_bytes - held_bytes)

    @property
    def free_percent(self) -> int:
        """Share of its time that a claim could get."""
        held_milli = sum(taken.compute_milli for _, taken in self.holders)
        return 0 if self.kind is DeviceKind.WHOLE else max(0, WHOLE_MILLI - held_milli) * 100 // WHOLE_MILLI

    def needed_bytes(self, ask: GpuAsk) -> int:
        """Return what an ask takes of it: the usual amount where it names none, in whole steps."""
        asked_bytes = self.card.default_bytes if ask.memory_bytes is None else ask.memory_bytes
        return -(-asked_bytes // self.card.step_bytes) * self.card.step_bytes

    def has_room_for(self, ask: GpuAsk, kind: DeviceKind) -> bool:
        """Whether a GPU's worth of an ask fits here now; those of two kinds never meet on a GPU."""
        if self.kind is not None and (kind is not self.kind or kind is DeviceKind.WHOLE):
            return False
        if kind is DeviceKind.WHOLE:
            return True
        return self.needed_bytes(ask) <= self.free_bytes and ask.compute_percent <= self.free_percent


def gpu_usages(
    shelves: Iterable[PublishedSlice], claims: Iterable[ClaimState], kinds: Mapping[tuple[str, str], DeviceKind]
) -> tuple[GpuUsage, ...]:
    """Return every GPU that is published, by node and in the order in which the scheduler tries them.

    Args:
        shelves: What is published.
        claims: All there are.
        kinds: By pool and GPU in lower case, how it is shared, where somebody has a part of it.
    """
    held = defaultdict(list)
    for claim in claims:
        for taken in claim.taken:
            held[taken.pool, taken.gpu].append((claim.key, taken))
    ordered = sorted(shelves, key=lambda each: (each.node, each.pool, each.name))
    newest: dict[str, int] = {}
    for shelf in ordered:
        newest[shelf.pool] = max(shelf.generation, newest.get(shelf.pool, 0))
    return tuple(
        GpuUsage(shelf.node, card, _in_order(held[shelf.pool, card.gpu]), kinds.get((shelf.pool, card.gpu)))
        for shelf in ordered
        if shelf.generation == newest[shelf.pool]
        for card in shelf.cards
    )


def _in_order(holders: list[tuple[ClaimKey, ConsumedGpu]]) -> tuple[tuple[ClaimKey, ConsumedGpu], ...]:
    return tuple(sorted(holders, key=lambda each: each[0]))
