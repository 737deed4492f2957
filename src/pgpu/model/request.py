"""What a job asks of GPUs, how it shares them, and changes of it."""

from dataclasses import dataclass, replace
from enum import StrEnum


class SharingMode(StrEnum):
    """How the jobs on one GPU share its compute. All jobs on a GPU are in the same mode."""

    TIME_SLICE = "time-slice"
    MPS = "mps"
    EXCLUSIVE = "exclusive"


class SharingWish(StrEnum):
    """The sharing mode that a job asks for."""

    TIME_SLICE = "time-slice"
    MPS = "mps"
    EXCLUSIVE = "exclusive"
    AUTO = "auto"
    """Chosen from measurements of the job and its neighbours, and reverted if it turns out slower."""


@dataclass(frozen=True, slots=True)
class Request:
    """An amount of GPU memory on a number of GPUs, with priority and sharing; or no GPU at all."""

    memory_bytes: int
    """Per GPU, CUDA context included. 0 without a GPU, and in a request for which pgpu chooses the amount (`is_estimated`)."""

    gpu_count: int = 1
    """Distinct GPUs, each with a slice of `memory_bytes`; 0 for a job without a GPU."""

    compute_share: float | None = None
    """Of each GPU's time, above 0 to 1; None for no guaranteed share."""

    priority: int = 0
    """-100 to 100: a waiting job of a higher priority goes first."""

    is_estimated: bool = False
    """Whether pgpu chose `memory_bytes` (`--memory auto`) and may change it by what it measures."""

    retries_out_of_memory: bool = False
    """Whether a run that hit its own limit is queued again with a larger slice."""

    basis: str | None = None
    """What the estimate is based on (`scheduling.demand.Basis`); None unless pgpu chose `memory_bytes`."""

    is_strict: bool = False
    """Whether it never gets more than `compute_share`, even of an idle GPU."""

    sharing: SharingWish = SharingWish.TIME_SLICE

    oversubscribes: bool = False
    """Whether its memory may move to the host while others use the GPU, so that the slices may sum to more than the GPU."""

    preempts: bool = False
    """Whether running jobs of a lower priority are suspended if there is no room for it otherwise."""

    measures: bool = False
    """Whether it runs under MPS only to be measured beside an antagonist of pgpu, which has no data to lose: allowed before Volta,
    too, where clients share one address space."""

    @property
    def is_without_gpu(self) -> bool:
        """Whether it asks for no GPU, and so for no GPU memory either."""
        return self.gpu_count == 0


@dataclass(frozen=True, slots=True)
class Resize:
    """New amounts for a waiting or running job; None leaves an amount as it is."""

    memory_bytes: int | None = None
    """Of each slice."""

    compute_share: float | None = None
    """Of each GPU's time, above 0 to 1; 0 removes the share."""

    is_strict: bool | None = None
    """As in a request."""

    def of(self, request: Request) -> Request:
        """Return the changed request. An explicit amount of memory is no longer pgpu's estimate."""
        if self.memory_bytes is not None:
            request = replace(request, memory_bytes=self.memory_bytes, basis=None)
        if self.compute_share is not None:
            request = replace(request, compute_share=self.compute_share or None)
        is_strict = request.is_strict if self.is_strict is None else self.is_strict
        takes_strictness_away = self.is_strict is None and self.compute_share == 0
        return replace(request, is_strict=is_strict and not takes_strictness_away)
