"""What a job waits for where memory is short, in words."""

from collections.abc import Mapping, Sequence

from pgpu.model import Request
from pgpu.scheduling.capacity import GpuRoom, usable
from pgpu.units import format_memory


def waits_for_memory(
    request: Request, rooms: Sequence[GpuRoom], free_bytes: Mapping[str, int], *, closed_gpus: int = 0
) -> str:
    """Say what is asked for and what is free: `waits for 1205 MiB on one GPU: 641 MiB free of 22.99 GiB`.

    Args:
        request: What is asked for.
        rooms: Every GPU on which it may start.
        free_bytes: By UUID.
        closed_gpus: How many others there are, on which nothing may.
    """
    where = "one GPU" if request.gpu_count == 1 else f"each of {request.gpu_count} GPUs"
    known = [room for room in rooms if usable(room.gpu, request.gpu_count)]
    told = "no GPU answers"
    if known:
        told = _how_many_fit(request, known, free_bytes) if request.gpu_count > 1 else _most_free(known, free_bytes)
    closed = f"; {closed_gpus} more take{'s' if closed_gpus == 1 else ''} no jobs" if closed_gpus else ""
    return f"waits for {format_memory(request.memory_bytes)} on {where}: {told}{closed}"


def _how_many_fit(request: Request, known: Sequence[GpuRoom], free_bytes: Mapping[str, int]) -> str:
    count = sum(free_bytes[room.gpu.uuid] >= request.memory_bytes for room in known)
    return f"{count or 'none'} of {len(known)} {'have' if count > 1 else 'has'} that much free"


def _most_free(known: Sequence[GpuRoom], free_bytes: Mapping[str, int]) -> str:
    best = max(known, key=lambda room: free_bytes[room.gpu.uuid])
    where = f"{format_memory(free_bytes[best.gpu.uuid])} free of {format_memory(best.capacity_bytes)}"
    if len(known) > 1:
        where = f"at most {where} on any of {len(known)}"
    return where + (f", {format_memory(best.outsiders_bytes)} held by others" if best.outsiders_bytes else "")
