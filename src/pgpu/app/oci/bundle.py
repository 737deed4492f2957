"""What a slice changes in a container's `config.json`: mounts, environment, and what runs first. Nearly pure.

It refuses to add a privilege: a simulated GPU needs none, and a real one brings the devices that its CDI description names.
"""

import os
import posixpath
from typing import Any

from pgpu.app.oci.devices import add_devices
from pgpu.app.oci.refusing import RefusedError
from pgpu.app.oci.rootfs import Rootfs, plain_path

JOB_DIRECTORY = "/.pgpu"
HOLD = f"{JOB_DIRECTORY}/pgpu-hold"
PRELOAD = "/etc/ld.so.preload"
CUDA = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"
JOB_ANNOTATION = "pgpu.job"

_COMPAT = ("/usr/local/cuda/compat", "/usr/local/cuda/compat/lib.real")
_SHADOWED = {CUDA, "libcuda.so", NVML}


class View:
    """Where the files of a slice have to lie in one container's root."""

    def __init__(self, files: Rootfs, library_path: list[str]) -> None:
        """Look into the root.

        Args:
            files: The container's files.
            library_path: The directories of its LD_LIBRARY_PATH.
        """
        standard = [f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64"]
        self.has_glibc = any(files.resolve(f"{at}/libc.so.6") for at in (*standard, "/lib64", "/usr/lib", "/lib"))
        self.preload_path = files.resolve(PRELOAD) or PRELOAD
        self.preload_lines = (files.read(PRELOAD) or b"").decode(errors="replace").splitlines()
        others = [*_COMPAT, *(path for path in library_path if path.startswith("/")), "/usr/lib", "/lib"]
        self.cuda_paths = _places(files, standard, others, CUDA)
        self.nvml_paths = _places(files, standard, others, NVML)


def view_of(configuration: dict[str, Any], bundle: str) -> View:
    """Look where a slice has to lie in a container."""
    root = posixpath.join(bundle, (configuration.get("root") or {}).get("path", "rootfs"))
    paths = [word.partition("=")[2] for word in configuration["process"]["env"] if word.startswith("LD_LIBRARY_PATH=")]
    return View(Rootfs(root, configuration.get("mounts") or []), [part for path in paths for part in path.split(":")])


def refuse_covered(configuration: dict[str, Any]) -> None:
    """Refuse mounts of the container's user that lie where the slice's must.

    Raises:
        RefusedError: One does.
    """
    for mount in configuration.get("mounts") or ():
        target = plain_path(mount["destination"])
        is_ours = target in {JOB_DIRECTORY, PRELOAD} or target.startswith(f"{JOB_DIRECTORY}/")
        if is_ours or posixpath.basename(target) in _SHADOWED:
            raise RefusedError(f"a volume lies where pgpu puts the slice: {target}", hint="leave it out")


def put_in_slice(configuration: dict[str, Any], home: str, view: View, prepared: dict[str, Any], job_id: str) -> None:
    """Change a configuration so that its container has a slice and waits for it.

    Args:
        configuration: Changed in place.
        home: The slice's directory.
        view: Where its files have to lie.
        prepared: What `preparing` wrote.
        job_id: Of the job that will be granted the slice.

    Raises:
        RefusedError: A device of the GPU is not there.
    """
    process = configuration["process"]
    process["args"] = [HOLD, *process["args"]]
    process["env"] = [word for word in process["env"] if not word.startswith("NVIDIA_VISIBLE_DEVICES=")]
    process["env"].append("NVIDIA_VISIBLE_DEVICES=void")
    if prepared["cdi"]:
        add_devices(configuration, prepared["cdi"])
    configuration.setdefault("mounts", []).extend(_mounts(home, view, prepared))
    configuration.setdefault("annotations", {})[JOB_ANNOTATION] = job_id


def _mounts(home: str, view: View, prepared: dict[str, Any]) -> list[dict[str, Any]]:
    slice_directory = f"{home}/view"
    mounts = [_bind(slice_directory, JOB_DIRECTORY), _bind(f"{home}/meter/usage", f"{JOB_DIRECTORY}/usage", "rw")]
    mounts.append(_bind(os.path.realpath(f"{home}/meter/time"), f"{JOB_DIRECTORY}/time", "rw"))
    mounts.append(_bind(os.path.realpath(f"{home}/meter/board"), f"{JOB_DIRECTORY}/board"))
    if prepared["simulated"]:
        mounts.append(_bind(prepared["simulated"], f"{JOB_DIRECTORY}/simgpu", "rw"))
    mounts += [_bind(path, f"{JOB_DIRECTORY}/driver/{name}") for name, path in prepared["driver_files"].items()]
    mounts += [_bind(f"{slice_directory}/libpgpu.so", path) for path in _cuda_targets(view, prepared)]
    mounts += [_bind(f"{slice_directory}/libpgpu-ml.so", path) for path in view.nvml_paths]
    if view.has_glibc:
        mounts.append(_bind(f"{slice_directory}/ld.so.preload", view.preload_path))
    return mounts


def _cuda_targets(view: View, prepared: dict[str, Any]) -> list[str]:
    """With a simulated GPU nobody else makes the name without a version, which some programs open."""
    unversioned = [posixpath.join(posixpath.dirname(path), "libcuda.so") for path in view.cuda_paths]
    return list(dict.fromkeys(view.cuda_paths + (unversioned if prepared["simulated"] else [])))


def _bind(source: str, target: str, access: str = "ro") -> dict[str, Any]:
    return {"type": "bind", "source": source, "destination": target, "options": ["bind", access, "rprivate"]}


def _places(files: Rootfs, standard: list[str], others: list[str], name: str) -> list[str]:
    landings = [_landing(files, directory, name) for directory in standard]
    existing = [found for directory in others if (found := files.resolve(f"{directory}/{name}"))]
    return list(dict.fromkeys(landings + existing))


def _landing(files: Rootfs, directory: str, name: str) -> str:
    """Return where a mount on directory/name would land: over the file that a link names, or beside the others."""
    found = files.resolve(f"{directory}/{name}")
    return found or posixpath.join(files.resolve(directory) or directory, name)
