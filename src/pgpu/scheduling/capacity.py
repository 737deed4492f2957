"""How much of a GPU slices may sum to, and which requests can never be met.

A MIG instance is granted whole, to one job: nobody else is in it, so nothing of it is kept as headroom. A job on several
GPUs gets no instances, since a process can use only one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pgpu.errors import RequestError
from pgpu.model import Gpu, Request, SharingMode
from pgpu.scheduling.tenancy import IDLE, Tenancy, mode_of, supports_mode
from pgpu.units import MIB, format_memory

IDLE_INSTANCE_BYTES = 64 * MIB
"""What an instance may hold while nobody uses it: NVIDIA's guide shows 12 to 40 MiB, which no process accounts for."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """Memory of each GPU that is never granted: the larger of an amount and a share."""

    least_bytes: int = 256 * MIB
    fraction: float = 0.03
    """Of the GPU's memory, 0 to below 1."""

    def of(self, gpu: Gpu) -> int:
        """Return the bytes of this GPU that are never granted; 0 of a MIG instance."""
        return 0 if gpu.is_instance else max(self.least_bytes, math.ceil(gpu.memory_bytes * self.fraction))


@dataclass(frozen=True, slots=True)
class GpuRoom:
    """One GPU at one moment, in bytes."""

    gpu: Gpu
    headroom_bytes: int
    outsiders_bytes: int
    """Held by processes that no slice covers."""

    granted_bytes: int
    """What slices sum to, or more where a slice was made smaller than what it holds."""

    granted_compute: float = 0.0
    """What compute shares sum to, 0 to 1."""

    tenancy: Tenancy = IDLE
    """How those who are there share it."""

    @property
    def capacity_bytes(self) -> int:
        """What slices may sum to now; none of an instance that others use. Source: P1; pgpu admits only what fits."""
        if self.gpu.is_instance:
            return self.gpu.memory_bytes if self.outsiders_bytes <= IDLE_INSTANCE_BYTES else 0
        return max(0, self.gpu.memory_bytes - self.headroom_bytes - self.outsiders_bytes)

    @property
    def free_bytes(self) -> int:
        """The largest slice that can be granted now."""
        return max(0, self.capacity_bytes - self.granted_bytes)

    @property
    def free_compute(self) -> float:
        """The largest share of its time that can be granted now, 0 to 1."""
        return max(0.0, 1.0 - self.granted_compute)

    def most_bytes(self, slice_bytes: int) -> int:
        """Return what a slice that is on it already may grow to: a job has all of its instance."""
        return self.gpu.memory_bytes if self.gpu.is_instance else slice_bytes + self.free_bytes


def taken_bytes(gpu: Gpu, slices_bytes: int) -> int:
    """Return what slices that sum to `slices_bytes` take of a GPU: of a MIG instance, any slice takes all."""
    return max(gpu.memory_bytes, slices_bytes) if gpu.is_instance and slices_bytes else slices_bytes


def has_compute(free_compute: float, share: float) -> bool:
    """Whether a share of a GPU's time is free; sums of shares are off by what floats are off."""
    return share <= free_compute + _ROUNDING


_ROUNDING = 1e-9


def usable(gpu: Gpu, gpu_count: int) -> bool:
    """Whether a job on `gpu_count` GPUs can use this one. Source: MIG User Guide: a process sees one instance at most."""
    return gpu_count == 1 or not gpu.is_instance


def check_can_ever_fit(gpus: Sequence[Gpu], request: Request, headroom: Headroom) -> None:
    """Refuse a request that these GPUs could not meet even if all of them were idle.

    Raises:
        RequestError: It can never be met; `.nearest_bytes` is the most that could, None if there are too few GPUs.
    """
    candidates = [gpu for gpu in gpus if usable(gpu, request.gpu_count)]
    if request.gpu_count > len(candidates):
        raise _too_few(request.gpu_count, len(candidates), len(gpus) - len(candidates))
    candidates = _of_mode(candidates, request)
    best = sorted(candidates, key=lambda gpu: gpu.memory_bytes - headroom.of(gpu), reverse=True)
    last = best[request.gpu_count - 1]
    nearest_bytes = last.memory_bytes - headroom.of(last)
    if request.memory_bytes > nearest_bytes:
        where = "one GPU" if request.gpu_count == 1 else f"each of {request.gpu_count} GPUs"
        raise RequestError(
            f"{format_memory(request.memory_bytes)} can never be granted on {where}",
            hint=f"ask for at most {format_down(nearest_bytes)}"
            + ("" if headroom.of(last) == 0 else f" ({format_memory(headroom.of(last))} are kept as headroom)"),
            nearest_bytes=nearest_bytes,
        )


def _of_mode(candidates: Sequence[Gpu], request: Request) -> list[Gpu]:
    mode = mode_of(request.sharing)
    able = [gpu for gpu in candidates if supports_mode(gpu, request)]
    if mode is SharingMode.MPS and not able:
        raise RequestError(
            "no GPU here can be shared by MPS: it takes one of the Volta generation or later",
            hint="leave --sharing out",
        )
    return able


def _too_few(wanted: int, count: int, instances: int) -> RequestError:
    return RequestError(
        f"{wanted} GPUs were asked for, and there {_are(count)}",
        hint="a process can use only one MIG instance, so they are given to jobs on one GPU" if instances else None,
    )


def format_down(memory_bytes: int) -> str:
    """Write an amount that, typed back as it is, is not more than `memory_bytes`."""
    return f"{memory_bytes // MIB}MiB"


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count}"
