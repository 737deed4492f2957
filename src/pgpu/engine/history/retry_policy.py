"""Whether, and with how much memory, a job is tried again that failed at its own limit; and why not, where it is not.

Pure. It refuses to ask for what could never be granted: such a try would wait for ever.
"""

from dataclasses import dataclass, replace

from pgpu.model import Job, Request
from pgpu.scheduling.demand import Basis, retry_bytes
from pgpu.units import format_memory

MOST_TRIES = 3
"""Of a job that hits its own limit; the last one has its GPUs for itself, as far as its owner's quota allows."""


@dataclass(frozen=True, slots=True)
class LargestSlice:
    """The largest slice that a job could be granted one day."""

    memory_bytes: int
    """On each of its GPUs; 0 if there are too few."""

    is_quota: bool = False
    """Whether its owner's quota is what allows no more; else no GPU has more."""


def next_try(job: Job, slice_bytes: int, attempted_bytes: int, most: LargestSlice) -> Request | None:
    """Return what the next try of a job asks for that failed at its own limit; None if this was its last.

    One that is to have its GPUs for itself asks for the least that could do: each round gives it all there is.

    Args:
        job: As it would end.
        slice_bytes: What was too small.
        attempted_bytes: What it would have held, had it not been refused; 0 if that is not known.
        most: That it could have.
    """
    if job.attempt >= MOST_TRIES or slice_bytes >= most.memory_bytes:
        return None
    wanted_bytes = retry_bytes(slice_bytes, attempted_bytes)
    if job.attempt + 1 == MOST_TRIES or wanted_bytes >= most.memory_bytes:
        least_bytes = attempted_bytes if slice_bytes < attempted_bytes <= most.memory_bytes else slice_bytes
        return replace(job.request, memory_bytes=least_bytes, basis=Basis.ALONE.value)
    return replace(job.request, memory_bytes=wanted_bytes, basis=Basis.RETRY.value)


def why_no_more(job: Job, slice_bytes: int, most: LargestSlice) -> str:
    """Say in one line why a job that failed at its own limit is not tried again."""
    if job.attempt >= MOST_TRIES:
        why = f"this was the last of {MOST_TRIES} tries"
    elif most.is_quota:
        why = f"its owner's quota allows no larger slice than {format_memory(most.memory_bytes)}"
    else:
        why = f"no slice can be larger than {format_memory(most.memory_bytes)}"
    return f"it failed at its own limit, {format_memory(slice_bytes)}, and was not tried again: {why}"
