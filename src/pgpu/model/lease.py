"""What a job was granted."""

from dataclasses import dataclass
from pathlib import Path

from pgpu.model.request import SharingMode, SharingWish


@dataclass(frozen=True, slots=True)
class Slice:
    """A share of one GPU given to one holder."""

    gpu_uuid: str
    memory_bytes: int
    """Includes the CUDA contexts of the job's processes."""

    compute_share: float | None = None
    """Of the GPU's time, above 0 to 1, which it gets whatever others want; None where none was asked for."""

    resident_bytes: int | None = None
    """What of `memory_bytes` is surely the device's, where the rest may lie on the host; None where all of it is."""

    @property
    def device_bytes(self) -> int:
        """What it takes of the GPU that nobody else may have."""
        return self.memory_bytes if self.resident_bytes is None else self.resident_bytes


@dataclass(frozen=True, slots=True)
class Lease:
    """A granted request: one slice for each GPU. It lasts until its holder is gone."""

    job_id: str
    slices: tuple[Slice, ...]
    """In the order in which the job sees its GPUs."""

    granted_at_seconds: float
    """Seconds since the epoch."""

    enforcer: str | None = None
    """Name of the enforcer that makes it bind (`shim`, `driver`, `mig`); None until it was prepared."""

    is_advisory: bool = False
    """True where a job that drops its environment also drops the limit (plain preload)."""

    sharing: SharingMode = SharingMode.TIME_SLICE
    """How it shares its GPUs with others: each of them is in this mode as long as it is there."""


@dataclass(frozen=True, slots=True)
class ProcessHolder:
    """A process of this machine."""

    pid: int
    start_time_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks after boot."""

    boot_id: str
    """/proc/sys/kernel/random/boot_id when the process started."""


@dataclass(frozen=True, slots=True)
class ContainerHolder:
    """A container of a Docker engine."""

    container_id: str
    """64 hexadecimal digits."""

    engine_url: str
    """The engine's address, such as `unix:///var/run/docker.sock`."""


@dataclass(frozen=True, slots=True)
class ClaimHolder:
    """Whoever has a slice by a claim: no process of its own, and any number of containers."""

    claim_uid: str

    slice_directory: str
    """What lies at `/.pgpu` in each of those containers."""


Holder = ProcessHolder | ContainerHolder | ClaimHolder


@dataclass(frozen=True, slots=True)
class Delivery:
    """The files and words of one lease, as paths of the host."""

    slice_directory: Path
    """Becomes `/.pgpu`, read-only; laid out as above."""

    usage_path: Path
    """Becomes `/.pgpu/usage`, read-write; a file of mode 0666 on a tmpfs, in a directory closed to other users."""

    gpu_uuids: tuple[str, ...]
    """The lease's GPUs in the job's order; a runtime makes exactly these visible on real hardware."""

    simulated_state_directory: Path | None = None
    """Becomes `/.pgpu/simgpu`, read-write; None on a real GPU."""

    driver_files: tuple[tuple[str, Path], ...] = ()
    """(Name, host path) of the real driver's libraries: each becomes `/.pgpu/driver/NAME`, read-only, because a shim lies
    over the path where it is looked for. Empty on a simulated GPU."""

    environment: tuple[tuple[str, str], ...] = ()
    """Set in the job, whatever the user asked for; never trusted for a limit."""

    time_path: Path | None = None
    """Becomes `/.pgpu/time`, read-write: what the job tells of its GPU time. It lies in `board_directory`; where there are
    no mounts a link beside the usage file leads to it. None where nothing is told."""

    board_directory: Path | None = None
    """Becomes `/.pgpu/board`, read-only: what every job of this machine tells."""

    cgroup_limits: tuple[tuple[str, int], ...] = ()
    """(GPU UUID, bytes) that the driver must enforce on the job's cgroup; empty where that enforcer is not used."""

    mps_pipe_directory: Path | None = None
    """Becomes `/.pgpu/mps`, read-write; where there are no mounts the environment names it. None where the job is no
    client of MPS."""

    @property
    def has_slice(self) -> bool:
        """Whether there is anything to bring in: a job without a GPU has no slice, and its paths lead nowhere."""
        return bool(self.gpu_uuids)

    @property
    def is_simulated(self) -> bool:
        """Whether the job runs on the simulated driver."""
        return self.simulated_state_directory is not None


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim on slices of certain GPUs. It has no command and no process: it lasts until it is freed."""

    uid: str
    """Whom the slices are for, such as a ResourceClaim's uid: 1 to 63 letters, digits and dashes."""

    namespace: str
    name: str
    """What people call it; both empty where nobody said."""

    slices: tuple[Slice, ...]
    """1 to 16, on distinct GPUs, in the order in which its containers see them; sizes may differ."""

    sharing: SharingWish = SharingWish.TIME_SLICE
    """`EXCLUSIVE` for whole GPUs."""

    is_strict: bool = False
    """Whether it never gets more than its compute shares, even of GPUs that are idle."""

    priority: int = 0
    """-100 to 100: of two that want a GPU's time the one of a higher priority gets more of it."""

    oversubscribes: bool = False
    """Whether its memory may be moved to the host while others use the GPU."""

    wait_for_memory_seconds: float = 0.0
    """How long an allocation inside the slice that the device cannot back right now waits before it fails."""

    note: str = ""
    """The orchestrator's own words, kept with the claim."""


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A claim that has its slices."""

    claim: Claim
    job_id: str
    """As which the node's ledger knows it."""

    delivery: Delivery
    """What its containers must be given."""
