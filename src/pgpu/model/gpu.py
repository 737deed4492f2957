"""What is known of one GPU."""

from dataclasses import dataclass

from pgpu.model.lease import ProcessHolder


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical or simulated device, or a MIG instance of one; known by its UUID, never by an ordinal."""

    uuid: str
    """As NVML writes it: `GPU-` or, of a MIG instance, `MIG-`, and 36 characters."""

    name: str
    """Product name as NVML gives it, such as `NVIDIA GeForce RTX 3090`."""

    index: int
    """NVML index now, of an instance its GPU's; for display and for the order of placement only."""

    memory_bytes: int
    """Memory that programs can use: NVML's total less what the driver reserves."""

    driver_version: str
    """Version of the driver, such as `580.95.05`."""

    is_simulated: bool
    """Whether kernels compute nothing here."""

    parent_uuid: str | None = None
    """The GPU that this MIG instance is part of; None for a whole GPU."""

    mig_index: int | None = None
    """Index among the instances of its GPU; None for a whole GPU."""

    compute_capability: tuple[int, int] | None = None
    """Major and minor, such as (8, 6); None where the driver does not tell."""

    link_bytes_per_second: int | None = None
    """What copies between host and device reach by the generation and width of its link; None where the driver does not tell."""

    @property
    def is_instance(self) -> bool:
        """Whether hardware keeps it apart from the rest of its GPU."""
        return self.parent_uuid is not None

    @property
    def place(self) -> str:
        """`0`, or `0:2` for an instance, as nvidia-smi counts them."""
        return str(self.index) if self.mig_index is None else f"{self.index}:{self.mig_index}"


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

    only_draws: bool = False
    """Whether the driver lists it among those that draw and not among those that compute."""


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Of one GPU under one driver, in bytes a second."""

    to_device: float
    """From pinned host memory."""

    to_host: float
    """Into pinned host memory."""

    memory: float
    """Of the GPU's own memory, read in a stream by all multiprocessors."""

    @property
    def swap(self) -> float:
        """At which memory moves where as much comes in as goes out, one after the other."""
        return 2 / (1 / self.to_device + 1 / self.to_host)


@dataclass(frozen=True, slots=True)
class Outsider:
    """One process on one GPU, outside of every lease."""

    gpu_uuid: str
    process: ProcessHolder
    used_bytes: int | None
    """None where the driver does not tell."""

    program: str
    """The name that the kernel knows it by, 15 characters of it; printable."""

    uid: int | None
    """Whose it is; None where it ended meanwhile."""
