"""Describes the container engine in one line, for `pgpu doctor`."""

from collections.abc import Mapping
from typing import Any

from pgpu.runtimes.docker.engine import Engine, engine_url


def describe_engine() -> str:
    """Return the engine's kind, version, address and its method to provide NVIDIA GPUs.

    Raises:
        RuntimeUnavailableError: No engine responds.
    """
    with Engine(engine_url()) as engine:
        return f"{_kind(engine.version())} at {engine.url}; {_gpu_support(engine.information())}"


def _kind(version: Mapping[str, Any]) -> str:
    names = [component.get("Name", "") for component in version.get("Components") or ()]
    name = "Podman" if any("Podman" in each for each in names) else "Docker"
    return f"{name} {version.get('Version', 'of unknown version')}"


def _gpu_support(information: Mapping[str, Any]) -> str:
    devices = [device.get("ID", "") for device in information.get("DiscoveredDevices") or ()]
    if any(device.startswith("nvidia.com/gpu") for device in devices):
        return "real GPUs by CDI"
    if "nvidia" in (information.get("Runtimes") or {}):
        return "real GPUs by the NVIDIA Container Toolkit"
    return "no NVIDIA Container Toolkit, so only simulated GPUs"
