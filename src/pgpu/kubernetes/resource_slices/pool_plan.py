"""Decides what a node publishes now, from the engine's offers, the GPUs' health and what was published last.

Each writing makes every scheduler look at all pending pods again. So only what could harm pods is published at once: less memory, a
failure, an added or removed GPU. More memory and a better order wait until the slices have been unchanged for some time.

A lost GPU stays published, tainted, as long as this process runs: a pod can only be evicted from a device that is in a slice. GPUs
that cannot be read keep their last state, closed to new pods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lightkube.resources.resource_v1 import ResourceSlice

from pgpu.engine.claims import STEP_BYTES, ClaimableGpu, Claims
from pgpu.errors import NodeError
from pgpu.kubernetes.api import Node
from pgpu.kubernetes.names import DeviceKind
from pgpu.kubernetes.node_health import HealthReport, HealthSource, HealthState
from pgpu.kubernetes.resource_slices.api_features import Features
from pgpu.kubernetes.resource_slices.resource_pool import (
    DEFAULT_MEMORY_BYTES,
    USUAL_KINDS,
    pool_slices,
    published_bytes,
)

CALM_SECONDS = 30.0
"""Slices stay unchanged for so long before a better order or more memory is published."""


@dataclass
class PoolPlanner:
    """Plans one node's slices; for one thread."""

    claims: Claims
    health: HealthSource
    default_bytes: int = DEFAULT_MEMORY_BYTES
    kinds: Sequence[DeviceKind] = USUAL_KINDS
    problem: str | None = field(default=None, init=False)
    """Why the GPUs could not be read last time; None: they were."""

    _last: Mapping[str, ClaimableGpu] = field(default_factory=dict, init=False)
    _order: tuple[str, ...] = field(default=(), init=False)
    _bytes: Mapping[str, int] = field(default_factory=dict, init=False)

    def slices(self, node: Node, features: Features, *, is_calm: bool) -> list[ResourceSlice]:
        """Return the slices to publish now.

        Args:
            node: Their owner.
            features: Of the API server.
            is_calm: Whether the last writing is at least `CALM_SECONDS` ago, or there was none.

        Raises:
            NodeError: The GPUs cannot be read, and never were.
        """
        found, health = self._read(), self.health.health()
        lost = {
            uuid: offer for uuid, offer in self._last.items() if uuid not in found and _is_unhealthy(health.get(uuid))
        }
        # Kept until the process ends: pods can be evicted from them only while they are published.
        offers = self._last = {**found, **lost}
        if is_calm or offers.keys() != set(self._order):
            self._order = next_order(list(offers.values()), self._order)
        now_bytes = {uuid: published_bytes(offer) for uuid, offer in offers.items()}
        self._bytes = {
            uuid: amount if is_calm else min(amount, self._bytes.get(uuid, amount))
            for uuid, amount in now_bytes.items()
        }
        # Unknown, not unhealthy: running pods keep their GPUs, and only new ones are kept away.
        if self.problem is not None:
            unread = {uuid: HealthReport(uuid, HealthState.UNKNOWN) for uuid in offers}
            health = unread | {uuid: each for uuid, each in health.items() if _is_unhealthy(each)}
        return pool_slices(
            node,
            [offers[uuid] for uuid in self._order],
            health,
            self._bytes,
            default_bytes=self.default_bytes,
            features=features,
            kinds=self.kinds,
        )

    def _read(self) -> Mapping[str, ClaimableGpu]:
        try:
            offers = {offer.gpu.uuid: offer for offer in self.claims.gpus()}
        except NodeError as exc:
            if not self._last:
                raise
            self.problem = f"the GPUs cannot be read, and get no new pods: {exc}"
            return self._last
        self.problem = None
        return offers


def _is_unhealthy(health: HealthReport | None) -> bool:
    return health is not None and health.state is HealthState.UNHEALTHY


def next_order(offers: Sequence[ClaimableGpu], published: Sequence[str]) -> tuple[str, ...]:
    """Return the GPUs' UUIDs in the order in which to publish them: the scheduler takes the first device that fits. Pure.

    The fullest GPUs with room come first, then full ones, unused ones last: a pod starts on an unused GPU only if nothing else
    fits, so whole GPUs stay free for claims of one. Equal GPUs keep the published order.

    Args:
        offers: In the driver's order, which decides among GPUs that were never published.
        published: The present order; returned unchanged if the difference would not matter to any claim.
    """
    place = {uuid: number for number, uuid in enumerate(published)}
    room_bytes = {offer.gpu.uuid: published_bytes(offer) - offer.held_bytes for offer in offers}
    with_room = {uuid for uuid, amount in room_bytes.items() if amount >= STEP_BYTES}

    def rank(offer: ClaimableGpu) -> tuple[int, int, int]:
        uuid = offer.gpu.uuid
        group = 2 if offer.held_bytes == 0 else int(uuid not in with_room)
        return group, room_bytes[uuid], place.get(uuid, len(place))

    wanted = tuple(offer.gpu.uuid for offer in sorted(offers, key=rank))
    is_same = set(wanted) == set(published) and _among(wanted, with_room) == _among(published, with_room)
    return tuple(published) if is_same else wanted


def _among(order: Sequence[str], chosen: set[str]) -> list[str]:
    return [uuid for uuid in order if uuid in chosen]
