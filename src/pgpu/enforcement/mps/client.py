"""What a job is told as a client of MPS. Which GPUs can be shared so is `scheduling.capacity`'s to know."""

import math
from pathlib import Path

from pgpu.enforcement.mps.control import PIPE_VARIABLE
from pgpu.model import Slice
from pgpu.units import MIB


def percentage_of(compute_share: float | None) -> int:
    """Return the share of the multiprocessors, in percent from 1 to 100, that a share of compute becomes.

    Source: 4a in docs/mps.md: under MPS the multiprocessors are shared, not time.
    """
    return 100 if compute_share is None else max(1, min(100, math.ceil(round(100 * compute_share, 6))))


def environment_of(part: Slice, pipe_directory: Path) -> tuple[tuple[str, str], ...]:
    """Return what a job's programs find in their environment.

    The GPU is named by its ordinal, which is 0 in a job of one GPU: an entry that names one which a process cannot see
    would take every memory limit of it away.
    """
    limit_mib = -(-part.memory_bytes // MIB)
    return (
        (PIPE_VARIABLE, str(pipe_directory)),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", str(percentage_of(part.compute_share))),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"0={limit_mib}M"),
    )
