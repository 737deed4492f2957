"""What a claim's slice changes in a container, in the words of a CDI file. A pure plan.

The container runtime creates containers of images that nobody here has seen: files lie where glibc's loader looks by default.
It adds no privilege of its own. A container that names two claims cannot start: the second's files take the place of the
first's, and then the first's seal has no place in a directory that is only read.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from pgpu.libraries import CUDA_SHIM, NVML_SHIM
from pgpu.model import Delivery

JOB_DIRECTORY = "/.pgpu"
SEAL_DIRECTORY = "/.pgpu-one-claim-for-each-container"
"""Stands in the error of a container that cannot start for this reason."""

_PRELOAD = "ld.so.preload"
_CUDA = ("libcuda.so.1", "libcuda.so")
_NVML = "libnvidia-ml.so.1"
_DECISIVE = ("limit", CUDA_SHIM, NVML_SHIM, _PRELOAD)
"""What a slice binds by. Mounted one by one, too: a volume of the pod's at such a path gives way to them."""

_LISTS = ("deviceNodes", "mounts", "hooks", "additionalGids")


def container_edits(
    delivery: Delivery, seal: Path, machine: str, gpu_edits: Mapping[str, list[Any]] | None
) -> dict[str, list[Any]]:
    """Return the `containerEdits` of a CDI device.

    Args:
        delivery: What the slice consists of, as paths of the host.
        seal: A file that is the claim's alone, named so, in a directory of its own.
        machine: The processor as the kernel calls it, such as `x86_64`.
        gpu_edits: What a real GPU needs, as its maker's CDI file says; None for a simulated one.
    """
    of_gpu = gpu_edits or {}
    driver = [_driver_mount(name, path, of_gpu.get("mounts", ())) for name, path in delivery.driver_files]
    mounts = [*of_gpu.get("mounts", ()), *_own_mounts(delivery, machine), *driver, *_seal_mounts(seal)]
    edits = {**{name: list(of_gpu.get(name, ())) for name in _LISTS}, "mounts": mounts}
    # NVIDIA's container runtime, where it is the usual one, must not add all GPUs to this.
    words = [*of_gpu.get("env", ()), "NVIDIA_VISIBLE_DEVICES=void"]
    edits["env"] = words + [f"{name}={value}" for name, value in delivery.environment]
    return {name: value for name, value in edits.items() if value}


def _own_mounts(delivery: Delivery, machine: str) -> Iterator[dict[str, Any]]:
    yield _mount(delivery.slice_directory, JOB_DIRECTORY)
    for name in _DECISIVE:
        yield _mount(delivery.slice_directory / name, f"{JOB_DIRECTORY}/{name}")
    yield _mount(delivery.usage_path, f"{JOB_DIRECTORY}/usage", "rw")
    if delivery.time_path is not None and delivery.board_directory is not None:
        yield _mount(delivery.time_path, f"{JOB_DIRECTORY}/time", "rw")
        yield _mount(delivery.board_directory, f"{JOB_DIRECTORY}/board")
    if delivery.simulated_state_directory is not None:
        yield _mount(delivery.simulated_state_directory, f"{JOB_DIRECTORY}/simgpu", "rw")
    if delivery.mps_pipe_directory is not None:
        yield _mount(delivery.mps_pipe_directory, f"{JOB_DIRECTORY}/mps", "rw")
    for directory in (f"/usr/lib/{machine}-linux-gnu", "/usr/lib64"):
        for name in _CUDA if delivery.is_simulated else _CUDA[:1]:
            yield _mount(delivery.slice_directory / CUDA_SHIM, f"{directory}/{name}")
        yield _mount(delivery.slice_directory / NVML_SHIM, f"{directory}/{_NVML}")
    yield _mount(delivery.slice_directory / _PRELOAD, f"/etc/{_PRELOAD}")


def _driver_mount(name: str, path: Path, of_gpu: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mount a library of the driver; its maker's file says where the host has it, which a driver in a container cannot see."""
    stem = f"{name.removesuffix('.1')}."
    hosts = [each["hostPath"] for each in of_gpu if PurePath(each["containerPath"]).name.startswith(stem)]
    return _mount(Path(hosts[0]) if hosts else path, f"{JOB_DIRECTORY}/driver/{name}")


def _seal_mounts(seal: Path) -> Iterator[dict[str, Any]]:
    yield _mount(seal.parent, SEAL_DIRECTORY)
    yield _mount(seal, f"{SEAL_DIRECTORY}/{seal.name}")


def _mount(source: Path, target: str, access: str = "ro") -> dict[str, Any]:
    options = ["bind", access, "nosuid", "nodev", "rprivate"]
    return {"hostPath": str(source), "containerPath": target, "options": options}
