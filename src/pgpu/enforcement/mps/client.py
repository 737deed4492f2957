"""The environment of a job that is a client of MPS. `scheduling.capacity` decides which GPUs can be shared this way."""

import math
from pathlib import Path

from pgpu.enforcement.mps.control import PIPE_VARIABLE
from pgpu.model import Slice
from pgpu.units import MIB


def percentage_of(compute_share: float | None) -> int:
    """Convert a share of compute to a percentage of the multiprocessors, 1 to 100.

    Source: 4a in docs/mps.md: MPS partitions multiprocessors, not time.
    """
    return 100 if compute_share is None else max(1, min(100, math.ceil(round(100 * compute_share, 6))))


def environment_of(part: Slice, pipe_directory: Path) -> tuple[tuple[str, str], ...]:
    """Return the environment variables for a job's programs.

    The GPU is named by its ordinal, which is 0 in a job of one GPU. An entry for a GPU that a process cannot see would
    disable all its memory limits.
    """
    limit_mib = -(-part.memory_bytes // MIB)
    return (
        (PIPE_VARIABLE, str(pipe_directory)),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", str(percentage_of(part.compute_share))),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"0={limit_mib}M"),
    )
