"""Puts a real GPU's devices, libraries and hooks into a container's `config.json`, as its CDI description says."""

import os
import stat
from typing import Any

from pgpu.app.oci.refusing import RefusedError

_MOUNT_OPTIONS = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
_TYPES = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}


def add_devices(configuration: dict[str, Any], edits: dict[str, list[Any]]) -> None:
    """Change a configuration in place.

    Args:
        configuration: The content of `config.json`.
        edits: As `cdi.gpu_edits` returns them.

    Raises:
        RefusedError: A device is not there.
    """
    process = configuration["process"]
    process["env"] += edits["env"]
    if edits["additionalGids"]:
        process.setdefault("user", {}).setdefault("additionalGids", []).extend(edits["additionalGids"])
    configuration.setdefault("mounts", []).extend(_mount(mount) for mount in edits["mounts"])
    for hook in edits["hooks"]:
        words = {name: hook[name] for name in ("path", "args", "env", "timeout") if hook.get(name)}
        configuration.setdefault("hooks", {}).setdefault(hook["hookName"], []).append(words)
    linux = configuration.setdefault("linux", {})
    allowed = linux.setdefault("resources", {}).setdefault("devices", [])
    for node in edits["deviceNodes"]:
        device = _device(node)
        linux.setdefault("devices", []).append(device)
        numbers = {"type": device["type"], "major": device["major"], "minor": device["minor"]}
        allowed.append({"allow": True, **numbers, "access": node.get("permissions") or "rwm"})


def _mount(mount: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": mount.get("type") or "bind",
        "source": mount["hostPath"],
        "destination": mount["containerPath"],
        "options": mount.get("options") or _MOUNT_OPTIONS,
    }


def _device(node: dict[str, Any]) -> dict[str, Any]:
    """Numbers that the description leaves out are the host's own."""
    path = node.get("hostPath") or node["path"]
    try:
        found = os.stat(path)
    except OSError as exc:
        raise RefusedError(f"the GPU's device {path} is not there: {exc.strerror}", hint="pgpu doctor") from exc
    kind = node.get("type") or _TYPES.get(stat.S_IFMT(found.st_mode))
    if kind is None:
        raise RefusedError(f"{path} is no device", hint="nvidia-ctk cdi generate describes this machine anew")
    device = {
        "path": node["path"],
        "type": kind,
        "major": node.get("major") or os.major(found.st_rdev),
        "minor": node["minor"] if node.get("minor") is not None else os.minor(found.st_rdev),
        "fileMode": node.get("fileMode") or stat.S_IMODE(found.st_mode),
    }
    return {**device, **{name: node[name] for name in ("uid", "gid") if node.get(name) is not None}}
