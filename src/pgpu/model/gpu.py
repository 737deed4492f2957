"""A GPU, its memory, the processes on it, and its measured bandwidths."""

import re

from pgpu.model.lease import ProcessHolder
from pgpu.structs import Struct

SIMULATED_PREFIX = "simulated "
"""Begins the names of simulated models in the history, whose runs say nothing about real ones."""


class Gpu(Struct, frozen=True):
    """A physical or simulated GPU, or a MIG instance of one; identified by its UUID, never by an ordinal."""

    uuid: str
    """As NVML returns it: `GPU-` or, for a MIG instance, `MIG-`, and 36 characters."""

    name: str
    """Product name from NVML, such as `NVIDIA GeForce RTX 3090`."""

    index: int
    """Current NVML index, for an instance that of its GPU; only for display and for the order of placement."""

    memory_bytes: int
    """Memory available to programs: NVML's total less what the driver reserves, or all of the machine's."""

    driver_version: str
    """Such as `580.95.05`."""

    is_simulated: bool
    """Whether its kernels compute nothing."""

    parent_uuid: str | None = None
    """The GPU that this MIG instance is part of; None for a whole GPU."""

    mig_index: int | None = None
    """Index among the instances of its GPU; None for a whole GPU."""

    compute_capability: tuple[int, int] | None = None
    """Major and minor, such as (8, 6); None if the driver does not report it."""

    link_bytes_per_second: int | None = None
    """Bandwidth of copies between host and device by generation and width of the link; None if not reported."""

    shares_host_memory: bool = False
    """Whether it has no memory of its own, as in GB10 and Jetson: CUDA then allocates the machine's."""

    @property
    def is_instance(self) -> bool:
        """Whether this is a MIG instance."""
        return self.parent_uuid is not None

    @property
    def part(self) -> float:
        """The part of a GPU that this is: of a MIG instance its compute slices, such as 2 of 7 for `MIG 2g.10gb`; else 1.

        Source: MIG User Guide, supported profiles.
        """
        found = re.search(r" MIG (\d)g\.", self.name) if self.is_instance else None
        return 1.0 if found is None else int(found[1]) / (4 if re.search("A30|RTX PRO", self.name) else 7)

    @property
    def place(self) -> str:
        """Index as nvidia-smi prints it: `0`, or `0:2` for an instance."""
        return str(self.index) if self.mig_index is None else f"{self.index}:{self.mig_index}"


class GpuMemory(Struct, frozen=True):
    """Used memory of one GPU at one moment."""

    uuid: str
    used_bytes: int
    """Held by all processes of the machine, without what the driver reserves; with all of the host's if they share memory."""


class GpuSensors(Struct, frozen=True):
    """Readings of one GPU at one moment; None where the driver does not report one, as for MIG instances."""

    temperature_celsius: int | None = None
    power_watts: float | None = None
    """Drawn now by the whole board."""

    power_limit_watts: float | None = None
    clock_mhz: int | None = None
    """Of its multiprocessors, now."""

    memory_clock_mhz: int | None = None


class GpuSeries(Struct, frozen=True):
    """Minutes of one GPU, or of all together, in columns of the same length; a minute in which nothing ran is missing."""

    gpu_uuid: str
    """Empty for all GPUs together."""

    at_seconds: tuple[int, ...]
    """Begins of the minutes, in seconds since the epoch."""

    reserved_bytes: tuple[int, ...]
    """Sum of the slices, the mean of the minute, like every column."""

    used_bytes: tuple[int, ...]
    busy_percent: tuple[int | None, ...]
    """Of the time a kernel ran; None where the driver does not report it."""


class GpuProcess(Struct, frozen=True):
    """One process that holds memory of one GPU."""

    gpu_uuid: str
    pid: int
    """In the host's PID namespace."""

    used_bytes: int | None
    """None if the driver does not report it."""

    only_draws: bool = False
    """Whether NVML lists it among graphics processes only."""


class Bandwidths(Struct, frozen=True):
    """Bandwidths of one GPU under one driver in bytes per second, as `pgpu calibrate` measured them."""

    to_device: float
    """From pinned host memory."""

    to_host: float
    """Into pinned host memory."""

    memory: float
    """Of device memory, streamed by all multiprocessors."""

    @property
    def swap(self) -> float:
        """Rate of swapping equal amounts out and in, one after the other."""
        return 2 / (1 / self.to_device + 1 / self.to_host)


class Outsider(Struct, frozen=True):
    """A process that holds memory of one GPU outside of every lease."""

    gpu_uuid: str
    process: ProcessHolder
    used_bytes: int | None
    """None if the driver does not report it."""

    program: str
    """Printable command name from /proc/PID/comm, at most 15 characters."""

    uid: int | None
    """None if the process has ended meanwhile."""
