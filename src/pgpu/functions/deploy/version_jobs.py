"""The jobs of one version: the replica that serves it, those that install its packages and fill its cache, the byte code of its image.

A replica runs as a process or in a sealed container. In a container the source, the packages and pgpu's own code are read-only
mounts, and only the directory of its sockets is writable. It has no network unless the declaration names one: calls arrive over
a Unix socket.

Pure, except that the address of a cache reads the files that its command names.

A cache is filled by a command of the function's author, in a container of the function's image with a network and secrets that
replicas do not get. It is not repeated while its address stays the same, and replicas read its result.

Packages and byte code are layers: each is made once for its address, by a job of the function's owner. pip runs in a container
of the function's image, with a network and no directory of the machine but its own; the lock file determines the versions. Byte
code is made without a network and without the function's own code.

The scripts (`START`, `COMPILE`, `BUILD`) run in the Python of the image, before any library is known to load there, so they use
the standard library alone. pgpu's libraries are mounted from the server, and their C extensions load only in a Python of the same
minor version. For another Python `BUILD` installs them into the layer of packages; without that layer `START` ends with an error
message.
"""

import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pgpu.distribution import installed_version
from pgpu.functions.api import Declaration, dump_served, parse_declaration
from pgpu.model import Deployment, JobSpec, Mount, Objective, Request, Version
from pgpu.structs import Struct

NEEDS = ("msgspec", "httptools")
"""Libraries with C extensions."""

OWN_REQUIREMENTS = ("msgspec>=0.20", "uvicorn>=0.35,<0.56", "httptools>=0.6", "prometheus-client>=0.20")
"""As in the extra `functions`."""

BYTECODE = "/.pgpu-bytecode"
"""Mount point of the byte code that the image's Python made of its standard library and of pgpu."""

_CAN_LOAD = """
import importlib, os, sys
def load():
    try:
        return [importlib.import_module(name) for name in {needs!r}] and None
    except ImportError as error:
        return error
"""

START = (
    _CAN_LOAD.format(needs=NEEDS)
    + f"""
if os.path.isdir({BYTECODE!r}):
    usual, sys.pycache_prefix = sys.pycache_prefix, {BYTECODE!r}
    os.register_at_fork(after_in_child=lambda: setattr(sys, "pycache_prefix", usual))
"""
    + """
error = load()
if error is not None:
    mine, theirs = ".".join(map(str, sys.version_info[:2])), sys.argv.pop(1)
    sys.exit(f"pgpu: {error}: this image has Python {mine}, the server has {theirs}; name an image with that,"
             " or deploy with --requirements, so that what pgpu needs is installed, too")
del sys.argv[1]
import runpy
runpy.run_module("pgpu.functions.replica", run_name="__main__", alter_sys=True)
"""
)
"""`python3 -P -c START 3.11 [options of pgpu.functions.replica]`. The prefix for byte code is reset in forked children, before the
function's own modules are loaded: pip compiled those beside their files."""

COMPILE = f"""
import sys
sys.pycache_prefix = {BYTECODE!r}
import importlib, pkgutil
import pgpu.functions.http, pgpu.functions.replica.replica_server, pgpu.functions.requests, pgpu.functions.worker
for package in (pgpu.functions.http, pgpu.functions.replica, pgpu.functions.requests, pgpu.functions.worker):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
"""
"""`python3 -P -c COMPILE`: imports the modules of replica and worker, which writes their byte code."""

NEEDS_FOLDER = ".pgpu"
"""Folder of pgpu's own libraries in a function's packages, if they had to be installed; searched after those packages."""

BUILD = (
    _CAN_LOAD.format(needs=NEEDS)
    + f"""
import subprocess
target, lock, *words = sys.argv[1:]
can_load = load() is None
os.environ.pop("PYTHONPATH", None)
def install(target, *what):
    return subprocess.call([sys.executable, "-m", "pip", "install", *words, "--target", target, *what])
failed = install(target, "--requirement", lock)
if not failed and not can_load:
    failed = install(os.path.join(target, {NEEDS_FOLDER!r}), *{list(OWN_REQUIREMENTS)!r})
sys.exit(failed)
"""
)
"""`python3 -c BUILD TARGET LOCK [options of pip install]`."""

SOURCE = "/function"
PACKAGES = "/.pgpu-packages"
OWN = "/.pgpu-runtime"
SOCKETS = "/.pgpu-sockets"
SECRETS = "/run/secrets"
"""Mount points in a container."""

