"""Paths of this installation's C libraries and programs; nothing is loaded here.

The wheel contains them in `pgpu/_native`; a checkout builds them to the same place (`make build`).
"""

from pathlib import Path

from pgpu.errors import NodeError

_NATIVE = Path(__file__).parent / "_native"

# Intercepts the CUDA driver API of a job (SONAME libcuda.so.1).
CUDA_SHIM = "libpgpu.so"

# The newest CUDA whose functions it intercepts, as 1000 · major + 10 · minor.
CUDA_SHIM_VERSION = 13050

# Intercepts NVML in a job (SONAME libnvidia-ml.so.1).
NVML_SHIM = "libpgpu-ml.so"

# Starts a process job inside a private user and mount namespace.
LAUNCHER = "pgpu-launch"

# The native parent of a process job.
MONITOR = "pgpu-monitor"

# Mounts into a container, as root, files that the container's user may open.
STAGER = "pgpu-stage"

# Holds a container's entrypoint until its slice is granted.
HOLD = "pgpu-hold"

# Enters a container's working directory as the container's user.
ENTER = "pgpu-enter"

# Mounts a directory into a container that exists already.
BRINGER = "pgpu-bring"

# The OCI runtime that a container engine calls instead of runc.
OCI_RUNTIME = "pgpu-runtime"

# A minimal CUDA client, for tests of limits and for the size of a context.
PROBE = "pgpu-probe"

# Moves a process's GPU memory to the host and back, by the driver's checkpoints.
CHECKPOINT = "pgpu-checkpoint"

SIMULATED_CUDA = "simgpu/libcuda.so.1"
SIMULATED_NVML = "simgpu/libnvidia-ml.so.1"
SIMULATED_MPS_CONTROL = "simgpu/nvidia-cuda-mps-control"


def library_path(name: str) -> Path:
    """Return the absolute path of one of these files.

    Raises:
        NodeError: The file is missing from this installation.
    """
    path = _NATIVE / name
    if not path.is_file():
        raise NodeError(
            f"{name} is missing from this installation ({path})",
            hint="reinstall pgpu, or run `make build` in a checkout",
        )
    return path
