"""What the machine's GPUs tell of themselves, real or simulated, through one protocol.

The only room that imports NVML's binding. It refuses to decide anything: it reads, and it makes simulated GPUs exist.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from pgpu.model import Gpu, GpuMemory, GpuProcess, Resource


class MetricsWatch(Protocol):
    """What a GPU used since a moment."""

    def finish(self) -> tuple[float, Mapping[Resource, float]]:
        """Return the seconds since then, and the average use of each resource, 0 to 1; nothing can be asked afterwards.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        ...


class GpuSource(Protocol):
    """Where GPUs are found."""

    def gpus(self) -> Sequence[Gpu]:
        """Return every GPU, in NVML index order; empty where there is none.

        Raises:
            NodeError: There is a driver, and it cannot be asked.
        """
        ...

    def memory(self, gpu_uuid: str) -> GpuMemory:
        """Read one GPU's memory afresh.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        ...

    def processes(self, gpu_uuid: str) -> Sequence[GpuProcess]:
        """List the processes that hold memory of one GPU, by host PID."""
        ...

    def busy_pids(self, gpu_uuid: str, since_seconds: float) -> frozenset[int] | None:
        """Return the processes, by host PID, that ran kernels on a GPU lately; None where the driver cannot tell.

        Args:
            gpu_uuid: The GPU.
            since_seconds: Samples older than this are left out; since the epoch.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        ...

    def utilisation_percent(self, gpu_uuid: str) -> int | None:
        """Return the share of the last sample period in which a kernel ran, 0–100; None where the driver cannot tell."""
        ...

    def watch_metrics(self, gpu_uuid: str) -> MetricsWatch | None:
        """Begin to measure what a GPU uses of its pipes and its memory's bandwidth; None where it does not tell.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        ...
