"""What jobs ask for, and what GPUs and nodes have free: the values that placement compares.

They are in no reference cycle and a cluster has a hundred thousand of them, so the garbage collector leaves them out (`gc=False`).
"""

from typing import NamedTuple

from pgpu.model import SharingMode
from pgpu.structs import Struct


class JobShape(Struct, frozen=True, gc=False):
    """Resources that one job asks for. Integers, so that no fit depends on rounding; GPU amounts are per GPU."""

    gpu_count: int = 1
    """Distinct GPUs of one node; 0 for a job without a GPU."""

    compute_milli: int = 0
    """Thousandths of a GPU's compute; 0 if the job asks for memory only."""

    memory_bytes: int = 0
    """CUDA context included; 0 if the job asks for compute only."""

    cpu_milli: int = 0
    """Thousandths of a CPU core of the node."""

    host_memory_bytes: int = 0

    models: frozenset[str] | None = None
    """Models of GPUs that it may run on; None for any."""


class GpuType(NamedTuple):
    """GPUs of one size and model."""

    compute_milli: int
    memory_bytes: int
    model: str

    def can_host(self, shape: JobShape) -> bool:
        """Whether a slice of this shape fits on an idle GPU."""
        return (
            shape.compute_milli <= self.compute_milli
            and shape.memory_bytes <= self.memory_bytes
            and (shape.models is None or self.model in shape.models)
        )


class GpuResources(Struct, frozen=True, gc=False):
    """Size of one GPU, and what is free of it."""

    uuid: str
    free_compute_milli: int
    """Thousandths of its compute."""

    free_memory_bytes: int = 0
    compute_milli: int = 1000
    """All of it."""

    memory_bytes: int = 0
    """The most that slices may sum to; 0 if only compute is divided."""

    sharing_mode: SharingMode | None = None
    """None before its first job."""

    model: str = ""
    """As shapes name it."""

    @property
    def type(self) -> GpuType:
        """Its size and model."""
        return GpuType(self.compute_milli, self.memory_bytes, self.model)

    @property
    def is_idle(self) -> bool:
        """Whether all of it is free."""
        return self.free_compute_milli == self.compute_milli and self.free_memory_bytes == self.memory_bytes

    @property
    def free_share(self) -> float:
        """Free share, 0 to 1: the mean of compute and memory."""
        return self.share_of(self.free_compute_milli, self.free_memory_bytes)

    def share_of(self, compute_milli: int, memory_bytes: int) -> float:
        """Return the share of this GPU that such amounts are, 0 to 1: the mean of compute and memory."""
        compute_share = compute_milli / self.compute_milli
        return (compute_share + memory_bytes / self.memory_bytes) / 2 if self.memory_bytes else compute_share

    def can_host(self, shape: JobShape, wanted: SharingMode | None = None) -> bool:
        """Whether a slice of this shape fits here beside the jobs on it, in the wanted sharing mode.

        A GPU with nothing free hosts no job, even one that asks for nothing of it.
        """
        if not (self.free_compute_milli or self.free_memory_bytes):
            return False
        fits = shape.compute_milli <= self.free_compute_milli and shape.memory_bytes <= self.free_memory_bytes
        return fits and (shape.models is None or self.model in shape.models) and self.admits(wanted)

    def admits(self, wanted: SharingMode | None) -> bool:
        """Whether the jobs on it let in a job that needs this sharing mode; None for any."""
        if wanted is None and self.sharing_mode is None:
            return True
        if self.is_idle or wanted is SharingMode.EXCLUSIVE:
            return self.is_idle
        return self.sharing_mode is not SharingMode.EXCLUSIVE and (
            wanted is None or self.sharing_mode is None or self.sharing_mode is wanted
        )

    def changes_mode(self, wanted: SharingMode | None) -> bool:
        """Whether a job that needs this sharing mode changes that of the GPU."""
        return wanted is not None and self.sharing_mode is not wanted


class NodeResources(Struct, frozen=True, gc=False):
    """One node: its GPUs in NVML index order, and what is free of the rest."""

    name: str
    gpus: tuple[GpuResources, ...]
    cpu_milli: int = 0
    """Free thousandths of CPU cores."""

    host_memory_bytes: int = 0
    """Free."""

    nvlinks: frozenset[frozenset[str]] = frozenset()
    """Pairs of UUIDs that NVLink joins."""

    def can_host(self, shape: JobShape, wanted: SharingMode | None = None) -> bool:
        """Whether the job fits on this node now."""
        return (
            shape.cpu_milli <= self.cpu_milli
            and shape.host_memory_bytes <= self.host_memory_bytes
            and shape.gpu_count <= sum(gpu.can_host(shape, wanted) for gpu in self.gpus)
        )