SECRETS_VARIABLE = "PGPU_SECRETS"
"""Names the directory of a replica's secrets; a process has no `/run/secrets` of its own."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ReplicaPaths(Struct, frozen=True):
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

    secrets: Path | None = None
    """Copies of its secrets on a tmpfs; None: it has none."""

    cache: Path | None = None
    """The generation of its cache; None: it has none."""


def replica_spec(version: Version | Deployment, places: ReplicaPaths) -> JobSpec:
    """Return the job that serves a version."""
    declaration = declaration_of(version)
    if version.runtime == "docker":
        return _container_spec(version, declaration, places)
    arguments = _replica_arguments(version, declaration, places.source, places.sockets)
    return JobSpec(
        command=(sys.executable, "-P", "-m", "pgpu.functions.replica", *arguments),
        runtime="process",
        environment=_environment(
            {
                "PATH": _PATH,
                "HOME": str(places.sockets),
                **declaration.environment,
                **({} if places.secrets is None else {SECRETS_VARIABLE: str(places.secrets)}),
            },
            str(places.packages or ""),
        ),
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
        objective=Objective.SOONEST,
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
    if places.cache is not None and declaration.cache is not None:
        provisions.append(Mount(str(places.cache), declaration.cache.target, "ro"))
    if places.secrets is not None:
        provisions.append(Mount(str(places.secrets), SECRETS, "ro"))
    if places.bytecode is not None:
        provisions.append(Mount(str(places.bytecode), BYTECODE, "ro"))
    # Only to name it in START's error message, if the image's Python is another one.
    server_python = ".".join(map(str, sys.version_info[:2]))
    arguments = _replica_arguments(version, declaration, Path(SOURCE), Path(SOCKETS))
    return JobSpec(
        command=("python3", "-P", "-c", START, server_python, *arguments),
        runtime="docker",
        image=version.image,
        # The mounts are read-only, so Python need not try to write byte code beside the modules.
        environment=_environment(
            {
                "HOME": "/tmp",  # noqa: S108
                "PYTHONDONTWRITEBYTECODE": "1",
                **declaration.environment,
                **({} if places.secrets is None else {SECRETS_VARIABLE: SECRETS}),
            },
            search_path(places),
        ),
        working_directory="/",
        user=places.user,
        is_sealed=True,
        network=declaration.network,
        host_memory_bytes=declaration.host_memory_bytes,
        provisions=tuple(provisions),
        volumes=tuple(
            Mount(each.source, each.target, "rw" if each.is_writable else "ro") for each in declaration.mounts
        ),
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
    paths = ("--app", version.app, "--source", str(source), "--directory", str(sockets), "--name", version.function)
    exported = (("--secret-variable", str(each)) for each in declaration.secrets if each.variable is not None)
    return (*paths, "--declaration", json.dumps(dump_served(declaration)), *itertools.chain(*exported))


def _environment(base: Mapping[str, str], path: str) -> tuple[tuple[str, str], ...]:
    variables = {"LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", **base, **({"PYTHONPATH": path} if path else {})}
    return tuple(variables.items())


TARGET = "/packages"
LOCK_NAME = "requirements.txt"
_PIP_OPTIONS = ("--no-input", "--disable-pip-version-check", "--no-cache-dir", "--no-warn-script-location")


def layer_digest(version: Version | Deployment) -> str | None:
    """Return the address of a version's packages; None without requirements.

    An image counts by its name: after a tag moves to another Python, the lock file must change, too.
    """
    if version.requirements is None:
        return None
    # A process runs in the Python of the server, a container in that of its image.
    python = list(sys.version_info[:2]) if version.runtime == "process" else None
    return _digest([version.runtime, version.image, python, version.requirements])


def bytecode_digest(version: Version | Deployment) -> str | None:
    """Return the address of the byte code that an image's Python makes of its library and of pgpu; None for a process."""
    if version.runtime == "process":
        return None
    return _digest(["bytecode", installed_version(), version.image, layer_digest(version)])


