"""Capacity of one GPU: how its jobs share it, how much slices may sum to, and which requests can never be granted.

Two sharing modes never meet on one GPU; the first job on an idle GPU sets the mode until the last one leaves. A MIG instance
is granted whole to one job, so no headroom is kept in it. A job on several GPUs gets no instances, since a process can use
only one. The part of an oversubscribed slice that cannot move to the host counts as device memory; the rest must fit in
host memory for all such jobs at once, so no host memory is promised twice.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from pgpu.errors import RequestError
from pgpu.model import Gpu, Request, SharingMode, SharingWish, Slice
from pgpu.structs import Struct, replace
from pgpu.units import MIB, format_memory, quoted

# MPS clients per GPU; a further one is refused by the MPS server. Source: NVIDIA, "Multi-Process Service", limits.
MOST_MPS_CLIENTS = 48

MOST_MPS_CLIENTS_FROM_BLACKWELL = 60
_BLACKWELL = (10, 0)

# Compute capability of Volta. Before it MPS clients share one address space, so memory is not isolated between them. Same
# source.
FIRST_WITH_MPS = (7, 0)

# Most that an unused MIG instance holds: NVIDIA's guide shows 12 to 40 MiB that belong to no process.
IDLE_INSTANCE_BYTES = 64 * MIB

# Allocation granularity of device memory.
GRANULE_BYTES = 2 * MIB

# Source: CUDA C Programming Guide, "Unified Memory": before Pascal all managed memory must fit on the device.
FIRST_THAT_PAGES = (6, 0)

# Sums of compute shares are floats; a share fits if it is over by no more than this.
_ROUNDING = 1e-9


class Tenancy(Struct, frozen=True):
    """The jobs on one GPU, as far as sharing goes."""

    mode: SharingMode | None = None
    """None on an idle GPU."""

    owner_uid: int | None = None
    """Owner of all its jobs under MPS; None in other modes."""

    jobs: int = 0

    def admits(self, mode: SharingMode, owner_uid: int, most_clients: int = MOST_MPS_CLIENTS) -> bool:
        """Whether a job of this user may join in this mode. A fault under MPS ends all clients, so one user has them all."""
        if self.mode is None:
            return True
        if self.mode is not mode or mode is SharingMode.EXCLUSIVE:
            return False
        return mode is not SharingMode.MPS or (self.owner_uid == owner_uid and self.jobs < most_clients)

    def with_job(self, mode: SharingMode, owner_uid: int) -> "Tenancy":
        """Return the tenancy with one more job."""
        return Tenancy(mode, owner_uid if mode is SharingMode.MPS else None, self.jobs + 1)

    def without_job(self) -> "Tenancy":
        """Return the tenancy with one job less."""
        return replace(self, jobs=self.jobs - 1) if self.jobs > 1 else IDLE


IDLE = Tenancy()

_MODES = {wish: SharingMode.TIME_SLICE if wish is SharingWish.AUTO else SharingMode(wish.value) for wish in SharingWish}


def mode_of(wish: SharingWish) -> SharingMode:
    """Return the mode in which a job with this wish starts; `auto` starts in time slices."""
    return _MODES[wish]


def supports_mode(gpu: Gpu, request: Request) -> bool:
    """Whether a GPU supports the mode that a request starts in; True if its compute capability is unknown.

    Before Volta only measurements run under MPS: the neighbour there is an antagonist of pgpu, which has no data to lose.
    """
    return mode_of(request.sharing) is not SharingMode.MPS or has_mps(gpu) or request.measures


def has_mps(gpu: Gpu) -> bool:
    """Whether MPS isolates the memory of clients on a GPU; True if its compute capability is unknown."""
    return gpu.compute_capability is None or gpu.compute_capability >= FIRST_WITH_MPS


def most_clients(gpu: Gpu) -> int:
    """Return the most jobs that can share a GPU under MPS."""
    is_new = gpu.compute_capability is not None and gpu.compute_capability >= _BLACKWELL
    return MOST_MPS_CLIENTS_FROM_BLACKWELL if is_new else MOST_MPS_CLIENTS


class Headroom(Struct, frozen=True):
    """Memory of each GPU that is kept free of slices: the larger of an amount and a fraction."""

    least_bytes: int = 256 * MIB
    fraction: float = 0.03
    """Of the GPU's memory, 0 to below 1."""

    yields: bool = False
    """Whether slices of declared sizes may use it while the memory outside of slices is stable (`yielding_headroom`)."""

    def of(self, gpu: Gpu) -> int:
        """Return the bytes of this GPU that are kept free; 0 for a MIG instance."""
        return 0 if gpu.is_instance else max(self.least_bytes, math.ceil(gpu.memory_bytes * self.fraction))


