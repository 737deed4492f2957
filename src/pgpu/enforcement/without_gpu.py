"""Stands where an enforcer would for jobs that have no GPU: there is nothing to limit, only GPUs to keep out of sight.

It refuses to make a slice. What it says to a process is a word, not a wall: in a container there is no device at all, and a
process that takes the word away is seen as every program is that computes outside of a lease.
"""

from collections.abc import Sequence
from pathlib import Path

from pgpu.enforcement import Enforcer
from pgpu.enforcement.refusal import Refusal
from pgpu.model import Delivery, Gpu, Job

NO_GPU = (("CUDA_VISIBLE_DEVICES", ""), ("NVIDIA_VISIBLE_DEVICES", "void"))
"""Source: CUDA Programming Guide, "CUDA Environment Variables"; NVIDIA Container Toolkit, "Specialized Configurations"."""

_NOWHERE = Path("/nonexistent")
"""Nobody opens it (`Delivery.has_slice`)."""


class WithoutGpu(Refusal):
    """The `Enforcer` of a lease without slices."""

    def __init__(self) -> None:
        super().__init__("there is no GPU in this lease", "ask for one with --gpus")

    @property
    def does_not_cover(self) -> str:
        """What a process may undo."""
        return "a process that sets CUDA_VISIBLE_DEVICES itself"

    def for_gpus(self, gpus: Sequence[Gpu]) -> Enforcer:  # noqa: ARG002 - there are none
        """Return itself."""
        return self

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:  # noqa: ARG002 - the same for every job
        """Make nothing; only say that there is no GPU."""
        return Delivery(_NOWHERE, _NOWHERE, (), environment=NO_GPU)
