"""Selects how an engine adds real GPUs to a container: CDI devices, or the NVIDIA toolkit's device request.

Never both: the toolkit would add every GPU that the CDI request left out.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
    # Engines before 28.3 report only the directories of their CDI specifications.
    folders = engine_information.get("CDISpecDirs") or ()
    return any(_names_device(text, name.partition("=")[2]) for folder in folders for text in _specifications(folder))


def _specifications(folder: str) -> list[str]:
    try:
        paths = [path for path in Path(folder).iterdir() if path.suffix in _SPEC_SUFFIXES]
        return [path.read_text(encoding="utf-8") for path in paths]
    except OSError:
        return []


def _names_device(text: str, uuid: str) -> bool:
    words = text.replace('"', " ").replace(",", " ").split()
    return _CDI_KIND in words and uuid in words