class GpuRoom(Struct, frozen=True):
    """One GPU at one moment."""

    gpu: Gpu
    headroom_bytes: int
    outsiders_bytes: int
    """Held by processes outside every slice."""

    granted_bytes: int
    """Sum of the slices, or more where a job holds more than its shrunk slice."""

    granted_compute: float = 0.0
    """Sum of the compute shares, 0 to 1."""

    tenancy: Tenancy = IDLE

    growing_jobs: int = 0
    """Number of its jobs whose slices may grow (`slice_growth.grows`)."""

    growers: tuple[int, ...] = ()
    """Users of those that wait to grow: jobs of theirs whose slices may grow do not start there."""

    holds_others: bool = False
    """Whether such jobs of other users do not start there either."""

    yielded_bytes: int = 0
    """The part of the headroom that slices of declared sizes may use now; 0 beside any other slice."""

    @property
    def capacity_bytes(self) -> int:
        """What slices of any size may sum to now; 0 for a MIG instance that outsiders use. Source: P1; pgpu admits only what fits."""
        if self.gpu.is_instance:
            return self.gpu.memory_bytes if self.outsiders_bytes <= IDLE_INSTANCE_BYTES else 0
        return max(0, self.gpu.memory_bytes - self.headroom_bytes - self.outsiders_bytes)

    @property
    def free_bytes(self) -> int:
        """The largest slice of any size that can be granted now."""
        return max(0, self.capacity_bytes - self.granted_bytes)

    @property
    def free_declared_bytes(self) -> int:
        """The largest slice of a declared size that can be granted now."""
        return max(0, self.capacity_bytes + self.yielded_bytes - self.granted_bytes)

    @property
    def free_compute(self) -> float:
        """The largest compute share that can be granted now, 0 to 1."""
        return max(0.0, 1.0 - self.granted_compute)

    def most_bytes(self, slice_bytes: int) -> int:
        """Return the size to which a slice on this GPU can grow."""
        return self.gpu.memory_bytes if self.gpu.is_instance else slice_bytes + self.free_bytes


def taken_bytes(gpu: Gpu, slices_bytes: int) -> int:
    """Return the memory that slices of this sum take of a GPU: any slice takes all of a MIG instance."""
    return max(gpu.memory_bytes, slices_bytes) if gpu.is_instance and slices_bytes else slices_bytes


def has_compute(free_compute: float, share: float) -> bool:
    """Whether a compute share fits, up to rounding."""
    return share <= free_compute + _ROUNDING


def usable(gpu: Gpu, request: Request) -> bool:
    """Whether a job may run on this GPU at all. Source: MIG User Guide: a process sees one instance at most."""
    is_accepted = not request.gpu_models or any(model.casefold() in gpu.name.casefold() for model in request.gpu_models)
    return is_accepted and (request.gpu_count == 1 or not gpu.is_instance)


def format_models(request: Request) -> str:
    """Format the models that a job names: `'A100' or 'H100'`."""
    return " or ".join(map(quoted, request.gpu_models))


def check_can_ever_fit(gpus: Sequence[Gpu], request: Request, headroom: Headroom) -> None:
    """Refuse a request that these GPUs could not meet even if all of them were idle.

    Raises:
        RequestError: It can never be granted; `.nearest_bytes` is the largest that could, None if there are too few GPUs.
    """
    candidates = [gpu for gpu in gpus if usable(gpu, request)]
    count = len(candidates)
    if request.gpu_count > count and request.gpu_models:
        asked = "1 GPU was" if request.gpu_count == 1 else f"{request.gpu_count} GPUs were"
        raise RequestError(
            f"{asked} asked for of {format_models(request)}, and there {'is 1' if count == 1 else f'are {count}'}",
            hint=f"the GPUs here are {', '.join(sorted({gpu.name for gpu in gpus}))}",
        )
    if request.gpu_count > count:
        has_instances = len(gpus) > count
        raise RequestError(
            f"{request.gpu_count} GPUs were asked for, and there {'is 1' if count == 1 else f'are {count}'}",
            hint="a process can use only one MIG instance, so they are given to jobs on one GPU"
            if has_instances
            else None,
        )
    candidates = [gpu for gpu in candidates if supports_mode(gpu, request)]
    if mode_of(request.sharing) is SharingMode.MPS and not candidates:
        raise RequestError(
            "no GPU here can be shared by MPS: it takes one of the Volta generation or later",
            hint="leave --sharing out",
        )
    best = sorted(candidates, key=lambda gpu: gpu.memory_bytes - headroom.of(gpu), reverse=True)
    # A job on n GPUs gets the same amount of each, so the n-th largest is its limit.
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


