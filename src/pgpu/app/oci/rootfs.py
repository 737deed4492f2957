"""Resolves paths of a container from outside, before the container exists; reads only.

Symbolic links are followed inside the container's root by hand: the kernel would follow them out of it. Bind mounts of
the container are resolved to their host paths.
"""

import os
import posixpath
from typing import Any

_MOST_LINKS = 40
_LARGEST_FILE_BYTES = 64 * 1024
"""Limit of files that are read, a few lines each: an image's file may have any size, and this process is root's."""


def normalize_path(path: str) -> str:
    """Normalize as the kernel does: two leading slashes are one, while `posixpath.normpath` keeps them."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


class Rootfs:
    """The files of a container that is being created."""

    def __init__(self, root: str, mounts: list[dict[str, Any]]) -> None:
        """Sort the mounts, the deepest first; no file is read.

        Args:
            root: Its root on the host.
            mounts: As `config.json` has them.
        """
        self._root = root
        self._mounts = sorted(
            ((normalize_path(mount["destination"]), mount) for mount in mounts), key=lambda each: -len(each[0])
        )

    def resolve(self, path: str) -> str | None:
        """Return where a path ends after all symbolic links; None if nothing is there."""
        links = 0
        rest = [name for name in path.split("/") if name not in {"", "."}]
        at = "/"
        while rest:
            name = rest.pop(0)
            if name == "..":
                at = posixpath.dirname(at)
                continue
            step = posixpath.join(at, name)
            host = self._on_host(step)
            if host is None or not os.path.lexists(host):
                return None
            if not os.path.islink(host):
                at = step
                continue
            links += 1
            if links > _MOST_LINKS:
                return None
            target = os.readlink(host)
            rest = [part for part in target.split("/") if part not in {"", "."}] + rest
            at = "/" if target.startswith("/") else at
        return at

    def read(self, path: str) -> bytes | None:
        """Return the content of a regular file, links followed; None if there is none, or one too large to be meant."""
        found = self.resolve(path)
        host = self._on_host(found) if found else None
        if host is None or not os.path.isfile(host):
            return None
        with open(host, "rb") as file:
            content = file.read(_LARGEST_FILE_BYTES + 1)
        return content if len(content) <= _LARGEST_FILE_BYTES else None

    def _on_host(self, path: str) -> str | None:
        for destination, mount in self._mounts:
            if path == destination or path.startswith(f"{destination.rstrip('/')}/"):
                source = str(mount.get("source") or "")
                if mount.get("type") != "bind" and "bind" not in (mount.get("options") or ()):
                    return None
                return os.path.realpath(source) + path[len(destination.rstrip("/")) :]
        return self._root + path
