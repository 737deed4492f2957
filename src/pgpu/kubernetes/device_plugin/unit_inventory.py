"""Which GiB of which GPU the kubelet may give away now, computed from the engine's offers and the GPUs' health.

Ids stay listed as long as this process lives. A GPU that shrinks has unhealthy units instead of fewer, and a unit that a container
has stays healthy: a restarting kubelet evicts pods with unhealthy devices.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pgpu.engine.claims import ClaimableGpu, Claims
from pgpu.errors import NodeError
from pgpu.kubernetes.node_health import HealthSource, HealthState
from pgpu.kubernetes.unit_ids import UNIT_BYTES, Unit


@dataclass(frozen=True, slots=True)
class OfferedUnit:
    """One unit as it is listed to the kubelet."""

    unit: Unit
    is_healthy: bool


class UnitInventory:
    """The list of units, with a version that waiting streams follow. Thread-safe."""

    def __init__(
        self, claims: Claims, in_use: Callable[[], frozenset[Unit]], health: HealthSource | None = None
    ) -> None:
        """List nothing before `refresh`.

        Args:
            claims: Of this node.
            in_use: Returns the units that containers have.
            health: Fatal errors of GPUs; None: not watched.
        """
        self._claims = claims
        self._in_use = in_use
        self._health = health
        self._most: dict[str, int] = {}
        self._offered: tuple[OfferedUnit, ...] = ()
        self._version = 0
        self._changed = threading.Condition()
        self._is_closed = False

    def refresh(self) -> None:
        """Read the GPUs, and wake the streams if the list has changed.

        Raises:
            NodeError: They cannot be read; until they can, all units are unhealthy.
        """
        before = self._in_use()
        try:
            offers = {each.gpu.uuid: each for each in self._claims.gpus()}
        except NodeError:
            self._publish(_listed(self._most, {}, frozenset()))
            raise
        for uuid, offer in offers.items():
            self._most[uuid] = max(self._most.get(uuid, 0), offer.memory_bytes // UNIT_BYTES)
        known = {} if self._health is None else self._health.health()
        for each in known.values():
            if each.state is HealthState.UNHEALTHY:
                offers.pop(each.gpu_uuid, None)
        # Units allocated or freed during the reading count as in use: one healthy unit too few is corrected by the next
        # refresh, but an unhealthy unit of a container could cost its pod the place on this node.
        self._publish(_listed(self._most, offers, before | self._in_use()))

    def _publish(self, offered: tuple[OfferedUnit, ...]) -> None:
        with self._changed:
            if offered != self._offered:
                self._offered = offered
                self._version += 1
                self._changed.notify_all()

    def current(self) -> tuple[int, Sequence[OfferedUnit]]:
        """Return the version and the list."""
        with self._changed:
            return self._version, self._offered

    def wait_beyond(self, version: int, timeout_seconds: float) -> bool:
        """Wait until the list has another version or the inventory is closed; returns False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._version != version or self._is_closed, timeout_seconds)

    @property
    def is_closed(self) -> bool:
        """Whether streams shall end."""
        return self._is_closed

    def close(self) -> None:
        """Wake and end all streams."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def _listed(
    most: Mapping[str, int], offers: Mapping[str, ClaimableGpu], held: frozenset[Unit]
) -> tuple[OfferedUnit, ...]:
    """List the units of each GPU: those in use are healthy, and as many others as there is room for."""
    listed: list[OfferedUnit] = []
    for uuid, count in sorted(most.items()):
        units = [Unit(uuid, number) for number in range(count)]
        healthy: set[Unit] = set()
        if (offer := offers.get(uuid)) is not None:
            healthy = {unit for unit in held if unit.gpu_uuid == uuid}
            free_bytes = 0 if offer.is_closed else offer.memory_bytes - offer.held_bytes
            others = [unit for unit in units if unit not in healthy]
            healthy.update(others[: max(0, free_bytes // UNIT_BYTES)])
        listed += (OfferedUnit(unit, unit in healthy) for unit in units)
    return tuple(listed)
