"""The mig enforcer: the slice is in a MIG instance, which the hardware isolates from other instances.

One instance serves one job. The shim stays active: for slices smaller than their instance, for the meter, for the memory
figures that the job reads, and for resizing. Instances are created, changed and removed by the administrator only.
"""

from collections.abc import Sequence

from pgpu.enforcement.shim import ShimEnforcer
from pgpu.errors import EnforcementError
from pgpu.model import Delivery, Gpu, Job


class MigEnforcer(ShimEnforcer):
    """Enforces a slice by its MIG instance, and by the shim for sizes below the instance's."""

    @property
    def name(self) -> str:
        return "mig"

    @property
    def does_not_cover(self) -> str:
        return "the rest of the job's own instance, which code that gets past the shim can use and no other job has"

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        """Create the slice's files.

        Raises:
            RequestError: The slice is smaller than one CUDA context.
            EnforcementError: A GPU is not a MIG instance, or an error of the shim enforcer.
        """
        for gpu in gpus:
            if not gpu.is_instance:
                raise EnforcementError(f"{gpu.name} ({gpu.uuid}) is no MIG instance")
        return super().prepare(job, gpus)
