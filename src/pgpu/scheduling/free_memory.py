"""What a job waits for where memory is short, in words."""

from collections.abc import Mapping, Sequence

from pgpu.model import Request
from pgpu.scheduling.capacity import GpuRoom, usable
from pgpu.units import format_memory


def waits_for_memory(request: Request, rooms: Sequence[GpuRoom], free_bytes: Mapping[str, int]) -> str:
    """Say what is asked for and what is free: `waits for 1205 MiB on one GPU: 641 MiB free of 22.99 GiB`.

    Args:
        request: What is asked for.
        rooms: Every GPU.
        free_bytes: By UUID.
    """
    where = "one GPU" if request.gpu_count == 1 else f"each of {request.gpu_count} GPUs"
    return f"waits for {format_memory(request.memory_bytes)} on {where}: {_what_is_free(request, rooms, free_bytes)}"


def _what_is_free(request: Request, rooms: Sequence[GpuRoom], free_bytes: Mapping[str, int]) -> str:
    known = [room for room in rooms if usable(room.gpu, request.gpu_count)]
    if not known:
        return "no GPU answers"
    best = max(known, key=lambda room: free_bytes[room.gpu.uuid])
    where = f"{format_memory(free_bytes[best.gpu.uuid])} free of {format_memory(best.capacity_bytes)}"
    if len(known) > 1:
        where = f"at most {where} on any of {len(known)}"
    return where + (f", {format_memory(best.outsiders_bytes)} held by others" if best.outsiders_bytes else "")
