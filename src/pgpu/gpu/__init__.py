"""Access to the machine's GPUs, real or simulated, through one protocol over NVML.

The only room that imports NVML's binding. It also creates simulated GPUs.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from pgpu.model import Gpu, GpuMemory, GpuProcess, GpuSensors, Resource


class MetricsWatch(Protocol):
    """A running measurement of a GPU's use."""

    def finish(self) -> tuple[float, Mapping[Resource, float]]:
        """End the measurement; return its seconds and the average use of each resource, 0 to 1.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        ...


class GpuSource(Protocol):
    """A source of GPUs."""

    def gpus(self) -> Sequence[Gpu]:
        """Return every GPU, in NVML index order; empty if there is none.

        Raises:
            NodeError: The driver does not answer.
        """
        ...

    def memory(self, gpu_uuid: str) -> GpuMemory:
        """Return one GPU's memory now.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        ...

    def processes(self, gpu_uuid: str) -> Sequence[GpuProcess]:
        """Return the processes that hold memory of one GPU, by host PID."""
        ...

    def busy_pids(self, gpu_uuid: str, since_seconds: float) -> frozenset[int] | None:
        """Return host PIDs of processes that ran kernels on a GPU recently; None if the driver does not report it.

        Args:
            gpu_uuid: The GPU.
            since_seconds: Older samples are ignored; since the epoch.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        ...

    def utilisation_percent(self, gpu_uuid: str) -> int | None:
        """Return the percentage of the last sample period in which a kernel ran, 0–100; None if the driver does not report it."""
        ...

    def sensors(self, gpu_uuid: str) -> GpuSensors:
        """Return temperature, power and clocks of one GPU.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        ...

    def watch_metrics(self, gpu_uuid: str) -> MetricsWatch | None:
        """Start to measure a GPU's use of its pipes and memory bandwidth; None if the GPU does not support it.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        ...
