"""Says which engine answers and how it would give a real GPU to a container, for people who set a machine up."""

from collections.abc import Mapping
from typing import Any

import docker

from pgpu.runtimes.docker.addresses import engine_url
from pgpu.runtimes.docker.translation import translated

_PATIENCE_SECONDS = 10


def describe_engine() -> str:
    """Return one line on the engine of this machine.

    Raises:
        RuntimeUnavailableError: None answers.
    """
    url = engine_url()
    with (
        translated("cannot reach the container engine"),
        docker.APIClient(base_url=url, version="auto", timeout=_PATIENCE_SECONDS) as api,
    ):
        version, information = api.version(), api.info()
    name = (version.get("Components") or [{"Name": "engine"}])[0]["Name"]
    return f"{name} {version['Version']} at {url}; real GPUs through {_way_of_gpus(information)}"


def _way_of_gpus(information: Mapping[str, Any]) -> str:
    devices = information.get("DiscoveredDevices") or ()
    if any(str(device.get("ID")).startswith("nvidia.com/gpu") for device in devices):
        return "CDI"
    if "nvidia" in (information.get("Runtimes") or {}):
        return "the NVIDIA Container Toolkit's runtime"
    return "nothing yet: install the NVIDIA Container Toolkit to use one"
