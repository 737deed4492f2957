"""What nodes and GPUs have left, and what a job asks of them.

Integers only, so that nothing fits or fails to fit by rounding. It refuses to know who holds the rest.
"""

from dataclasses import dataclass

from pgpu.model import SharingMode


@dataclass(frozen=True, slots=True)
class JobShape:
    """What one job asks for; the amounts of a GPU are of each of its GPUs."""

    gpu_count: int = 1
    """Distinct GPUs of one node; 0 for a job without any."""

    compute_milli: int = 0
    """Thousandths of a GPU's compute; 0 where the job asks for memory only."""

    memory_bytes: int = 0
    """Of each GPU, CUDA context included; 0 where it asks for compute only."""

    cpu_milli: int = 0
    """Thousandths of a CPU core of the node."""

    host_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GpuResources:
    """One GPU: how large it is, and what is free of it."""

    uuid: str
    free_compute_milli: int
    """Thousandths of its compute."""

    free_memory_bytes: int = 0
    compute_milli: int = 1000
    """All of it."""

    memory_bytes: int = 0
    """All of it that slices may sum to; 0 where only compute is shared out."""

    sharing_mode: SharingMode | None = None
    """The mode it is in; None before its first job."""

    @property
    def is_idle(self) -> bool:
        """Whether all of it is free."""
        return self.free_compute_milli == self.compute_milli and self.free_memory_bytes == self.memory_bytes

    @property
    def free_share(self) -> float:
        """What is free of it, 0 to 1: the mean of compute and memory."""
        return self.share_of(self.free_compute_milli, self.free_memory_bytes)

    def share_of(self, compute_milli: int, memory_bytes: int) -> float:
        """Return how much of it such amounts are, 0 to 1: the mean of compute and memory."""
        compute_share = compute_milli / self.compute_milli
        return (compute_share + memory_bytes / self.memory_bytes) / 2 if self.memory_bytes else compute_share

    def can_host(self, shape: JobShape, wanted: SharingMode | None = None) -> bool:
        """Whether a slice of this shape fits here beside the jobs that are on it, in the wanted sharing mode.

        A GPU of which nothing is free hosts nobody, even one who asks for nothing of it.
        """
        if not (self.free_compute_milli or self.free_memory_bytes):
            return False
        fits = shape.compute_milli <= self.free_compute_milli and shape.memory_bytes <= self.free_memory_bytes
        return fits and self.admits(wanted)

    def admits(self, wanted: SharingMode | None) -> bool:
        """Whether the jobs that are on it let one in that wants this sharing mode; None for any."""
        if wanted is None and self.sharing_mode is None:
            return True
        if self.is_idle or wanted is SharingMode.EXCLUSIVE:
            return self.is_idle
        return self.sharing_mode is not SharingMode.EXCLUSIVE and (
            wanted is None or self.sharing_mode is None or self.sharing_mode is wanted
        )

    def changes_mode(self, wanted: SharingMode | None) -> bool:
        """Whether a job that wants this sharing mode changes the one it is in."""
        return wanted is not None and self.sharing_mode is not wanted


@dataclass(frozen=True, slots=True)
class NodeResources:
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
