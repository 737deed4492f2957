"""What is known of one GPU."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical or simulated device, known by its UUID, never by an ordinal."""

    uuid: str
    """As NVML writes it: `GPU-` and 36 characters."""

    name: str
    """Product name as NVML gives it, such as `NVIDIA GeForce RTX 3090`."""

    index: int
    """NVML index now; for display and for the order of placement only."""

    memory_bytes: int
    """Memory that programs can use: NVML's total less what the driver reserves."""

    driver_version: str
    """Version of the driver, such as `580.95.05`."""

    is_simulated: bool
    """Whether kernels compute nothing here."""


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Memory of one GPU at one moment, whoever holds it."""

    uuid: str
    used_bytes: int
    """Held by all processes of the machine, in bytes, without what the driver reserves."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process that holds memory of one GPU."""

    gpu_uuid: str
    pid: int
    """As the host sees it."""

    used_bytes: int | None
    """None where the driver does not tell."""
