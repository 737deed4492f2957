"""Plans the mounts of a lease's files in a container, and the mount points that users' volumes must have for them. Pure.

The engine sorts mounts by the depth of their targets, so files are mounted over directories. The plan needs no privilege
and works in a read-only container of user 1000 without capabilities.

An engine creates missing mount points as root. In the volumes of a user other than root it cannot
(native/launcher/idmapped_mount.h), so a missing one is reported before a job is accepted. Only names are compared: symbolic
links of an image are not resolved, and there the engine fails.
"""

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pgpu.libraries import CUDA_SHIM, NVML_SHIM
from pgpu.model import Delivery, Mount
from pgpu.runtimes.docker.image_facts import CUDA_NAME, ImageFacts
from pgpu.structs import Struct

JOB_DIRECTORY = "/.pgpu"
"""Directly under /: a parent directory that the container's root can rename could be replaced by a forged one."""

_PRELOAD = "ld.so.preload"


class BindMount(Struct, frozen=True):
    source: Path
    target: str
    is_read_only: bool


def plan_mounts(delivery: Delivery, facts: ImageFacts) -> list[BindMount]:
    """Return the mounts of a lease for a container of an image."""
    cuda_shim, nvml_shim = delivery.slice_directory / CUDA_SHIM, delivery.slice_directory / NVML_SHIM
    cuda_targets = list(facts.cuda_paths)
    if delivery.is_simulated:
        # Some programs open the unversioned name. For a real GPU the NVIDIA toolkit links it to the versioned one.
        cuda_targets += [_unversioned(path) for path in facts.cuda_paths]
    mounts = list(_directory_mounts(delivery))
    mounts += [BindMount(cuda_shim, path, is_read_only=True) for path in dict.fromkeys(cuda_targets)]
    mounts += [BindMount(nvml_shim, path, is_read_only=True) for path in facts.nvml_paths]
    # Only glibc reads this file, and it does so even for programs that clear their environment.
    if facts.libc == "glibc":
        mounts.append(BindMount(delivery.slice_directory / _PRELOAD, facts.preload_path, is_read_only=True))
    return mounts


def _directory_mounts(delivery: Delivery) -> Iterator[BindMount]:
    # The other mount points exist in the slice already: the engine could not create them below a read-only mount.
    yield BindMount(delivery.slice_directory, JOB_DIRECTORY, is_read_only=True)
    yield BindMount(delivery.usage_path, f"{JOB_DIRECTORY}/usage", is_read_only=False)
    if delivery.time_path is not None and delivery.board_directory is not None:
        yield BindMount(delivery.time_path, f"{JOB_DIRECTORY}/time", is_read_only=False)
        yield BindMount(delivery.board_directory, f"{JOB_DIRECTORY}/board", is_read_only=True)
    if delivery.simulated_state_directory is not None:
        yield BindMount(delivery.simulated_state_directory, f"{JOB_DIRECTORY}/simgpu", is_read_only=False)
    if delivery.mps_pipe_directory is not None:
        yield BindMount(delivery.mps_pipe_directory, f"{JOB_DIRECTORY}/mps", is_read_only=False)
    for name, path in delivery.driver_files:
        yield BindMount(path, f"{JOB_DIRECTORY}/driver/{name}", is_read_only=True)


def targets_in(facts: ImageFacts) -> list[str]:
    """Return the paths in an image that a lease, or the engine's GPU support, may mount over; a superset."""
    unversioned = [_unversioned(path) for path in facts.cuda_paths]
    preload = [facts.preload_path] if facts.libc == "glibc" else []
    return [*preload, *facts.cuda_paths, *unversioned, *facts.nvml_paths]


def _unversioned(path: str) -> str:
    return posixpath.join(posixpath.dirname(path), CUDA_NAME.removesuffix(".1"))


def preload_lines(ours: str, of_the_image: tuple[str, ...]) -> str:
    """Return the content of /etc/ld.so.preload: `ours` first, then the image's own, without duplicates."""
    lines = [*ours.splitlines(), *of_the_image]
    return "".join(f"{line}\n" for line in dict.fromkeys(line for line in lines if line.strip()))


_OF_THE_ENGINE = {
    "/etc": ("hosts", "hostname", "resolv.conf"),
    "/dev": ("mqueue", "pts", "shm"),
    "/sys": ("fs/cgroup",),
}
"""Mounts of an engine in every container, beside /dev, /proc and /sys. Source: the OCI runtime specification, Docker."""


def plain(path: str) -> str:
    """Normalise a path as the engine does: two leading slashes become one, although POSIX keeps them."""
    normal = posixpath.normpath(path)
    return f"/{normal.lstrip('/')}" if normal.startswith("/") else normal


def needed_places(volumes: Sequence[Mount], others: Iterable[str]) -> list[tuple[int, str]]:
    """Return the mount points that volumes must have, as (number of the volume, path in it).

    Args:
        volumes: All of a container.
        others: Targets of other mounts in it, beside the engine's own.
    """
    own = [plain(volume.target) for volume in volumes]
    engines = [f"{directory}/{name}" for directory, names in _OF_THE_ENGINE.items() for name in names]
    found = []
    for target in (*own, *map(plain, others), *engines):
        above = [path for path in own if target.startswith(f"{path.rstrip('/')}/")]
        if above:
            nearest = max(above, key=len)
            found.append((own.index(nearest), target.removeprefix(nearest).lstrip("/")))
    return list(dict.fromkeys(found))
