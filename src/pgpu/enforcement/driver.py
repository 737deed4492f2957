"""The driver enforcer: from r615 on, NVIDIA's driver limits the GPU memory of a control group.

It also binds against hostile code. The shim stays active for the meter and for the memory figures that the job reads.
MIG devices are not supported by that interface.

Source: NVML API reference, nvmlDeviceSetMemoryLimits_v1 (root only, Linux only; soft = hard, so that an allocation fails
instead of causing memory pressure).
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from pgpu.enforcement import DRIVER, Enforcer, SliceUse, limit_file
from pgpu.enforcement.board import BoardGpu
from pgpu.enforcement.compute_word import ComputeWord, Hold
from pgpu.enforcement.growth_channel import GrowthChannel
from pgpu.enforcement.shim import ShimEnforcer
from pgpu.model import Delivery, Gpu, Job, Lease
from pgpu.structs import replace

SetLimit = Callable[[str, Path, int], None]
"""Sets a limit in the driver (GPU UUID, control group, bytes); raises NodeError."""

_OUT_OF_THE_WAY = 4
"""Factor for the shim's limit while the self-test tests the driver's limit alone."""


class DriverEnforcer:
    """Enforces a slice through the driver's limit on the job's control group."""

    def __init__(self, shim: ShimEnforcer, set_limit: SetLimit) -> None:
        """Touch nothing yet.

        Args:
            shim: Creates the slice's files and reads its meter.
            set_limit: NVML's call.
        """
        self._shim = shim
        self._set_limit = set_limit

    @property
    def name(self) -> str:
        return DRIVER

    @property
    def does_not_cover(self) -> str:
        return "managed memory of code that also gets past the shim"

    def for_gpus(self, gpus: Sequence[Gpu]) -> Enforcer:  # noqa: ARG002 - the same for every GPU
        return self

    def check_slice(self, memory_bytes: int, gpu: Gpu) -> None:
        self._shim.check_slice(memory_bytes, gpu)

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        """Create the slice's files, and request a control group with the same limits from the runtime.

        Raises:
            RequestError: The slice is smaller than one CUDA context.
            EnforcementError: The slice's files cannot be created.
        """
        delivery = self._shim.prepare(job, gpus)
        limits = tuple((part.gpu_uuid, part.memory_bytes) for part in (job.lease.slices if job.lease else ()))
        return replace(delivery, cgroup_limits=limits)

    def limit_cgroup(self, cgroup: Path, delivery: Delivery) -> None:
        """Set a lease's limits on the control group that its runtime created, before the job's first CUDA call.

        Raises:
            NodeError: The driver rejected the limit.
        """
        # Stored before the limits are set: after a crash, `resize` finds the group again.
        self._shim.files_of(delivery).remember_cgroup(cgroup)
        for gpu_uuid, limit_bytes in delivery.cgroup_limits:
            self._set_limit(gpu_uuid, cgroup, limit_bytes)

    def resize(self, lease: Lease, memory_bytes: int) -> None:
        cgroup = self._shim.files(lease.job_id).cgroup()
        for part in lease.slices:
            if cgroup is not None:
                self._set_limit(part.gpu_uuid, cgroup, memory_bytes)
        self._shim.resize(lease, memory_bytes)

    def set_compute(self, lease: Lease, words: Sequence[ComputeWord]) -> None:
        self._shim.set_compute(lease, words)

    def hold(self, lease: Lease, gpu_uuid: str, hold: Hold, *, is_held: bool) -> None:
        self._shim.hold(lease, gpu_uuid, hold, is_held=is_held)

    def words(self, lease: Lease) -> Sequence[ComputeWord]:
        return self._shim.words(lease)

    def boards(self, lease: Lease) -> Sequence[BoardGpu]:
        return self._shim.boards(lease)

    def set_overhead(self, lease: Lease, gpu_uuid: str, overhead_bytes: int) -> None:
        """Correct the meter; the driver's own count needs no correction."""
        self._shim.set_overhead(lease, gpu_uuid, overhead_bytes)

    def use(self, lease: Lease) -> Sequence[SliceUse]:
        return self._shim.use(lease)

    def growth(self, lease: Lease) -> GrowthChannel | None:
        return self._shim.growth(lease)

    def trace(self, lease: Lease) -> bytes | None:
        return self._shim.trace(lease)

    def is_held(self, lease: Lease) -> bool:
        return self._shim.is_held(lease)

    def release(self, lease: Lease) -> None:
        """Remove the slice's files; the runtime removes the control group and with it the limits."""
        self._shim.release(lease)


class UnaidedDriver(DriverEnforcer):
    """A driver enforcer with a shim that allows more, so that a failed allocation in a self-test proves the driver's limit."""

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        """Create a slice with a shim limit of four times the driver's limit."""
        delivery = super().prepare(job, gpus)
        for gpu_uuid, limit_bytes in delivery.cgroup_limits:
            limit_file.set_limit_bytes(delivery.slice_directory / "limit", gpu_uuid, _OUT_OF_THE_WAY * limit_bytes)
        return delivery
