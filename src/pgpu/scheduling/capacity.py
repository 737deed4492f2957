"""How much of a GPU slices may sum to, and which requests can never be met."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pgpu.errors import RequestError
from pgpu.model import Gpu, Request
from pgpu.units import MIB, format_memory


@dataclass(frozen=True, slots=True)
class Headroom:
    """Memory of each GPU that is never granted: the larger of an amount and a share."""

    least_bytes: int = 256 * MIB
    fraction: float = 0.03
    """Of the GPU's memory, 0 to below 1."""

    def of(self, gpu: Gpu) -> int:
        """Return the bytes of this GPU that are never granted."""
        return max(self.least_bytes, math.ceil(gpu.memory_bytes * self.fraction))


@dataclass(frozen=True, slots=True)
class GpuRoom:
    """One GPU at one moment, in bytes."""

    gpu: Gpu
    headroom_bytes: int
    outsiders_bytes: int
    """Held by processes that no slice covers."""

    granted_bytes: int
    """What slices sum to, or more where a slice was made smaller than what it holds."""

    @property
    def capacity_bytes(self) -> int:
        """What slices may sum to now. Source: P1's future work; pgpu admits only what fits."""
        return max(0, self.gpu.memory_bytes - self.headroom_bytes - self.outsiders_bytes)

    @property
    def free_bytes(self) -> int:
        """The largest slice that can be granted now."""
        return max(0, self.capacity_bytes - self.granted_bytes)


def check_can_ever_fit(gpus: Sequence[Gpu], request: Request, headroom: Headroom) -> None:
    """Refuse a request that these GPUs could not meet even if all of them were idle.

    Raises:
        RequestError: It can never be met; `.nearest_bytes` is the most that could, None if there are too few GPUs.
    """
    if request.gpu_count > len(gpus):
        raise RequestError(f"{request.gpu_count} GPUs were asked for, and there {_are(len(gpus))}")
    largest = sorted((gpu.memory_bytes - headroom.of(gpu) for gpu in gpus), reverse=True)
    nearest_bytes = largest[request.gpu_count - 1]
    if request.memory_bytes > nearest_bytes:
        where = "one GPU" if request.gpu_count == 1 else f"each of {request.gpu_count} GPUs"
        raise RequestError(
            f"{format_memory(request.memory_bytes)} can never be granted on {where}",
            hint=f"ask for at most {format_down(nearest_bytes)}"
            + ("" if headroom.of(gpus[0]) == 0 else f" ({format_memory(headroom.of(gpus[0]))} are kept as headroom)"),
            nearest_bytes=nearest_bytes,
        )


def format_down(memory_bytes: int) -> str:
    """Write an amount that, typed back as it is, is not more than `memory_bytes`."""
    return f"{memory_bytes // MIB}MiB"


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count}"
