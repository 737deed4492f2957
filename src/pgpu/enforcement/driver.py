"""The driver enforcer: from r615 on NVIDIA's driver limits a control group's memory by itself.

It binds against hostile code too. The shim stays on beside it, for the meter and for what a job is shown. This module
refuses MIG devices, which that interface does not know.

Source: NVML API reference, nvmlDeviceSetMemoryLimits_v1 (root only, Linux only; soft = hard, so that a job is refused and
not put under pressure).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pgpu.enforcement import Enforcer, SliceUse, limit_file
from pgpu.enforcement.board import BoardGpu
from pgpu.enforcement.compute_word import ComputeWord, Hold
from pgpu.enforcement.shim import ShimEnforcer
from pgpu.model import Delivery, Gpu, Job, Lease

SetLimit = Callable[[str, Path, int], None]
"""Tells the driver (GPU UUID, control group, bytes); raises NodeError."""

_OUT_OF_THE_WAY = 4
"""Times the slice that the shim allows while the driver alone is put to the proof."""


class DriverEnforcer:
    """Makes a slice bind by a limit of the driver on the job's control group."""

    def __init__(self, shim: ShimEnforcer, set_limit: SetLimit) -> None:
        """Touch nothing yet.

        Args:
            shim: Makes the slice's files and reads its meter.
            set_limit: NVML's call.
        """
        self._shim = shim
        self._set_limit = set_limit

    @property
    def name(self) -> str:
        """`driver`."""
        return "driver"

    @property
    def does_not_cover(self) -> str:
        """What gets past it."""
        return "managed memory of code that also gets past the shim"

    def for_gpus(self, gpus: Sequence[Gpu]) -> Enforcer:  # noqa: ARG002 - the same for every GPU
        """Return itself."""
        return self

    def check_slice(self, memory_bytes: int, gpu: Gpu) -> None:
        """Refuse a slice smaller than one CUDA context.

        Raises:
            RequestError: It is smaller.
        """
        self._shim.check_slice(memory_bytes, gpu)

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        """Make the slice's files, and ask the runtime for a control group with the same limits.

        Raises:
            RequestError: The slice is smaller than one CUDA context.
            EnforcementError: The slice's files cannot be made.
        """
        delivery = self._shim.prepare(job, gpus)
        limits = tuple((part.gpu_uuid, part.memory_bytes) for part in (job.lease.slices if job.lease else ()))
        return replace(delivery, cgroup_limits=limits)

    def limit_cgroup(self, cgroup: Path, delivery: Delivery) -> None:
        """Set a lease's limits on the control group that its runtime made, before the job's first CUDA call.

        Raises:
            NodeError: The driver refused.
        """
        self._shim.files_of(delivery).remember_cgroup(cgroup)
        for gpu_uuid, limit_bytes in delivery.cgroup_limits:
            self._set_limit(gpu_uuid, cgroup, limit_bytes)

    def resize(self, lease: Lease, memory_bytes: int) -> None:
        """Set every slice of a lease to `memory_bytes`, live."""
        cgroup = self._shim.files(lease.job_id).cgroup()
        for part in lease.slices:
            if cgroup is not None:
                self._set_limit(part.gpu_uuid, cgroup, memory_bytes)
        self._shim.resize(lease, memory_bytes)

    def set_compute(self, lease: Lease, words: Sequence[ComputeWord]) -> None:
        """Say how each GPU's time is shared with the job, live."""
        self._shim.set_compute(lease, words)

    def hold(self, lease: Lease, gpu_uuid: str, hold: Hold, *, is_held: bool) -> None:
        """Hold a job's launches on one GPU, or take one's own hold back, live."""
        self._shim.hold(lease, gpu_uuid, hold, is_held=is_held)

    def words(self, lease: Lease) -> Sequence[ComputeWord]:
        """Return what the slice says of compute now."""
        return self._shim.words(lease)

    def boards(self, lease: Lease) -> Sequence[BoardGpu]:
        """Return what the job tells of its GPU time."""
        return self._shim.boards(lease)

    def set_overhead(self, lease: Lease, gpu_uuid: str, overhead_bytes: int) -> None:
        """Tell the meter what it did not count; the driver counts by itself."""
        self._shim.set_overhead(lease, gpu_uuid, overhead_bytes)

    def use(self, lease: Lease) -> Sequence[SliceUse]:
        """Read what each slice holds now."""
        return self._shim.use(lease)

    def trace(self, lease: Lease) -> bytes | None:
        """Return what a traced job wrote down."""
        return self._shim.trace(lease)

    def is_held(self, lease: Lease) -> bool:
        """Whether any process may still hold memory of the slice."""
        return self._shim.is_held(lease)

    def release(self, lease: Lease) -> None:
        """Remove the slice's files; the runtime removes the control group, and the limits go with it."""
        self._shim.release(lease)


class UnaidedDriver(DriverEnforcer):
    """The same with a shim that lets more through, so that a refusal in a self-test can only be the driver's."""

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        """Make a slice whose shim allows four times as much as its driver."""
        delivery = super().prepare(job, gpus)
        for gpu_uuid, limit_bytes in delivery.cgroup_limits:
            limit_file.set_limit_bytes(delivery.slice_directory / "limit", gpu_uuid, _OUT_OF_THE_WAY * limit_bytes)
        return delivery
