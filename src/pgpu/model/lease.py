"""What a job was granted."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slice:
    """A share of one GPU given to one holder."""

    gpu_uuid: str
    memory_bytes: int
    """Includes the CUDA contexts of the job's processes."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A granted request: one slice for each GPU. It lasts until its holder is gone."""

    job_id: str
    slices: tuple[Slice, ...]
    """In the order in which the job sees its GPUs."""

    granted_at_seconds: float
    """Seconds since the epoch."""

    enforcer: str | None = None
    """Name of the enforcer that makes it bind (`shim`, `driver`, `mig`); None until it was prepared."""

    is_advisory: bool = False
    """True where a job that drops its environment also drops the limit (plain preload)."""
