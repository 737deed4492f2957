"""What a runtime must put into a job so that its lease binds.

Enforcement writes these files; a runtime brings them into a process or a container. Neither knows the other.

Layout of `slice_directory`, which the job sees read-only at `/.pgpu` (a plain preload sees it where it is):

    libpgpu.so          the CUDA shim; one inode serves as preload and as shadow over libcuda.so.1
    libpgpu-ml.so       the NVML shim, likewise over libnvidia-ml.so.1
    limit               the limit file (native/include/meter_abi.h)
    usage               the usage file, behind which a traced job's log lies; empty placeholder that `usage_path` is mounted
                        over where there are mounts
    time                what the job tells of its GPU time; empty placeholder that `time_path` is mounted over
    board/              mount point of `board_directory`
    ld.so.preload       ours first; a runtime appends the lines of the image or host
    pgpu-enter          begins the container of a user who named a working directory
    driver/             libcuda.so.1 and libnvidia-ml.so.1 behind the shims: the simulated driver's files, or, on a real
                        GPU, empty placeholders that `driver_files` are mounted over where there are mounts
    simgpu/             only with a simulated GPU: mount point of `simulated_state_directory`
    mps/                only under MPS: mount point of `mps_pipe_directory`
"""

from dataclasses import dataclass
from pathlib import Path


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