def format_down(memory_bytes: int) -> str:
    """Format an amount rounded down to MiB, so that the text parses to no more than `memory_bytes`."""
    return f"{memory_bytes // MIB}MiB"


def resident_bytes(memory_bytes: int, factor: float) -> int:
    """Return the part of a slice that stays on the device, where all slices may sum to `factor` times a GPU."""
    part = math.ceil(memory_bytes / factor)
    return min(memory_bytes, math.ceil(part / GRANULE_BYTES) * GRANULE_BYTES)


def taken_of_device(request: Request, factor: float) -> Request:
    """Return the request for device memory that cannot be shared with other jobs."""
    if not request.oversubscribes:
        return request
    return replace(request, memory_bytes=resident_bytes(request.memory_bytes, factor))


def can_page(gpu: Gpu, factor: float) -> bool:
    """Whether jobs on a GPU may oversubscribe; a GPU of unknown compute capability counts as new enough."""
    is_old = gpu.compute_capability is not None and gpu.compute_capability < FIRST_THAT_PAGES
    return factor > 1 and not gpu.is_instance and not is_old


def most_oversubscribed_bytes(capacity_bytes: int, factor: float, step_bytes: int) -> int:
    """Return what slices in whole steps may sum to, whatever their sizes, so that all their resident parts fit."""
    return capacity_bytes // resident_bytes(step_bytes, factor) * step_bytes


def with_host_part(part: Slice, memory_bytes: int) -> Slice:
    """Return the slice of an oversubscribing job from the granted device part and its requested `memory_bytes`."""
    return replace(part, memory_bytes=memory_bytes, resident_bytes=part.memory_bytes)


def host_bytes(slices: Iterable[Slice]) -> int:
    """Return how much of these slices may have to move to the host."""
    return sum(part.memory_bytes - part.device_bytes for part in slices)


def short_of_host_memory(
    waiting: Sequence[tuple[str, Request]], promised_bytes: int, available_bytes: int, factor: float
) -> Mapping[str, str]:
    """Return, by id, why the host could not hold what a waiting job may have to move there.

    Args:
        waiting: Ids and requests, in the order in which host memory is given to them.
        promised_bytes: What running jobs may still move to the host.
        available_bytes: Free host memory.
        factor: As for `resident_bytes`.
    """
    reasons = {}
    left_bytes = available_bytes - promised_bytes
    for job_id, request in waiting:
        need_bytes = request.gpu_count * (request.memory_bytes - taken_of_device(request, factor).memory_bytes)
        if need_bytes <= max(0, left_bytes):
            left_bytes -= need_bytes
        else:  # It takes nothing, so a smaller job behind it may still fit.
            reasons[job_id] = (
                f"waits for host memory: {format_memory(need_bytes)} of it may have to lie there, and"
                f" {format_memory(max(0, left_bytes))} are left"
            )
    return reasons


def check_can_preempt(request: Request) -> None:
    """Refuse a preempting job that could suspend no other job.

    Raises:
        RequestError: It runs on several GPUs, or in a mode in which jobs cannot be suspended.
    """
    if request.preempts and request.gpu_count > 1:
        raise RequestError("--preempt is for jobs on one GPU", hint="leave --gpus or --preempt out")
    if request.preempts and request.sharing not in {SharingWish.TIME_SLICE, SharingWish.AUTO}:
        raise RequestError(
            "--preempt is for GPUs whose jobs share them in turns", hint="leave --sharing or --preempt out"
        )


def check_can_page(gpus: Sequence[Gpu], request: Request, factor: float) -> None:
    """Refuse an oversubscribing job on GPUs that cannot move its memory to the host.

    Raises:
        RequestError: These GPUs do not page, or the job cannot take turns with others.
    """
    if not request.oversubscribes:
        return
    if factor <= 1:
        raise RequestError("--oversubscribe is switched off here", hint="set oversubscription above 1, such as 1.5")
    if request.gpu_count > 1:
        raise RequestError("--oversubscribe is for jobs on one GPU", hint="leave --gpus or --oversubscribe out")
    if request.is_estimated:
        raise RequestError("--oversubscribe needs an amount of memory", hint="add --memory 4GiB, for example")
    if all(gpu.is_instance for gpu in gpus):
        raise RequestError("a MIG instance has one job, so nothing needs to be moved", hint="leave --oversubscribe out")
    unable = [gpu for gpu in gpus if gpu.compute_capability is not None and gpu.compute_capability < FIRST_THAT_PAGES]
    if unable:
        raise RequestError(
            f"{unable[0].name} cannot move memory to the host while kernels run: GPUs since Pascal can",
            hint="leave --oversubscribe out",
        )
