"""What to publish now, of what the engine offers and what stands published. Pure but for asking both.

What would cost pods something is said at once: less memory, an illness, a GPU that came or went. What only packs better
is said once the slices have stood for a while: each writing has every scheduler look at all waiting pods again.

A GPU that is lost stays, tainted, as long as this process knows of it: what is not in a slice cannot be taken from a pod.
GPUs that cannot be read stay as they were last, closed to new pods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lightkube.resources.resource_v1 import ResourceSlice

from pgpu.engine.claims import ClaimableGpu, Claims
from pgpu.errors import NodeError
from pgpu.kubernetes.api import Node
from pgpu.kubernetes.names import DeviceKind
from pgpu.kubernetes.node_health import Health, HealthSource, HealthState
from pgpu.kubernetes.resource_slices.api_features import Features
from pgpu.kubernetes.resource_slices.gpu_order import next_order
from pgpu.kubernetes.resource_slices.resource_pool import USUAL_KINDS, pool_slices
from pgpu.kubernetes.resource_slices.slice_devices import DEFAULT_MEMORY_BYTES, published_bytes

CALM_SECONDS = 30.0
"""How long slices stand before they are written again for a better order or more memory."""


@dataclass
class PoolPlanner:
    """One node's GPUs, looked at again and again."""

    claims: Claims
    health: HealthSource
    default_bytes: int = DEFAULT_MEMORY_BYTES
    kinds: Sequence[DeviceKind] = USUAL_KINDS
    complaint: str | None = field(default=None, init=False)
    """Why the GPUs could not be read at the last look; None where they could."""

    _last: Mapping[str, ClaimableGpu] = field(default_factory=dict, init=False)
    _order: tuple[str, ...] = field(default=(), init=False)
    _bytes: Mapping[str, int] = field(default_factory=dict, init=False)

    def slices(self, node: Node, features: Features, *, is_calm: bool) -> list[ResourceSlice]:
        """Return the slices as they should stand now.

        Args:
            node: Whose they are.
            features: Of the API server.
            is_calm: Whether the last writing is long ago, or was never.

        Raises:
            NodeError: The GPUs cannot be read, and never were.
        """
        found, health = self._read(), self.health.health()
        lost = {uuid: offer for uuid, offer in self._last.items() if uuid not in found and _is_ill(health.get(uuid))}
        offers = self._last = {**found, **lost}
        self._order = self._next_order(list(offers.values()), is_calm=is_calm)
        self._bytes = {uuid: self._next_bytes(offer, is_calm=is_calm) for uuid, offer in offers.items()}
        in_order = [offers[uuid] for uuid in self._order]
        return pool_slices(
            node,
            in_order,
            health if self.complaint is None else {uuid: _unread(uuid, health.get(uuid)) for uuid in offers},
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
            self.complaint = f"the GPUs cannot be read, and get no new pods: {exc}"
            return self._last
        self.complaint = None
        return offers

    def _next_order(self, offers: Sequence[ClaimableGpu], *, is_calm: bool) -> tuple[str, ...]:
        has_same = {offer.gpu.uuid for offer in offers} == set(self._order)
        return self._order if has_same and not is_calm else next_order(offers, self._order)

    def _next_bytes(self, offer: ClaimableGpu, *, is_calm: bool) -> int:
        now_bytes = published_bytes(offer)
        return now_bytes if is_calm else min(now_bytes, self._bytes.get(offer.gpu.uuid, now_bytes))


def _is_ill(health: Health | None) -> bool:
    return health is not None and health.state is HealthState.UNHEALTHY


def _unread(gpu_uuid: str, health: Health | None) -> Health:
    return health if health is not None and _is_ill(health) else Health(gpu_uuid, HealthState.UNKNOWN)
