"""Where this installation keeps its C libraries.

The wheel carries them in `pgpu/_native`; a checkout builds them to the same place (`make build`). This module refuses
to load anything: it only says where a file is, or which one is missing.
"""

from pathlib import Path

from pgpu.errors import NodeError

_NATIVE = Path(__file__).parent / "_native"

CUDA_SHIM = "libpgpu.so"
"""Stands between a job and libcuda.so.1 (SONAME libcuda.so.1)."""

CUDA_SHIM_VERSION = 13050
"""The newest CUDA whose functions it knows, as 1000 · major + 10 · minor."""

NVML_SHIM = "libpgpu-ml.so"
"""Stands between a job and libnvidia-ml.so.1 (SONAME libnvidia-ml.so.1)."""

LAUNCHER = "pgpu-launch"
"""Starts a process job inside a private user and mount namespace."""

STAGER = "pgpu-stage"
"""Lets root mount into a container what the container's user may open."""

HOLD = "pgpu-hold"
"""Stands at a container's beginning until its slice is granted."""

ENTER = "pgpu-enter"
"""Enters a container's working directory as the container's user."""

BRINGER = "pgpu-bring"
"""Mounts a directory into a container that exists already."""

OCI_RUNTIME = "pgpu-runtime"
"""What a container engine calls in the place of runc."""

PROBE = "pgpu-probe"
"""The smallest CUDA client there is: proves limits and lets a context be measured."""

CHECKPOINT = "pgpu-checkpoint"
"""Asks the driver to move a process's GPU memory to the host and back."""

SIMULATED_CUDA = "simgpu/libcuda.so.1"
SIMULATED_NVML = "simgpu/libnvidia-ml.so.1"
SIMULATED_MPS_CONTROL = "simgpu/nvidia-cuda-mps-control"


def library_path(name: str) -> Path:
    """Return the absolute path of one of the files named above.

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
