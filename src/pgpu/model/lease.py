"""Requests and leases: what a job asks of GPUs, its slices, their holder, and the files that make their limits bind.

`Delivery` is the interface between enforcement, which writes the files, and a runtime, which puts them into a process or a
container; neither imports the other. Layout of `slice_directory`, which the job sees read-only at `/.pgpu` (with a plain
preload, at its path on the host):

    libpgpu.so          the CUDA shim; one inode serves as preload and as shadow over libcuda.so.1
    libpgpu-ml.so       the NVML shim, likewise over libnvidia-ml.so.1
    limit               the limit file (native/include/meter_abi.h)
    usage               the usage file, and the log of a traced job; empty placeholder that `usage_path` is mounted over
                        where there are mounts
    time                GPU time reported by the job; empty placeholder that `time_path` is mounted over
    board/              mount point of `board_directory`
    ld.so.preload       the shim first; a runtime appends the lines of the image or host
    pgpu-enter          entry point of a container whose user named a working directory
    driver/             libcuda.so.1 and libnvidia-ml.so.1 behind the shims: the simulated driver's files, or, on a real
                        GPU, empty placeholders that `driver_files` are mounted over where there are mounts
    simgpu/             only with a simulated GPU: mount point of `simulated_state_directory`
    mps/                only under MPS: mount point of `mps_pipe_directory`
"""

from enum import StrEnum
from pathlib import Path

from pgpu.structs import Struct, replace


class SharingMode(StrEnum):
    """How the jobs on one GPU share its compute. All jobs on a GPU are in the same mode."""

    TIME_SLICE = "time-slice"
    MPS = "mps"
    EXCLUSIVE = "exclusive"


class SharingWish(StrEnum):
    """The sharing mode that a job asks for."""

    TIME_SLICE = "time-slice"
    MPS = "mps"
    EXCLUSIVE = "exclusive"
    AUTO = "auto"
    """Chosen from measurements of the job and its neighbours, and reverted if it turns out slower."""


class Objective(StrEnum):
    """What the start of a job is chosen for, where it fits on a GPU."""

    RESPONSE = "response"
    """It may wait for a less busy GPU, or for the next wave of its batch, if jobs end earlier on average then."""

    SOONEST = "soonest"
    """It starts as soon as it fits."""


class OnTimeLimit(StrEnum):
    """What happens to a job that has run for its time limit."""

    MARK = "mark"
    """It goes on, with a warning."""

    STOP = "stop"
    """SIGTERM, and SIGKILL after the grace; its exit code is 124."""


class Request(Struct, frozen=True):
    """An amount of GPU memory on a number of GPUs, with priority and sharing; or no GPU at all."""

    memory_bytes: int
    """Per GPU, CUDA context included. 0 without a GPU, and in a request for which pgpu chooses the amount (`is_estimated`)."""

    gpu_count: int = 1
    """Distinct GPUs, each with a slice of `memory_bytes`; 0 for a job without a GPU."""

    compute_share: float | None = None
    """Of each GPU's time, above 0 to 1; None for no guaranteed share."""

    priority: int = 0
    """-100 to 100: a waiting job of a higher priority goes first."""

    is_estimated: bool = False
    """Whether pgpu chose `memory_bytes` (`--memory auto`) and may change it by what it measures."""

    retries_out_of_memory: bool = False
    """Whether a run that hit its own limit is queued again with a larger slice."""

    basis: str | None = None
    """What the estimate is based on (`advising.memory_demand.Basis`); None unless pgpu chose `memory_bytes`."""

    is_strict: bool = False
    """Whether it never gets more than `compute_share`, even of an idle GPU."""

    sharing: SharingWish = SharingWish.TIME_SLICE

    oversubscribes: bool = False
    """Whether its memory may move to the host while others use the GPU, so that the slices may sum to more than the GPU."""

    preempts: bool = False
    """Whether running jobs of a lower priority are suspended if there is no room for it otherwise."""

    measures: bool = False
    """Whether it runs under MPS only to be measured beside an antagonist of pgpu, which has no data to lose: allowed before Volta,
    too, where clients share one address space."""

    objective: Objective = Objective.RESPONSE

    time_limit_seconds: float | None = None
    """Longest time that it may run, without time in which it is suspended or parked; None for no limit."""

    on_time_limit: OnTimeLimit = OnTimeLimit.STOP

    gpu_models: tuple[str, ...] = ()
    """Parts of the names of GPUs on which it may run, in any case; empty for any GPU."""

    @property
    def has_chosen_size(self) -> bool:
        """Whether its size is pgpu's choice now: a resize by hand makes it the user's."""
        return self.is_estimated and self.basis is not None

    @property
    def is_without_gpu(self) -> bool:
        """Whether it asks for no GPU, and so for no GPU memory either."""
        return self.gpu_count == 0

    def expected_seconds(self, usual_seconds: float | None) -> float | None:
        """Return how long a run is expected to take: as earlier runs, and no longer than a limit that stops it; None if unknown."""
        if self.time_limit_seconds is None or self.on_time_limit is OnTimeLimit.MARK:
            return usual_seconds
        return min(usual_seconds or self.time_limit_seconds, self.time_limit_seconds)


class Resize(Struct, frozen=True):
    """New amounts for a waiting or running job; None leaves an amount as it is."""

    memory_bytes: int | None = None
    """Of each slice."""

    compute_share: float | None = None
    """Of each GPU's time, above 0 to 1; 0 removes the share."""

    is_strict: bool | None = None
    """As in a request."""

    def of(self, request: Request) -> Request:
        """Return the changed request. An explicit amount of memory is no longer pgpu's estimate."""
        if self.memory_bytes is not None:
            request = replace(request, memory_bytes=self.memory_bytes, basis=None)
        if self.compute_share is not None:
            request = replace(request, compute_share=self.compute_share or None)
        is_strict = request.is_strict if self.is_strict is None else self.is_strict
        takes_strictness_away = self.is_strict is None and self.compute_share == 0
        return replace(request, is_strict=is_strict and not takes_strictness_away)


