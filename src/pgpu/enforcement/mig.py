"""The mig enforcer: the slice lies in a MIG instance, which the hardware keeps apart from all others.

An instance is one job's alone. The shim stays on, so that the slice binds where it is smaller than its instance, and for
the meter, for what a job is shown and for resizing. This module refuses to make, change or remove instances: an
administrator divides a GPU, and sizes between the instances' are the shim's to keep.
"""

from collections.abc import Sequence

from pgpu.enforcement.shim import ShimEnforcer
from pgpu.errors import EnforcementError
from pgpu.model import Delivery, Gpu, Job


class MigEnforcer(ShimEnforcer):
    """Makes a slice bind by the instance that it is in, and by the shim below that."""

    @property
    def name(self) -> str:
        """`mig`."""
        return "mig"

    @property
    def does_not_cover(self) -> str:
        """What gets past it."""
        return "the rest of the job's own instance, which code that gets past the shim can use and no other job has"

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        """Make the slice's files.

        Raises:
            RequestError: The slice is smaller than one CUDA context.
            EnforcementError: One of these is no instance, or another of the causes of the shim.
        """
        for gpu in gpus:
            if not gpu.is_instance:
                raise EnforcementError(f"{gpu.name} ({gpu.uuid}) is no MIG instance")
        return super().prepare(job, gpus)
