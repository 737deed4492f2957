"""Which places must be there already in the volumes of a user other than root. Pure.

An engine makes what is missing for a mount, and makes it as root, in the directory of whoever has given the volume. It cannot
in theirs (native/launcher/idmapped_mount.h), so that a missing place is said before a job is accepted. Only what the names say is
found here: links of an image lead elsewhere, and there the engine fails.
"""

import posixpath
from collections.abc import Iterable, Iterator, Sequence

from pgpu.model import Mount

_OF_THE_ENGINE = {
    "/etc": ("hosts", "hostname", "resolv.conf"),
    "/dev": ("mqueue", "pts", "shm"),
    "/sys": ("fs/cgroup",),
}
"""What an engine mounts into every container, beside /dev, /proc and /sys. Source: the OCI runtime specification, Docker."""


def plain(path: str) -> str:
    """Write a path as the engine will: two slashes at its beginning are one, though POSIX leaves them apart."""
    normal = posixpath.normpath(path)
    return f"/{normal.lstrip('/')}" if normal.startswith("/") else normal


def needed_places(volumes: Sequence[Mount], others: Iterable[str]) -> list[tuple[int, str]]:
    """Return what volumes must hold, as (number of the volume, path in it).

    Args:
        volumes: All of a container.
        others: Where else something is mounted into it, beside what an engine mounts by itself.
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
