"""Layers of packages and of byte code: each is made once for its address, by a job of the owner. Pure.

pip runs in a container of the function's image, with a network and no directory of the machine but its own. The lock file
determines the versions. Byte code of an image is made without a network and without the function's own code.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pgpu.distribution import installed_version
from pgpu.functions.deploy.image_scripts import BUILD, BYTECODE, COMPILE
from pgpu.functions.deploy.version_jobs import OWN, ReplicaPaths, own_mounts, package_mounts, search_path
from pgpu.model import Deployment, JobSpec, Mount, Version

TARGET = "/packages"
LOCK_NAME = "requirements.txt"
_OUTPUTS = {(TARGET, "rw"), (BYTECODE, "rw")}
_PIP_OPTIONS = ("--no-input", "--disable-pip-version-check", "--no-cache-dir", "--no-warn-script-location")


def layer_digest(version: Version | Deployment) -> str | None:
    """Return the address of a version's packages; None without requirements.

    An image counts by its name: after a tag moves to another Python, the lock file must change, too.
    """
    if version.requirements is None:
        return None
    python = list(sys.version_info[:2]) if version.runtime == "process" else None
    return _digest([version.runtime, version.image, python, version.requirements])


def bytecode_digest(version: Version | Deployment) -> str | None:
    """Return the address of the byte code that an image's Python makes of its library and of pgpu; None for a process."""
    if version.runtime == "process":
        return None
    return _digest(["bytecode", installed_version(), version.image, layer_digest(version)])


def _digest(words: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


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
        network="default",
        provisions=(Mount(str(directory), TARGET, "rw"), *own_mounts(own)),
        serves=version.function,
    )


def output_directory_of(spec: JobSpec) -> str | None:
    """Return the directory into which a job installs packages or writes byte code; None for any other job."""
    if spec.runtime == "process":
        is_build = spec.serves is not None and spec.command[1:4] == ("-P", "-m", "pip")
        return spec.working_directory if is_build else None
    return next((mount.source for mount in spec.provisions if (mount.target, mount.options) in _OUTPUTS), None)
