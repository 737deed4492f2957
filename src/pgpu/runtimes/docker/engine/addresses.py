"""Locates the container engine's socket on this machine.

The order is Docker's: DOCKER_HOST, CONTAINER_HOST (Podman's), the current `docker context`, then the usual sockets.
Engines on other machines are rejected, since a lease's files are bind-mounted from this machine.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from pgpu.errors import EngineAwayError, RuntimeUnavailableError

_DEFAULT_SOCKETS = ("/var/run/docker.sock", "/run/podman/podman.sock")
_USER_SOCKETS = ("docker.sock", "podman/podman.sock")
"""Below XDG_RUNTIME_DIR: rootless Docker and rootless Podman."""


def engine_url(environment: Mapping[str, str] = os.environ) -> str:
    """Return the address of the engine, such as `unix:///var/run/docker.sock`.

    Raises:
        EngineAwayError: No engine is configured and no socket exists.
        RuntimeUnavailableError: It is not on this machine.
    """
    url = _named_url(environment) or _first_socket_url(environment)
    if url is None:
        raise EngineAwayError(
            "no container engine was found",
            hint="install and start Docker or Podman, or set DOCKER_HOST to the engine's socket",
        )
    if not url.startswith("unix://"):
        raise RuntimeUnavailableError(
            f"the container engine {url} is not a socket of this machine",
            hint="set DOCKER_HOST to the socket of an engine on the machine that has the GPUs",
        )
    return url


def _named_url(environment: Mapping[str, str]) -> str | None:
    return environment.get("DOCKER_HOST") or environment.get("CONTAINER_HOST") or _context_url(environment)


def _context_url(environment: Mapping[str, str]) -> str | None:
    folder = Path(environment.get("DOCKER_CONFIG") or Path(environment.get("HOME", "/root")) / ".docker")
    name = environment.get("DOCKER_CONTEXT") or _read_json(folder / "config.json").get("currentContext")
    if not name or name == "default":
        return None
    digest = hashlib.sha256(str(name).encode()).hexdigest()
    endpoints = _read_json(folder / "contexts/meta" / digest / "meta.json").get("Endpoints", {})
    url = endpoints.get("docker", {}).get("Host")
    if not url:
        raise RuntimeUnavailableError(f"the docker context {name!r} names no engine", hint="see `docker context ls`")
    return str(url)


def _read_json(path: Path) -> dict[str, dict[str, dict[str, str]]]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _first_socket_url(environment: Mapping[str, str]) -> str | None:
    user_directory = environment.get("XDG_RUNTIME_DIR")
    own = [f"{user_directory}/{name}" for name in _USER_SOCKETS] if user_directory else []
    return next((f"unix://{path}" for path in (*_DEFAULT_SOCKETS, *own) if Path(path).is_socket()), None)
