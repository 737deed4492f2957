"""How much of a GPU slices may sum to, and which requests can never be met.

A MIG instance is granted whole, to one job: nobody else is in it, so nothing of it is kept as headroom. A job on several
GPUs gets no instances, since a process can use only one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pgpu.errors import RequestError
from pgpu.model import Gpu, Request, SharingMode, SharingWish, Slice
from pgpu.units import MIB, format_memory

MOST_MPS_CLIENTS = 48
"""Jobs of one process each; who has more finds the server full. Source: NVIDIA, "Multi-Process Service", section on limits."""

MOST_MPS_CLIENTS_FROM_BLACKWELL = 60
_BLACKWELL = (10, 0)

FIRST_WITH_MPS = (7, 0)
"""Compute capability of Volta. Before it clients share one address space, so that nothing keeps one out of another's memory: same
document."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Who is on one GPU."""

    mode: SharingMode | None = None
    """None where nobody is."""

    owner_uid: int | None = None
    """Whose jobs they are, under MPS; None in the other modes."""

    jobs: int = 0

    def admits(self, mode: SharingMode, owner_uid: int, most_clients: int = MOST_MPS_CLIENTS) -> bool:
        """Whether a job of this user may join in this mode. Under MPS a fault of one ends all: only one user's are together."""
        if self.mode is None:
            return True
        if self.mode is not mode or mode is SharingMode.EXCLUSIVE:
            return False
        return mode is not SharingMode.MPS or (self.owner_uid == owner_uid and self.jobs < most_clients)

    def joined(self, mode: SharingMode, owner_uid: int) -> "Tenancy":
        """Return the same with one job more."""
        return Tenancy(mode, owner_uid if mode is SharingMode.MPS else None, self.jobs + 1)

    def left(self) -> "Tenancy":
        """Return the same with one job less."""
        return replace(self, jobs=self.jobs - 1) if self.jobs > 1 else IDLE


IDLE = Tenancy()


def mode_of(wish: SharingWish) -> SharingMode:
    """Return the mode in which a job starts that wishes this, where nothing is measured of it."""
    return _MODES[wish]


_MODES = {wish: SharingMode.TIME_SLICE if wish is SharingWish.AUTO else SharingMode(wish.value) for wish in SharingWish}


def supports_mode(gpu: Gpu, request: Request) -> bool:
    """Whether a GPU can be in the mode that a request starts in; one that does not tell its generation is believed to.

    Before Volta only measurements run under MPS: what a command could hurt there is an antagonist of pgpu.
    """
    return mode_of(request.sharing) is not SharingMode.MPS or has_mps(gpu) or request.measures


def has_mps(gpu: Gpu) -> bool:
    """Whether anybody's jobs may share a GPU under MPS; one that does not tell its generation is believed to be new enough."""
    return gpu.compute_capability is None or gpu.compute_capability >= FIRST_WITH_MPS


def most_clients(gpu: Gpu) -> int:
    """Return how many jobs may share a GPU by MPS."""
    is_new = gpu.compute_capability is not None and gpu.compute_capability >= _BLACKWELL
    return MOST_MPS_CLIENTS_FROM_BLACKWELL if is_new else MOST_MPS_CLIENTS


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


GRANULE_BYTES = 2 * MIB
"""Memory of a device is given out in such blocks."""

FIRST_THAT_PAGES = (6, 0)
"""Source: CUDA C Programming Guide, "Unified Memory": before Pascal all managed memory must fit on the device."""


def resident_bytes(memory_bytes: int, factor: float) -> int:
    """Return how much of a slice is surely the device's, where all slices may sum to `factor` times a GPU."""
    part = math.ceil(memory_bytes / factor)
    return min(memory_bytes, math.ceil(part / GRANULE_BYTES) * GRANULE_BYTES)


def taken_of_device(request: Request, factor: float) -> Request:
    """Return a request for what it takes of each GPU that nobody else may have."""
    if not request.oversubscribes:
        return request
    return replace(request, memory_bytes=resident_bytes(request.memory_bytes, factor))


