"""What one finished run of a program showed, which makes its next request better."""

from dataclasses import dataclass

from pgpu.model.sharing import SharingMode


@dataclass(frozen=True, slots=True)
class Run:
    """One run as its signature's history keeps it."""

    signature: str
    """Which program; see `Job.signature`."""

    gpu_name: str
    """Product name of its GPU: peaks and durations differ between models."""

    job_id: str
    owner_uid: int
    slice_bytes: int
    """Per GPU, the largest that it had."""

    peak_bytes: int
    """Most that any one of its slices held, context included."""

    context_bytes: int
    """Of one CUDA context on its GPU; 0 where that is not known."""

    refusals: int
    """Allocations that its own limit refused."""

    duration_seconds: float
    """From its start to its end."""

    ended_at_seconds: float
    """Seconds since the epoch."""

    exit_code: int | None
    """None where nobody saw it end."""

    refused_at_bytes: int = 0
    """Slice in which its limit refused it last; 0 if it never did, and where that is not known."""

    compute_share: float | None = None
    """Of each GPU's time, at its end; None where it asked for none."""

    sharing: SharingMode = SharingMode.TIME_SLICE
    """How it shared its GPUs."""
