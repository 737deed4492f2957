"""What a job asks for."""

from dataclasses import dataclass, replace
from enum import StrEnum


class SharingMode(StrEnum):
    """What a GPU is in; two modes never meet on one GPU."""

    TIME_SLICE = "time-slice"
    MPS = "mps"
    EXCLUSIVE = "exclusive"


class SharingWish(StrEnum):
    """What a job asks for."""

    TIME_SLICE = "time-slice"
    MPS = "mps"
    EXCLUSIVE = "exclusive"
    AUTO = "auto"
    """What was measured of it and of its neighbours decides, and a wrong decision is taken back."""


@dataclass(frozen=True, slots=True)
class Request:
    """An amount of GPU memory on a number of GPUs, and how it stands among others; or no GPU at all."""

    memory_bytes: int
    """Per GPU; the CUDA context is included. 0 without a GPU, and in what is asked for where pgpu shall choose (`is_estimated`)."""

    gpu_count: int = 1
    """Distinct GPUs, each with a slice of `memory_bytes`; 0 for a job that uses none."""

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

    is_strict: bool = False
    """Whether it never gets more than `compute_share`, even of a GPU that is idle."""

    sharing: SharingWish = SharingWish.TIME_SLICE

    oversubscribes: bool = False
    """Whether its memory may be moved to the host while others use the GPU, so that their sum may exceed it."""

    preempts: bool = False
    """Whether running jobs of a lower priority are suspended where there is no room for it otherwise."""

    measures: bool = False
    """Whether it runs under MPS only to be measured beside an antagonist of pgpu, whose memory nobody misses: that is allowed
    before Volta, too, where clients share one address space."""

    @property
    def is_without_gpu(self) -> bool:
        """Whether it asks for no GPU, and so for no memory of one either."""
        return self.gpu_count == 0


@dataclass(frozen=True, slots=True)
class Resize:
    """New amounts of a job; None leaves one as it is."""

    memory_bytes: int | None = None
    """Of each slice."""

    compute_share: float | None = None
    """Of each GPU's time, above 0 to 1; 0 takes the share away."""

    is_strict: bool | None = None
    """As of a request."""

    def of(self, request: Request) -> Request:
        """Return the request as it is then. An amount of memory that was said is no longer pgpu's choice."""
        if self.memory_bytes is not None:
            request = replace(request, memory_bytes=self.memory_bytes, basis=None)
        if self.compute_share is not None:
            request = replace(request, compute_share=self.compute_share or None)
        is_strict = request.is_strict if self.is_strict is None else self.is_strict
        takes_strictness_away = self.is_strict is None and self.compute_share == 0
        return replace(request, is_strict=is_strict and not takes_strictness_away)
