"""In which order GPUs are published: the scheduler takes the first that fits, so the order is what packs them. Pure.

Fullest first of those with room, then full ones, untouched ones last: what begins a GPU does so when nothing else is left,
and whole GPUs stay for those who ask for one. Among equals the published order stays, since each change costs every
scheduler a look at all that waits.
"""

from collections.abc import Sequence

from pgpu.engine.claims import STEP_BYTES, ClaimableGpu
from pgpu.kubernetes.resource_slices.slice_devices import published_bytes


def next_order(offers: Sequence[ClaimableGpu], published: Sequence[str]) -> tuple[str, ...]:
    """Return the GPUs' UUIDs in the order in which to publish them.

    Args:
        offers: In the driver's order, which decides among GPUs that were never published.
        published: The order that stands in the slices now; returned as it is where no claim could tell the difference.
    """
    wanted = tuple(offer.gpu.uuid for offer in _densest_first(offers, published))
    with_room = {offer.gpu.uuid for offer in offers if _room_bytes(offer) >= STEP_BYTES}
    is_same = set(wanted) == set(published) and _of(wanted, with_room) == _of(published, with_room)
    return tuple(published) if is_same else wanted


def _densest_first(offers: Sequence[ClaimableGpu], published: Sequence[str]) -> list[ClaimableGpu]:
    place = {uuid: number for number, uuid in enumerate(published)}
    known = sorted(offers, key=lambda offer: place.get(offer.gpu.uuid, len(place)))
    return sorted(known, key=lambda offer: (_group(offer), _room_bytes(offer)))


def _group(offer: ClaimableGpu) -> int:
    if offer.held_bytes == 0:
        return 2
    return 0 if _room_bytes(offer) >= STEP_BYTES else 1


def _room_bytes(offer: ClaimableGpu) -> int:
    return published_bytes(offer) - offer.held_bytes


def _of(order: Sequence[str], chosen: set[str]) -> list[str]:
    return [uuid for uuid in order if uuid in chosen]
