"""Device memory as a framework holds it: a pool that grows, and a record of what was held when.

It refuses to give memory back before the process ends, as TensorFlow does.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from pgpu.workloads.cuda_driver import CudaError, Device

MIB = 1 << 20
GRANULE_BYTES = 2 * MIB
"""The driver maps device memory in pages of this size, so smaller amounts cost as much."""


def whole_granules(amount_bytes: int) -> int:
    """Round down to what the driver can map without rounding up."""
    return max(0, amount_bytes) // GRANULE_BYTES * GRANULE_BYTES


@dataclass(slots=True)
class HeldMemory:
    """What this process holds, its context included, with the moment of each change."""

    device: Device
    now_seconds: Callable[[], float]
    """Seconds since the workload began."""

    held_bytes: int = 0
    refusals: int = 0
    timeline: list[tuple[float, int]] = field(default_factory=list)
    """(seconds, bytes held from then on)."""

    addresses: list[int] = field(default_factory=list)

    def count(self, amount_bytes: int) -> None:
        """Note memory that the driver took by itself, such as the context."""
        self.held_bytes += amount_bytes
        self.timeline.append((round(self.now_seconds(), 4), self.held_bytes))

    def take(self, amount_bytes: int) -> int:
        """Allocate and keep; return the address.

        Raises:
            CudaError: Refused; counted in `refusals` where there was no room.
        """
        try:
            address = self.device.allocate(amount_bytes)
        except CudaError as error:
            self.refusals += error.is_out_of_memory
            raise
        self.addresses.append(address)
        self.count(amount_bytes)
        return address

    def try_take(self, amount_bytes: int) -> bool:
        """Allocate and keep, or say that there was no room."""
        try:
            self.take(amount_bytes)
        except CudaError as error:
            if not error.is_out_of_memory:
                raise
            return False
        return True