def _digest(words: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def cache_generation(version: Version | Deployment, source: Path) -> str:
    """Return the generation of a cache that a version's command fills: 12 hexadecimal digits.

    It changes with the command, the files of the source that it names, its variables and secrets' names, the packages and the image.
    """
    declaration = declaration_of(version)
    files = digests_of_named_files(declaration.fill or "", source)
    variables = sorted(declaration.environment.items())
    given = sorted(map(str, declaration.fill_secrets))
    return _digest([declaration.fill, files, variables, given, version.image, layer_digest(version)])[:12]


def digests_of_named_files(command: str, source: Path) -> list[str]:
    """Return the SHA-256 of each file of the source that a command names.

    Each is read once, whatever it is called: a command can name one file of 100 MiB thousands of times.
    """
    digests: dict[int, str] = {}
    for word in re.findall(r"[\w./+-]+", command):
        if not word.startswith("/") and ".." not in word.split("/"):
            # OSError: it is no file, or no name that a file can have.
            with suppress(OSError), (source / word).open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode not in digests:
                    digests[inode] = hashlib.file_digest(file, "sha256").hexdigest()
    return list(digests.values())


FILL = ("/bin/sh", "-c")
"""How the command of a job that fills a cache begins."""


def fill_spec(version: Version | Deployment, directory: Path, places: ReplicaPaths) -> JobSpec:
    """Return the job that fills a version's cache.

    Args:
        version: With a cache and a command that fills it.
        directory: Becomes the cache; belongs to the owner.
        places: As of its replicas, with the secrets of this job.
    """
    declaration = declaration_of(version)
    target = "" if declaration.cache is None else declaration.cache.target
    exported = [
        f'export {each.variable}="$(cat {SECRETS}/{each.name})"'
        for each in declaration.fill_secrets
        if each.variable is not None
    ]
    given = () if places.secrets is None else (Mount(str(places.secrets), SECRETS, "ro"),)
    base = {"HOME": "/tmp", **declaration.environment, **({SECRETS_VARIABLE: SECRETS} if given else {})}  # noqa: S108
    return JobSpec(
        command=(*FILL, "\n".join(["set -e", f"cd {SOURCE}", *exported, "set +e", declaration.fill or ""])),
        runtime="docker",
        image=version.image,
        environment=_environment(base, search_path(places)),
        working_directory="/",
        user=places.user,
        is_sealed=True,
        network="default",
        host_memory_bytes=declaration.host_memory_bytes,
        provisions=(
            Mount(str(directory), target, "rw"),
            Mount(str(places.source), SOURCE, "ro"),
            *package_mounts(places),
            *given,
        ),
        serves=version.function,
    )


def bytecode_spec(version: Version, directory: Path, places: ReplicaPaths) -> JobSpec:
    """Return the job that makes the byte code of a container's image.

    Args:
        version: Of a container.
        directory: Gets the byte code; belongs to the owner.
        places: As of its replicas.
    """
    return JobSpec(
        command=("python3", "-P", "-c", COMPILE),
        runtime="docker",
        image=version.image,
        environment=(("HOME", "/tmp"), ("LANG", "C.UTF-8"), ("PYTHONPATH", search_path(places))),  # noqa: S108 - the container's own
        working_directory="/",
        user=places.user,
        is_sealed=True,
        provisions=(Mount(str(directory), BYTECODE, "rw"), *package_mounts(places)),
        serves=version.function,
    )


def build_spec(
    version: Version | Deployment, directory: Path, own: Sequence[Path] = (), user: str | None = None
) -> JobSpec:
    """Return the job that installs a version's packages.

    Args:
        version: With requirements.
        directory: Holds the lock file and gets the folder `packages`; belongs to the owner.
        own: As in `ReplicaPaths`; where the image's Python cannot load them, they are installed as well.
        user: As in `ReplicaPaths`.
    """
    root = directory if version.runtime == "process" else Path(TARGET)
    target, lock = str(root / "packages"), str(root / LOCK_NAME)
    # Outside of a container pip is the server's own: packages are built for the Python that will run the replica.
    if version.runtime == "process":
        home = (("HOME", str(directory)), ("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8"))
        pip = (sys.executable, "-P", "-m", "pip", "install")
        return JobSpec(
            (*pip, *_PIP_OPTIONS, "--target", target, "--requirement", lock),
            "process",
            environment=home,
            working_directory=str(directory),
            serves=version.function,
        )
    return JobSpec(
        command=("python3", "-P", "-c", BUILD, target, lock, *_PIP_OPTIONS),
        runtime="docker",
        image=version.image,
        environment=(("HOME", "/tmp"), ("LANG", "C.UTF-8"), ("PYTHONPATH", OWN)),  # noqa: S108 - the container's own
        working_directory="/",
        user=user,
        is_sealed=True,
        # Replicas have no network by default; pip needs one.
        network="default",
        provisions=(Mount(str(directory), TARGET, "rw"), *own_mounts(own)),
        serves=version.function,
    )


def output_directory_of(spec: JobSpec) -> str | None:
    """Return the directory that a job fills with packages, byte code or a cache; None for any other job."""
    if spec.runtime == "process":
        is_build = spec.serves is not None and spec.command[1:4] == ("-P", "-m", "pip")
        return spec.working_directory if is_build else None
    # Only writable mounts: replicas mount the same byte code read-only.
    written = (mount.source for mount in spec.provisions if mount.options == "rw" and mount.target != SOCKETS)
    return next(written, None)
