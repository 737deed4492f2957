"""Jobs whose memory may lie on the host: what they take of a GPU for good, and whether the host has room for the rest.

A job that oversubscribes is sure of a part of its slice on the device, for what cannot be moved, and no more than that is
granted of it; so jobs that do not oversubscribe keep all that they were promised. It refuses to lend a part of the host
twice: what every job may have to move there must fit at once.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pgpu.errors import RequestError
from pgpu.model import Gpu, Request, SharingWish, Slice
from pgpu.units import MIB, format_memory

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
