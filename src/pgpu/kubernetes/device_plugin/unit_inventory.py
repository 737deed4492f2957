"""Which GiB of which GPU the kubelet may give away now. Told by `Claims.gpus`, it refuses to touch a GPU itself.

Ids stay as long as this process: what shrinks is not taken off the list but called unhealthy, and never what a container
has: a kubelet that restarts throws out pods whose devices are.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pgpu.engine.claims import ClaimableGpu, Claims
from pgpu.errors import NodeError
from pgpu.kubernetes.device_plugin.unit_ids import UNIT_BYTES, Unit
from pgpu.kubernetes.gpu_health import HealthSource, HealthState


@dataclass(frozen=True, slots=True)
class OfferedUnit:
    """One unit, as the kubelet is told of it."""

    unit: Unit
    is_healthy: bool


class UnitInventory:
    """The list of units, and who waits for it to change. For many threads."""

    def __init__(
        self, claims: Claims, in_use: Callable[[], frozenset[Unit]], health: HealthSource | None = None
    ) -> None:
        """Read nothing yet.

        Args:
            claims: Of this node.
            in_use: Returns the units that containers have.
            health: Who knows of fatal errors; None where nobody looks.
        """
        self._claims = claims
        self._in_use = in_use
        self._health = health
        self._most: dict[str, int] = {}
        self._offered: tuple[OfferedUnit, ...] = ()
        self._version = 0
        self._changed = threading.Condition()
        self._is_over = False

    def refresh(self) -> None:
        """Look at the GPUs, and tell who waits if anything is otherwise than before.

        Raises:
            NodeError: They cannot be read; nothing can be given away until they can.
        """
        before = self._in_use()
        try:
            offers = {each.gpu.uuid: each for each in self._claims.gpus()}
        except NodeError:
            self._say(_listed(self._most, {}, frozenset()))
            raise
        for uuid, offer in offers.items():
            self._most[uuid] = max(self._most.get(uuid, 0), offer.memory_bytes // UNIT_BYTES)
        # What came or went meanwhile counts as in use: a unit too few now would cost a pod its place on this node.
        self._say(_listed(self._most, self._without_the_ill(offers), before | self._in_use()))

    def _without_the_ill(self, offers: Mapping[str, ClaimableGpu]) -> Mapping[str, ClaimableGpu]:
        known = {} if self._health is None else self._health.health()
        ill = {uuid for uuid, each in known.items() if each.state is HealthState.UNHEALTHY}
        return {uuid: offer for uuid, offer in offers.items() if uuid not in ill}

    def _say(self, offered: tuple[OfferedUnit, ...]) -> None:
        with self._changed:
            if offered != self._offered:
                self._offered = offered
                self._version += 1
                self._changed.notify_all()

    def now(self) -> tuple[int, Sequence[OfferedUnit]]:
        """Return the list, and its version."""
        with self._changed:
            return self._version, self._offered

    def wait_beyond(self, version: int, timeout_seconds: float) -> bool:
        """Wait until the list is another than that of `version`, for at most so long; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._version != version or self._is_over, timeout_seconds)

    @property
    def is_over(self) -> bool:
        """Whether nobody has to wait any more."""
        return self._is_over

    def close(self) -> None:
        """Let everybody go who waits."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


def _listed(
    most: Mapping[str, int], offers: Mapping[str, ClaimableGpu], held: frozenset[Unit]
) -> tuple[OfferedUnit, ...]:
    return tuple(
        OfferedUnit(unit, unit in fine)
        for uuid, count in sorted(most.items())
        for fine in [_healthy(uuid, count, offers.get(uuid), held)]
        for unit in _units(uuid, count)
    )


def _healthy(uuid: str, count: int, offer: ClaimableGpu | None, held: frozenset[Unit]) -> frozenset[Unit]:
    """Return the units of one GPU that are in use, and as many others as there is room for."""
    if offer is None:
        return frozenset()
    used = frozenset(unit for unit in held if unit.gpu_uuid == uuid)
    free_bytes = 0 if offer.is_closed else offer.memory_bytes - offer.held_bytes
    others = [unit for unit in _units(uuid, count) if unit not in used]
    return used.union(others[: max(0, free_bytes // UNIT_BYTES)])


def _units(uuid: str, count: int) -> Iterable[Unit]:
    return (Unit(uuid, number) for number in range(count))