class Slice(Struct, frozen=True):
    """Part of one GPU given to one job."""

    gpu_uuid: str
    memory_bytes: int
    """Includes the CUDA contexts of the job's processes."""

    compute_share: float | None = None
    """Guaranteed share of the GPU's time, above 0 to 1; None for no guarantee."""

    resident_bytes: int | None = None
    """The part of `memory_bytes` that stays on the device, if the rest may move to the host; None if all of it stays."""

    @property
    def device_bytes(self) -> int:
        """Device memory that no other job can use."""
        return self.memory_bytes if self.resident_bytes is None else self.resident_bytes


class Lease(Struct, frozen=True):
    """A granted request: one slice for each GPU. It lasts until its holder is gone."""

    job_id: str
    slices: tuple[Slice, ...]
    """In the order in which the job sees its GPUs."""

    granted_at_seconds: float
    """Seconds since the epoch."""

    enforcer: str | None = None
    """Name of the enforcer of its limits (`shim`, `driver`, `mig`); None until it was prepared."""

    is_advisory: bool = False
    """True if a job that drops its environment also drops the limit (plain preload)."""

    sharing: SharingMode = SharingMode.TIME_SLICE
    """Sharing mode of its GPUs as long as it is there."""


class ProcessHolder(Struct, frozen=True):
    """A process of this machine; stays distinct when its PID is reused."""

    pid: int
    start_time_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks after boot."""

    boot_id: str
    """/proc/sys/kernel/random/boot_id when the process started."""


class ContainerHolder(Struct, frozen=True):
    """A container of a Docker engine."""

    container_id: str
    """64 hexadecimal digits."""

    engine_url: str
    """Address of the engine, such as `unix:///var/run/docker.sock`."""


class ClaimHolder(Struct, frozen=True):
    """A Kubernetes claim: no process of its own, and any number of containers."""

    claim_uid: str

    slice_directory: str
    """Mounted at `/.pgpu` in each of those containers."""


Holder = ProcessHolder | ContainerHolder | ClaimHolder


class Delivery(Struct, frozen=True):
    """Files and environment of one lease. Paths are those of the host."""

    slice_directory: Path
    """Becomes `/.pgpu`, read-only; laid out as above."""

    usage_path: Path
    """Becomes `/.pgpu/usage`, read-write; a file of mode 0666 on a tmpfs, in a directory closed to other users."""

    gpu_uuids: tuple[str, ...]
    """The lease's GPUs in the job's order; a runtime makes exactly these visible on real hardware."""

    simulated_state_directory: Path | None = None
    """Becomes `/.pgpu/simgpu`, read-write; None on a real GPU."""

    driver_files: tuple[tuple[str, Path], ...] = ()
    """(Name, host path) of the real driver's libraries: each becomes `/.pgpu/driver/NAME`, read-only, since a shim is mounted
    over its usual path. Empty on a simulated GPU."""

    environment: tuple[tuple[str, str], ...] = ()
    """Set in the job after the user's own variables; never trusted for a limit."""

    time_path: Path | None = None
    """Becomes `/.pgpu/time`, read-write: GPU time reported by the job. It is in `board_directory`; without mounts, a link
    beside the usage file leads to it. None if nothing is reported."""

    board_directory: Path | None = None
    """Becomes `/.pgpu/board`, read-only: GPU time reported by all jobs of this machine."""

    cgroup_limits: tuple[tuple[str, int], ...] = ()
    """(GPU UUID, bytes) that the driver must enforce on the job's cgroup; empty if that enforcer is not used."""

    mps_pipe_directory: Path | None = None
    """Becomes `/.pgpu/mps`, read-write; without mounts the environment names it. None if the job is no client of MPS."""

    @property
    def has_slice(self) -> bool:
        """Whether there are files to deliver. A job without a GPU has no slice, and its paths do not exist."""
        return bool(self.gpu_uuids)

    @property
    def is_simulated(self) -> bool:
        """Whether the job runs on the simulated driver."""
        return self.simulated_state_directory is not None


class Claim(Struct, frozen=True):
    """Slices for a Kubernetes claim, on GPUs that the orchestrator has chosen. No command, no process; lasts until it is freed."""

    uid: str
    """Such as the uid of a ResourceClaim: 1 to 63 letters, digits and dashes."""

    namespace: str
    name: str
    """For display; both empty if unknown."""

    slices: tuple[Slice, ...]
    """1 to 16, on distinct GPUs, in the order in which its containers see them; sizes may differ."""

    sharing: SharingWish = SharingWish.TIME_SLICE
    """`EXCLUSIVE` for whole GPUs."""

    is_strict: bool = False
    """Whether it never gets more than its compute shares, even of idle GPUs."""

    priority: int = 0
    """-100 to 100: a higher priority gets more of a GPU's time under contention."""

    oversubscribes: bool = False
    """Whether its memory may move to the host while others use the GPU."""

    wait_for_memory_seconds: float = 0.0
    """How long an allocation inside the slice that the device cannot back now waits before it fails."""

    note: str = ""
    """Text of the orchestrator, kept with the claim."""


class HeldClaim(Struct, frozen=True):
    """A claim that has its slices."""

    claim: Claim
    job_id: str
    """Id of its job in the node's ledger."""

    delivery: Delivery
    """To be put into its containers."""
