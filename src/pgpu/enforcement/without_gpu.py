"""The enforcer of jobs without a GPU: no limits, and an environment that hides all GPUs.

For a process this is advisory: if it changes the variable, it is detected like any program that computes outside of a
lease. A container gets no GPU device at all.
"""

from collections.abc import Sequence
from pathlib import Path

from pgpu.enforcement import Enforcer
from pgpu.enforcement.refusal import Refusal
from pgpu.model import Delivery, Gpu, Job

NO_GPU = (("CUDA_VISIBLE_DEVICES", ""), ("NVIDIA_VISIBLE_DEVICES", "void"))
"""Source: CUDA Programming Guide, "CUDA Environment Variables"; NVIDIA Container Toolkit, "Specialized Configurations"."""

_NOWHERE = Path("/nonexistent")
"""Never opened (`Delivery.has_slice`)."""


class WithoutGpu(Refusal):
    """The `Enforcer` of a lease without slices."""

    def __init__(self) -> None:
        super().__init__("there is no GPU in this lease", "ask for one with --gpus")

    @property
    def does_not_cover(self) -> str:
        return "a process that sets CUDA_VISIBLE_DEVICES itself"

    def for_gpus(self, gpus: Sequence[Gpu]) -> Enforcer:  # noqa: ARG002 - there are none
        return self

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:  # noqa: ARG002 - the same for every job
        """Create nothing; return a delivery with an environment that hides the GPUs."""
        return Delivery(_NOWHERE, _NOWHERE, (), environment=NO_GPU)
