"""The `containerEdits` of a claim's CDI device: mounts and environment that bring its slice into a container. Pure.

The images are unknown, so the libraries are mounted where glibc's loader searches by default. The edits add no privilege.

The seal keeps a container from naming two claims: the second claim's mounts would hide the first's. Each claim mounts its seal
directory at the same place and its own seal file inside; with two claims, the first's file has no place in the second's
read-only directory, and the container does not start.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from pgpu.libraries import CUDA_SHIM, NVML_SHIM
from pgpu.model import Delivery

JOB_DIRECTORY = "/.pgpu"
SEAL_DIRECTORY = "/.pgpu-one-claim-for-each-container"
"""This name appears in the runtime's error for a container with two claims."""

_PRELOAD = "ld.so.preload"
_CUDA = ("libcuda.so.1", "libcuda.so")
_NVML = "libnvidia-ml.so.1"
# Files that enforce the limit. Also mounted one by one, so that a volume of the pod at such a path does not hide
# them.
_DECISIVE = ("limit", CUDA_SHIM, NVML_SHIM, _PRELOAD)

_LISTS = ("deviceNodes", "mounts", "hooks", "additionalGids")


def container_edits(
    delivery: Delivery, seal: Path, machine: str, gpu_edits: Mapping[str, list[Any]] | None
) -> dict[str, list[Any]]:
    """Return the `containerEdits` of a CDI device.

    Args:
        delivery: Files and environment of the slice, as paths of the host.
        seal: The claim's own file, named by its uid, in a directory of its own.
        machine: As of uname(2), such as `x86_64`.
        gpu_edits: The vendor's edits for the real GPUs; None: the GPUs are simulated.
    """
    of_gpu = gpu_edits or {}
    driver = [_driver_mount(name, path, of_gpu.get("mounts", ())) for name, path in delivery.driver_files]
    seals = [_mount(seal.parent, SEAL_DIRECTORY), _mount(seal, f"{SEAL_DIRECTORY}/{seal.name}")]
    mounts = [*of_gpu.get("mounts", ()), *_own_mounts(delivery, machine), *driver, *seals]
    edits = {**{name: list(of_gpu.get(name, ())) for name in _LISTS}, "mounts": mounts}
    # Where NVIDIA's container runtime is the default one, it would add all GPUs without this variable.
    variables = [*of_gpu.get("env", ()), "NVIDIA_VISIBLE_DEVICES=void"]
    edits["env"] = variables + [f"{name}={value}" for name, value in delivery.environment]
    return {name: value for name, value in edits.items() if value}


def _own_mounts(delivery: Delivery, machine: str) -> Iterator[dict[str, Any]]:
    yield _mount(delivery.slice_directory, JOB_DIRECTORY)
    for name in _DECISIVE:
        yield _mount(delivery.slice_directory / name, f"{JOB_DIRECTORY}/{name}")
    # Writable: the meter is shared memory that the processes of the slice update.
    yield _mount(delivery.usage_path, f"{JOB_DIRECTORY}/usage", "rw")
    if delivery.time_path is not None and delivery.board_directory is not None:
        yield _mount(delivery.time_path, f"{JOB_DIRECTORY}/time", "rw")
        yield _mount(delivery.board_directory, f"{JOB_DIRECTORY}/board")
    if delivery.simulated_state_directory is not None:
        yield _mount(delivery.simulated_state_directory, f"{JOB_DIRECTORY}/simgpu", "rw")
    if delivery.mps_pipe_directory is not None:
        yield _mount(delivery.mps_pipe_directory, f"{JOB_DIRECTORY}/mps", "rw")
    # Debian's and Red Hat's library directories: the image decides which one its loader searches.
    for directory in (f"/usr/lib/{machine}-linux-gnu", "/usr/lib64"):
        for name in _CUDA if delivery.is_simulated else _CUDA[:1]:
            yield _mount(delivery.slice_directory / CUDA_SHIM, f"{directory}/{name}")
        yield _mount(delivery.slice_directory / NVML_SHIM, f"{directory}/{_NVML}")
    # Preloads the shim in every program of the container.
    yield _mount(delivery.slice_directory / _PRELOAD, f"/etc/{_PRELOAD}")


def _driver_mount(name: str, path: Path, of_gpu: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mount a driver library from its path on the host, which only the vendor's CDI file has: this process may run in a container."""
    stem = f"{name.removesuffix('.1')}."
    hosts = [each["hostPath"] for each in of_gpu if PurePath(each["containerPath"]).name.startswith(stem)]
    return _mount(Path(hosts[0]) if hosts else path, f"{JOB_DIRECTORY}/driver/{name}")


def _mount(source: Path, target: str, access: str = "ro") -> dict[str, Any]:
    options = ["bind", access, "nosuid", "nodev", "rprivate"]
    return {"hostPath": str(source), "containerPath": target, "options": options}
