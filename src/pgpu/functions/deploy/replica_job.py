"""The job that serves one version: a front with its worker, as a process or in a sealed container. Pure.

In a container the source is read at one place, the packages at another, and pgpu's own code at a third; only the directory of
its sockets can be written. It has no network unless the function asks for one: calls come over a socket. It refuses to look
at the machine: `ReplicaPaths` says where things are.
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
"""Where a container finds them."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class ReplicaPaths:
    """Where on this machine things are that a replica needs."""

    source: Path
    """The unpacked bundle."""

    sockets: Path
    """Where its front listens; its owner's."""

    packages: Path | None = None
    """What its requirements are installed in; None where it has none."""

    own: tuple[Path, ...] = ()
    """Files and directories of pgpu and of what it needs, each importable by its name; only for containers."""

    user: str | None = None
    """`UID:GID` of a container; None where the runtime says it."""

    bytecode: Path | None = None
    """What the image's Python made of its own library and of pgpu before; None where it did not yet. Only for containers."""


def replica_spec(version: Version | Deployment, places: ReplicaPaths) -> JobSpec:
    """Return the job that serves a version."""
    declaration = declaration_of(version)
    if version.runtime == "docker":
        return _container(version, declaration, places)
    return JobSpec(
        command=(
            *(sys.executable, "-P", "-m", "pgpu.functions.replica"),
            *_front(version, declaration, places.source, places.sockets),
        ),
        runtime="process",
        environment=_environment({"PATH": _PATH, "HOME": str(places.sockets)}, str(places.packages or "")),
        working_directory=str(places.source),
        serves=version.function,
        parks=declaration.gpus == 1,
    )


def replica_request(declaration: Declaration) -> Request:
    """Return what a replica needs; memory that is not said is estimated, as a job's is."""
    if declaration.gpus == 0:
        return Request(0, 0)
    return Request(
        declaration.memory_bytes or 0,
        declaration.gpus,
        declaration.compute_share,
        is_estimated=declaration.memory_bytes is None,
    )


def declaration_of(version: Version | Deployment) -> Declaration:
    """Read what a version asks for.

    Raises:
        RequestError: It says what is not known.
    """
    return parse_declaration(json.loads(version.declaration))


def _container(version: Version | Deployment, declaration: Declaration, places: ReplicaPaths) -> JobSpec:
    provisions = [
        Mount(str(places.source), SOURCE, "ro"),
        Mount(str(places.sockets), SOCKETS, "rw"),
        *package_mounts(places),
    ]
    if places.bytecode is not None:
        provisions.append(Mount(str(places.bytecode), BYTECODE, "ro"))
    return JobSpec(
        command=(
            *("python3", "-P", "-c", START, ".".join(map(str, sys.version_info[:2]))),
            *_front(version, declaration, Path(SOURCE), Path(SOCKETS)),
        ),
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
    """Return the mounts of what every container of a version reads beside its source."""
    packages = () if places.packages is None else (Mount(str(places.packages), PACKAGES, "ro"),)
    return [*own_mounts(places.own), *packages]


def search_path(places: ReplicaPaths) -> str:
    """Return where its Python looks; the user's packages come before pgpu's own, so that both see one version of what both need."""
    packages = () if places.packages is None else (PACKAGES, f"{PACKAGES}/{NEEDS_FOLDER}")
    return ":".join((*packages, OWN))


def own_mounts(own: Sequence[Path]) -> list[Mount]:
    """Return the mounts of pgpu's own code and of what it needs, as they are on the server."""
    return [Mount(str(path), f"{OWN}/{path.name}", "ro") for path in own]


def _front(version: Version | Deployment, declaration: Declaration, source: Path, sockets: Path) -> tuple[str, ...]:
    words = ("--app", version.app, "--source", str(source), "--directory", str(sockets), "--name", version.function)
    return (*words, "--declaration", json.dumps(dump_declaration(declaration)))


def _environment(base: Mapping[str, str], path: str) -> tuple[tuple[str, str], ...]:
    words = {**base, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", **({"PYTHONPATH": path} if path else {})}
    return tuple(words.items())
