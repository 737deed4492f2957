"""What a job was granted."""

from dataclasses import dataclass

from pgpu.model.sharing import SharingMode


@dataclass(frozen=True, slots=True)
class Slice:
    """A share of one GPU given to one holder."""

    gpu_uuid: str
    memory_bytes: int
    """Includes the CUDA contexts of the job's processes."""

    compute_share: float | None = None
    """Of the GPU's time, above 0 to 1, which it gets whatever others want; None where none was asked for."""

    resident_bytes: int | None = None
    """What of `memory_bytes` is surely the device's, where the rest may lie on the host; None where all of it is."""

    @property
    def device_bytes(self) -> int:
        """What it takes of the GPU that nobody else may have."""
        return self.memory_bytes if self.resident_bytes is None else self.resident_bytes


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

    sharing: SharingMode = SharingMode.TIME_SLICE
    """How it shares its GPUs with others: each of them is in this mode as long as it is there."""
