"""What scoring knows of pods, claims and GPUs, as frozen values. Nothing here reads or decides."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

GIB_RESOURCE = "pgpu.io/gpu-memory-gib"
"""What pods ask for on nodes with the device plugin; the scheduler knows one number of such a node."""

WHOLE_MILLI = 1000
"""Of a GPU's compute."""


class ClaimKey(NamedTuple):
    """Which claim or template."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class GpuAsk:
    """GPUs that one request of a claim asks for."""

    class_name: str
    """Of devices."""

    gpu_count: int = 1
    memory_bytes: int | None = None
    """Of each; None: the usual size."""

    compute_percent: int = 0
    """Of each."""


@dataclass(frozen=True, slots=True)
class ConsumedGpu:
    """What a claim has of one GPU."""

    pool: str
    gpu: str
    """The GPU's UUID in lower case."""

    memory_bytes: int = 0
    compute_milli: int = 0
    is_whole: bool = False
    """All of it, whatever the amounts say."""


@dataclass(frozen=True, slots=True)
class ClaimState:
    """What a claim asks for, and got."""

    key: ClaimKey
    asks: tuple[GpuAsk, ...] = ()
    is_allocated: bool = False
    taken: tuple[ConsumedGpu, ...] = ()
    """Of pgpu's devices."""

    user_uids: frozenset[str] = frozenset()
    """Pods that it is reserved for."""


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A claim of a pod's."""

    name: str | None
    """Of the claim; None where it was not made yet."""

    template: str | None = None
    """It is made of."""


@dataclass(frozen=True, slots=True)
class PodState:
    """What a pod asks for."""

    uid: str
    namespace: str
    node: str | None
    """Where it runs; None while it waits."""

    cpu_milli: int
    host_memory_bytes: int
    resources: Mapping[str, int] = field(default_factory=dict)
    """Other resources that its containers ask for, by name: whole numbers."""

    claims: tuple[PodClaim, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """What pods may have of a node."""

    name: str
    cpu_milli: int
    host_memory_bytes: int
    gpu_gib: int = 0
    """Where the device plugin is: GPU memory of the whole node."""


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """One GPU that many claims may share."""

    gpu: str
    """Its UUID in lower case."""

    memory_bytes: int
    default_bytes: int
    """What a claim gets that names no amount."""

    step_bytes: int


@dataclass(frozen=True, slots=True)
class PublishedSlice:
    """One ResourceSlice: GPUs of a pool, in the order in which the scheduler tries them."""

    name: str
    pool: str
    generation: int
    node: str
    cards: tuple[SharedGpu, ...]


@dataclass(frozen=True, slots=True)
class GpuClass:
    """One DeviceClass that pgpu's devices are of."""

    name: str
    is_whole: bool
    """Whether its devices are whole GPUs."""

    extended_resource: str | None = None
    """What containers may ask for in its place."""
