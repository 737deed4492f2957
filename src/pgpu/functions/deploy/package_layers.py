"""Packages that a function needs: installed once for each lock file, by the image that runs them, as the owner. Pure.

pip runs as a job, in a container that has a network and nothing of the machine but the directory it installs into. It refuses
to install twice what has one address, and to choose versions: the lock file does.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pgpu.distribution import installed_version
from pgpu.functions.deploy.image_scripts import BUILD, BYTECODE, COMPILE
from pgpu.functions.deploy.replica_job import OWN, ReplicaPaths, own_mounts, package_mounts, search_path
from pgpu.model import Deployment, JobSpec, Mount, Version

TARGET = "/packages"
LOCK_NAME = "requirements.txt"
_FILLED = {(TARGET, "rw"), (BYTECODE, "rw")}


def layer_digest(version: Version | Deployment) -> str | None:
    """Return the address of a version's packages; None where it needs none.

    An image is told by its name: who moves a tag to another Python changes the lock file, too.
    """
    if version.requirements is None:
        return None
    python = list(sys.version_info[:2]) if version.runtime == "process" else None
    words = [version.runtime, version.image, python, version.requirements]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def bytecode_digest(version: Version | Deployment) -> str | None:
    """Return the address of what an image's Python makes of its library and of pgpu; None of a process, which needs none."""
    if version.runtime == "process":
        return None
    words = ["bytecode", installed_version(), version.image, layer_digest(version)]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def bytecode_spec(version: Version, directory: Path, places: ReplicaPaths) -> JobSpec:
    """Return the job that makes it: a container without a network, in which nothing of the function's own runs.

    Args:
        version: Of a container.
        directory: Of the owner alone; byte code comes into it.
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
        directory: Of the owner alone, with the lock file in it; packages come into its folder `packages`.
        own: As of `ReplicaPaths`; where the image's Python cannot load them, they are installed, too.
        user: As of `ReplicaPaths`.
    """
    root = directory if version.runtime == "process" else Path(TARGET)
    target, lock = str(root / "packages"), str(root / LOCK_NAME)
    options = ("--no-input", "--disable-pip-version-check", "--no-cache-dir", "--no-warn-script-location")
    if version.runtime == "process":
        home = (("HOME", str(directory)), ("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8"))
        return JobSpec(
            (sys.executable, "-P", "-m", "pip", "install", *options, "--target", target, "--requirement", lock),
            "process",
            environment=home,
            working_directory=str(directory),
            serves=version.function,
        )
    return JobSpec(
        command=("python3", "-P", "-c", BUILD, target, lock, *options),
        runtime="docker",
        image=version.image,
        environment=(("HOME", "/tmp"), ("LANG", "C.UTF-8"), ("PYTHONPATH", OWN)),  # noqa: S108 - the container's own
        working_directory="/",
        user=user,
        is_sealed=True,
        network="default",
        provisions=(Mount(str(directory), TARGET, "rw"), *own_mounts(own)),
        serves=version.function,
    )


def output_directory_of(spec: JobSpec) -> str | None:
    """Return the directory into which a job installs packages or writes byte code; None of any other job."""
    if spec.runtime == "process":
        is_one = spec.serves is not None and spec.command[1:4] == ("-P", "-m", "pip")
        return spec.working_directory if is_one else None
    return next((mount.source for mount in spec.provisions if (mount.target, mount.options) in _FILLED), None)