def can_page(gpu: Gpu, factor: float) -> bool:
    """Whether jobs on a GPU may oversubscribe; one that does not tell its generation is believed to be new enough."""
    is_old = gpu.compute_capability is not None and gpu.compute_capability < FIRST_THAT_PAGES
    return factor > 1 and not gpu.is_instance and not is_old


def most_oversubscribed_bytes(capacity_bytes: int, factor: float, step_bytes: int) -> int:
    """Return what slices of whole steps may sum to, whatever their sizes, so that all their resident parts fit."""
    return capacity_bytes // resident_bytes(step_bytes, factor) * step_bytes


def with_host_part(part: Slice, memory_bytes: int) -> Slice:
    """Return the slice of a job that was given this part of the device and asked for `memory_bytes` in all."""
    return replace(part, memory_bytes=memory_bytes, resident_bytes=part.memory_bytes)


def host_bytes(slices: Iterable[Slice]) -> int:
    """Return how much of these slices the host may have to hold."""
    return sum(part.memory_bytes - part.device_bytes for part in slices)


def short_of_host_memory(
    waiting: Sequence[tuple[str, Request]], promised_bytes: int, available_bytes: int, factor: float
) -> Mapping[str, str]:
    """Say of which waiting jobs the host could not hold what might have to be moved there, and why.

    Args:
        waiting: Ids and requests, in the order in which they may have it.
        promised_bytes: What running jobs may still have to move to the host.
        available_bytes: What the host could give now.
        factor: As for `resident_bytes`.
    """
    reasons = {}
    left_bytes = available_bytes - promised_bytes
    for job_id, request in waiting:
        need_bytes = request.gpu_count * (request.memory_bytes - taken_of_device(request, factor).memory_bytes)
        if need_bytes <= max(0, left_bytes):
            left_bytes -= need_bytes
        else:
            reasons[job_id] = (
                f"waits for host memory: {format_memory(need_bytes)} of it may have to lie there, and"
                f" {format_memory(max(0, left_bytes))} are left"
            )
    return reasons


def check_can_preempt(request: Request) -> None:
    """Refuse a job that could suspend nobody.

    Raises:
        RequestError: It is on several GPUs, or shares its GPU in a way in which nobody can be held.
    """
    if request.preempts and request.gpu_count > 1:
        raise RequestError("--preempt is for jobs on one GPU", hint="leave --gpus or --preempt out")
    if request.preempts and request.sharing not in {SharingWish.TIME_SLICE, SharingWish.AUTO}:
        raise RequestError(
            "--preempt is for GPUs whose jobs share them in turns", hint="leave --sharing or --preempt out"
        )


def check_can_page(gpus: Sequence[Gpu], request: Request, factor: float) -> None:
    """Refuse a job that oversubscribes where its memory could not be moved.

    Raises:
        RequestError: These GPUs cannot page, or the job cannot take turns.
    """
    if not request.oversubscribes:
        return
    if factor <= 1:
        raise RequestError("--oversubscribe is switched off here", hint="set oversubscription above 1, such as 1.5")
    if request.gpu_count > 1:
        raise RequestError("--oversubscribe is for jobs on one GPU", hint="leave --gpus or --oversubscribe out")
    if request.is_estimated:
        raise RequestError("--oversubscribe needs an amount of memory", hint="add --memory 4GiB, say")
    if all(gpu.is_instance for gpu in gpus):
        raise RequestError("a MIG instance has one job, so nothing needs to be moved", hint="leave --oversubscribe out")
    unable = [gpu for gpu in gpus if gpu.compute_capability is not None and gpu.compute_capability < FIRST_THAT_PAGES]
    if unable:
        raise RequestError(
            f"{unable[0].name} cannot move memory to the host while kernels run: GPUs since Pascal can",
            hint="leave --oversubscribe out",
        )
