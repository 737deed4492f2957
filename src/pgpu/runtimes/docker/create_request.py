"""Builds the body of `POST /containers/create` for a job, with the semantics of `docker run`.

It adds no privilege: no capability, no security option, no device except the lease's GPUs. Real GPUs are added by CDI, or by the
NVIDIA toolkit's device request, never by both: the toolkit would add every GPU that the CDI request left out.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pgpu.model import SEALED_HOST_MEMORY_BYTES, Delivery, Job, JobSpec
from pgpu.runtimes.docker.mounts import JOB_DIRECTORY, BindMount

JOB_LABEL = "io.pgpu.job"
"""Label of every container of pgpu; its value is the job's ID."""

_MOST_SCRATCH_BYTES = 1 << 30
_MOST_PROCESSES = 4096
_LOG_CONFIGURATION = {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}}
"""For `docker logs`. Small, since pgpu keeps its own log."""


def container_name(job: Job) -> str:
    """Return the job's name if engines accept it, else one derived from its ID, so that the container can be found again."""
    name = job.spec.name
    return name if name is not None and name.isascii() else f"pgpu-{job.id}"


def container_configuration(
    job: Job, delivery: Delivery, mounts: Sequence[BindMount], gpu_request: Mapping[str, Any]
) -> dict[str, Any]:
    spec = job.spec
    provisions = (
        _mount(BindMount(Path(mount.source), mount.target, is_read_only=mount.options != "rw"))
        for mount in spec.provisions
    )
    return {
        "Image": spec.image,
        **_command(spec),
        "Env": environment(spec, delivery, gpu_request),
        "User": spec.user or "",
        "WorkingDir": spec.working_directory or "",
        "Tty": spec.wants_tty,
        "OpenStdin": spec.wants_stdin,
        # The engine closes the container's input when the client detaches, so that the program reads end of file.
        "StdinOnce": spec.wants_stdin,
        "AttachStdin": spec.wants_stdin,
        "AttachStdout": True,
        "AttachStderr": True,
        "Labels": {JOB_LABEL: job.id},
        "HostConfig": {
            "Binds": binds(spec),
            "Mounts": [*(_mount(mount) for mount in mounts), *provisions],
            "LogConfig": _LOG_CONFIGURATION,
            # With it the engine would delete the exit code together with the container; pgpu removes the container itself.
            "AutoRemove": False,
            **({"DeviceRequests": [dict(gpu_request)]} if gpu_request else {}),
            **(_seal(spec) if spec.is_sealed else {}),
        },
    }


def _command(spec: JobSpec) -> dict[str, list[str]]:
    """Return the command for the image's entrypoint; a program of the slice itself runs without an entrypoint."""
    if not spec.command:
        return {}
    if spec.command[0].startswith(f"{JOB_DIRECTORY}/"):
        return {"Entrypoint": [spec.command[0]], "Cmd": list(spec.command[1:])}
    return {"Cmd": list(spec.command)}


def binds(spec: JobSpec) -> list[str]:
    """Return a job's volumes in the engine's notation."""
    return [":".join(filter(None, (volume.source, volume.target, volume.options))) for volume in spec.volumes]


def environment(spec: JobSpec, delivery: Delivery, gpu_request: Mapping[str, Any]) -> list[str]:
    """Return the variables added to the image's; pgpu's own override others.

    NVIDIA_VISIBLE_DEVICES is always set: an engine with NVIDIA's runtime as default would otherwise apply the image's
    `NVIDIA_VISIBLE_DEVICES=all`, past the lease.
    """
    by_request = gpu_request and gpu_request.get("Driver") != "cdi"
    # `void`: NVIDIA's runtime adds no GPU. With CDI the engine itself adds the devices.
    visible = ",".join(delivery.gpu_uuids) if by_request else "void"
    words = {**dict(spec.environment), "NVIDIA_VISIBLE_DEVICES": visible, **dict(delivery.environment)}
    return [f"{name}={value}" for name, value in words.items()]


def _mount(mount: BindMount) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": str(mount.source),
        "Target": mount.target,
        "ReadOnly": mount.is_read_only,
        # Mounts that are made later, on either side, stay on that side.
        "BindOptions": {"Propagation": "rprivate"},
    }


def _seal(spec: JobSpec) -> dict[str, Any]:
    """Return the host configuration of a sealed container: a read-only root, scratch space in memory, no capabilities.

    Scratch counts as the container's memory and is at most half of it: writes to a full scratch fail with ENOSPC instead of
    triggering the OOM killer.
    """
    host_memory_bytes = spec.host_memory_bytes or SEALED_HOST_MEMORY_BYTES
    scratch_bytes = min(_MOST_SCRATCH_BYTES, host_memory_bytes // 2)
    return {
        "NetworkMode": spec.network or "none",
        "ReadonlyRootfs": True,
        "Tmpfs": {"/tmp": f"rw,nosuid,nodev,size={scratch_bytes}"},  # noqa: S108 - the container's own
        "Memory": host_memory_bytes,
        # Memory and swap together: the same value permits no swap.
        "MemorySwap": host_memory_bytes,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "PidsLimit": _MOST_PROCESSES,
        "IpcMode": "private",
    }


_CDI_KIND = "nvidia.com/gpu"
_SPEC_SUFFIXES = (".json", ".yaml", ".yml")


def gpu_request(engine_information: Mapping[str, Any], gpu_uuids: Sequence[str]) -> dict[str, Any]:
    """Return the element of HostConfig.DeviceRequests for these GPUs.

    Args:
        engine_information: The engine's response to `GET /info`.
        gpu_uuids: The lease's GPUs, in the job's order.

    Source: Docker Engine API 1.41 (DeviceRequest) and the Container Device Interface.
    """
    names = [f"{_CDI_KIND}={uuid}" for uuid in gpu_uuids]
    if all(_has_device(engine_information, name) for name in names):
        return {"Driver": "cdi", "DeviceIDs": names}
    return {"Driver": "", "DeviceIDs": list(gpu_uuids), "Capabilities": [["gpu", "compute", "utility"]]}


def _has_device(engine_information: Mapping[str, Any], name: str) -> bool:
    discovered = engine_information.get("DiscoveredDevices")
    if discovered is not None:
        return any(device.get("ID") == name for device in discovered)
    # Engines before 28.3 report only the directories of their CDI specifications. These are JSON or YAML: both are split into
    # words, since the core has no YAML parser and a UUID is unique.
    uuid = name.partition("=")[2]
    for folder in engine_information.get("CDISpecDirs") or ():
        try:
            texts = [path.read_text("utf-8") for path in Path(folder).iterdir() if path.suffix in _SPEC_SUFFIXES]
        except OSError:
            continue
        for text in texts:
            words = text.replace('"', " ").replace(",", " ").split()
            if _CDI_KIND in words and uuid in words:
                return True
    return False
