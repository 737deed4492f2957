"""The job that serves one version: a replica with its worker, as a process or in a sealed container. Pure.

In a container the source, the packages and pgpu's own code are read-only mounts, and only the directory of its sockets is
writable. It has no network unless the declaration names one: calls arrive over a Unix socket.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgpu.functions.api import Declaration, dump_declaration, parse_declaration
from pgpu.functions.deploy.image_scripts import BYTECODE, NEEDS_FOLDER, START
from pgpu.model import Deployment, JobSpec, Mount, Request, Version

SOURCE = "/function"
PACKAGES = "/.pgpu-packages"
OWN = "/.pgpu-runtime"
SOCKETS = "/.pgpu-sockets"
"""Mount points in a container."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class ReplicaPaths:
    """Paths on this machine that a replica needs."""

    source: Path
    """The unpacked bundle."""

    sockets: Path
    """Directory in which it listens; belongs to the function's owner."""

    packages: Path | None = None
    """The installed requirements; None without requirements."""

    own: tuple[Path, ...] = ()
    """Directories of pgpu and of its libraries, each importable by its name; only for containers."""

    user: str | None = None
    """`UID:GID` of a container; None: the runtime decides."""

    bytecode: Path | None = None
    """Byte code that the image's Python made of its library and of pgpu; None if it is not made yet. Only for containers."""


def replica_spec(version: Version | Deployment, places: ReplicaPaths) -> JobSpec:
    """Return the job that serves a version."""
    declaration = declaration_of(version)
    if version.runtime == "docker":
        return _container_spec(version, declaration, places)
    arguments = _replica_arguments(version, declaration, places.source, places.sockets)
    return JobSpec(
        command=(sys.executable, "-P", "-m", "pgpu.functions.replica", *arguments),
        runtime="process",
        environment=_environment({"PATH": _PATH, "HOME": str(places.sockets)}, str(places.packages or "")),
        working_directory=str(places.source),
        serves=version.function,
        parks=declaration.gpus == 1,
    )


def replica_request(declaration: Declaration) -> Request:
    """Return the resources of a replica; memory that is not declared is estimated, as for any job."""
    if declaration.gpus == 0:
        return Request(0, 0)
    return Request(
        declaration.memory_bytes or 0,
        declaration.gpus,
        declaration.compute_share,
        is_estimated=declaration.memory_bytes is None,
    )


def declaration_of(version: Version | Deployment) -> Declaration:
    """Parse a version's declaration.

    Raises:
        RequestError: It has an unknown field or an invalid value.
    """
    return parse_declaration(json.loads(version.declaration))


def _container_spec(version: Version | Deployment, declaration: Declaration, places: ReplicaPaths) -> JobSpec:
    provisions = [
        Mount(str(places.source), SOURCE, "ro"),
        Mount(str(places.sockets), SOCKETS, "rw"),
        *package_mounts(places),
    ]
    if places.bytecode is not None:
        provisions.append(Mount(str(places.bytecode), BYTECODE, "ro"))
    server_python = ".".join(map(str, sys.version_info[:2]))
    arguments = _replica_arguments(version, declaration, Path(SOURCE), Path(SOCKETS))
    return JobSpec(
        command=("python3", "-P", "-c", START, server_python, *arguments),
        runtime="docker",
        image=version.image,
        environment=_environment({"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}, search_path(places)),  # noqa: S108
        working_directory="/",
        user=places.user,
        is_sealed=True,
        network=declaration.network,
        host_memory_bytes=declaration.host_memory_bytes,
        provisions=tuple(provisions),
        serves=version.function,
        parks=declaration.gpus == 1,
    )


def package_mounts(places: ReplicaPaths) -> list[Mount]:
    """Return the mounts of pgpu and of the packages, which every container of a version has."""
    packages = () if places.packages is None else (Mount(str(places.packages), PACKAGES, "ro"),)
    return [*own_mounts(places.own), *packages]


def search_path(places: ReplicaPaths) -> str:
    """Return `PYTHONPATH`; the user's packages precede pgpu's own, so that both import one version of a shared library."""
    packages = () if places.packages is None else (PACKAGES, f"{PACKAGES}/{NEEDS_FOLDER}")
    return ":".join((*packages, OWN))


def own_mounts(own: Sequence[Path]) -> list[Mount]:
    """Return the mounts of pgpu's own code and libraries, as they are on the server."""
    return [Mount(str(path), f"{OWN}/{path.name}", "ro") for path in own]


def _replica_arguments(
    version: Version | Deployment, declaration: Declaration, source: Path, sockets: Path
) -> tuple[str, ...]:
    words = ("--app", version.app, "--source", str(source), "--directory", str(sockets), "--name", version.function)
    return (*words, "--declaration", json.dumps(dump_declaration(declaration)))


def _environment(base: Mapping[str, str], path: str) -> tuple[tuple[str, str], ...]:
    words = {**base, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", **({"PYTHONPATH": path} if path else {})}
    return tuple(words.items())
