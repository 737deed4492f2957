"""Mount points that must exist already in the volumes of a user other than root. Pure.

An engine creates missing mount points as root. In users' volumes it cannot (native/launcher/idmapped_mount.h), so a missing
one is reported before a job is accepted. Only names are compared: symbolic links of an image are not resolved, and there the
engine fails.
"""

import posixpath
from collections.abc import Iterable, Iterator, Sequence

from pgpu.model import Mount

_OF_THE_ENGINE = {
    "/etc": ("hosts", "hostname", "resolv.conf"),
    "/dev": ("mqueue", "pts", "shm"),
    "/sys": ("fs/cgroup",),
}
"""Mounts of an engine in every container, beside /dev, /proc and /sys. Source: the OCI runtime specification, Docker."""


def plain(path: str) -> str:
    """Normalise a path as the engine does: two leading slashes become one, although POSIX keeps them."""
    normal = posixpath.normpath(path)
    return f"/{normal.lstrip('/')}" if normal.startswith("/") else normal


def needed_places(volumes: Sequence[Mount], others: Iterable[str]) -> list[tuple[int, str]]:
    """Return the mount points that volumes must have, as (number of the volume, path in it).

    Args:
        volumes: All of a container.
        others: Targets of other mounts in it, beside the engine's own.
    """
    own = [plain(volume.target) for volume in volumes]
    engines = [f"{directory}/{name}" for directory, names in _OF_THE_ENGINE.items() for name in names]
    return list(dict.fromkeys(_needs(own, [*own, *map(plain, others), *engines])))


def _needs(own: Sequence[str], targets: Iterable[str]) -> Iterator[tuple[int, str]]:
    for target in targets:
        above = [path for path in own if target.startswith(f"{path.rstrip('/')}/")]
        if above:
            nearest = max(above, key=len)
            yield own.index(nearest), target.removeprefix(nearest).lstrip("/")
