"""What a job asks for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """An amount of GPU memory on a number of GPUs, and how it stands among others."""

    memory_bytes: int
    """Per GPU; the CUDA context is included. 0 only in what is asked for, where pgpu shall choose (`is_estimated`)."""

    gpu_count: int = 1
    """Distinct GPUs, each with a slice of `memory_bytes`; at least 1."""

    compute_share: float | None = None
    """Of each GPU's time, above 0 to 1; None asks for no share."""

    priority: int = 0
    """-100 to 100: a waiting job of a higher priority goes first."""

    is_estimated: bool = False
    """Whether pgpu chose `memory_bytes` (`--memory auto`) and may change it by what it measures."""

    retries_out_of_memory: bool = False
    """Whether a run that hit its own limit is queued again with a larger slice."""

    basis: str | None = None
    """What the estimate rests on (`scheduling.demand.Basis`); None unless pgpu chose `memory_bytes`."""
