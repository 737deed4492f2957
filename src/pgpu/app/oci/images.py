"""Asks a Docker engine for a container's image, over its socket, without a library.

The engine holds the container's lock while it waits for its runtime, so only calls that need none are made: the list of
containers, which is read from a copy, and the image. Refuses every address but a Unix socket's.
"""

import json
import socket
from typing import Any

from pgpu.app.oci.refusing import RefusedError

_PATIENCE_SECONDS = 2.0
_API = "/v1.40"
"""Docker 19.03 and newer."""


class ContainerImage:
    """What the engine says of a container and its image."""

    def __init__(self, name: str, image_id: str, container_name: str, environment: list[str]) -> None:
        self.name = name
        self.id = image_id
        self.container_name = container_name
        self.environment = environment


def find_image(engine: str, container_id: str) -> ContainerImage:
    """Return the image of a container that is being created.

    Raises:
        RefusedError: The engine does not answer, or knows no such container.
    """
    filters = "%7B%22id%22%3A%5B%22" + container_id + "%22%5D%7D"
    found = _get(engine, f"/containers/json?all=1&filters={filters}")
    if not found:
        raise RefusedError(f"the engine at {engine} knows no container {container_id[:12]}", hint=_HINT)
    image = _get(engine, f"/images/{found[0]['ImageID']}/json")
    names = found[0].get("Names") or [""]
    environment = (image.get("Config") or {}).get("Env") or []
    return ContainerImage(
        str(found[0]["Image"]), str(found[0]["ImageID"]), str(names[0]).lstrip("/"), list(environment)
    )


_HINT = (
    "an image's own PGPU_MEMORY asks for nothing, and only the engine can tell it from `docker run -e`: name the "
    "engine with `pgpu install-runtime --engine`, or ask with `--annotation pgpu.memory=4GiB`"
)


def _get(engine: str, path: str) -> Any:
    try:
        return json.loads(_answer(engine, path))
    except (OSError, ValueError) as exc:
        raise RefusedError(f"the engine at {engine} cannot be asked for the image: {exc}", hint=_HINT) from exc


def _answer(engine: str, path: str) -> bytes:
    """HTTP/1.0, so that the answer comes whole and ends with the connection."""
    scheme, _, address = engine.partition("://")
    if scheme != "unix":
        raise ValueError("it is no Unix socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE_SECONDS)
        connection.connect(address)
        connection.sendall(f"GET {_API}{path} HTTP/1.0\r\nHost: pgpu\r\n\r\n".encode())
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    if head.split(b" ", 2)[1:2] != [b"200"]:
        raise ValueError(
            f"it answered {head.splitlines()[0].decode('ascii', 'replace')}" if head else "it said nothing"
        )
    return body
