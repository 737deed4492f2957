"""The runtime directory: slices, sockets and simulated GPUs, on a tmpfs, closed to other users, per state directory.

Locks must vanish with their process and counters are shared between processes: on overlayfs a lock is lost when its
descriptor is closed, so a disk will not do. Jobs load the shim from there, so a mount with `noexec` will not do either.
A directory that another user owns or can write is refused.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from pgpu.digests import sha256
from pgpu.errors import NodeError
from pgpu.host.ownership import check_state_directory

_OWNER_ONLY = 0o700
_HINT = (
    "mount one without noexec on /dev/shm (docker run --tmpfs /dev/shm:exec), or set runtime_dir to a directory on one"
)
_LINK_NAME = "runtime"


def runtime_directory(chosen: Path | None, state_directory: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of a state directory; create it if it is missing.

    A link in the state directory names the folder, so that a login shell and a cron job agree on it although their
    environments differ.

    Args:
        chosen: The setting `runtime_dir`; None for the first default that is on a tmpfs.
        state_directory: Two state directories never share a folder.
        environment: Source of `XDG_RUNTIME_DIR`.

    Raises:
        NodeError: No directory is on a tmpfs, or one of both directories is not this user's alone.
    """
    check_state_directory(state_directory)
    if chosen is not None:
        return _make_folder(chosen, state_directory)
    link = state_directory / _LINK_NAME
    if _exists(link) and is_usable(link):
        folder = link.resolve()
        _make_private(folder, forbidden=0o077)
        return folder
    parent = _first_on_tmpfs(environment)
    _make_private(parent, forbidden=0o022)
    if os.geteuid() == 0:
        # Other users pass through root's directory to the server's socket.
        parent.chmod(stat.S_IMODE(parent.stat().st_mode) | 0o011)
    return _link_folder(link, _make_folder(parent, state_directory))


def _make_folder(parent: Path, state_directory: Path) -> Path:
    if not is_usable(parent):
        raise NodeError(f"{parent} is not on a tmpfs that allows programs", hint=_HINT)
    folder = parent / sha256(os.fsencode(state_directory.resolve())).hexdigest()[:12]
    _make_private(folder, forbidden=0o077)
    return folder


def _link_folder(link: Path, folder: Path) -> Path:
    """Link the folder in the state directory; if another process did so meanwhile, its folder is used."""
    elsewhere = "name another with --state-dir or PGPU_STATE_DIR"
    try:
        link.parent.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
        # A reboot empties the tmpfs and leaves a link to a folder that is gone.
        if link.is_symlink() and not link.exists():
            link.unlink()
        link.symlink_to(folder)
    except FileExistsError:
        if not link.parent.is_dir():
            raise NodeError(f"{link.parent} is not a directory", hint=elsewhere) from None
        # Two first commands of a user race here: symlink_to is atomic, and the loser takes the winner's folder.
        if not is_usable(link):
            raise NodeError(
                f"{link} is not on a tmpfs that allows programs", hint="move it away, or choose another --state-dir"
            ) from None
        return link.resolve()
    except OSError as exc:
        raise NodeError(f"{link.parent} cannot be written: {exc.strerror}", hint=elsewhere) from exc
    return folder


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as exc:
        raise NodeError(
            f"{path} cannot be looked up: {exc.strerror}", hint="choose a place that you may read and write"
        ) from exc


def is_usable(path: Path) -> bool:
    """Whether a path, or its nearest existing parent, is on a tmpfs without `noexec`.

    Raises:
        NodeError: The kernel's table of mounts cannot be read.
    """
    existing = next(place for place in (path, *path.parents) if _exists(place)).resolve()
    kind, options = "", ""
    longest = -1
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as exc:
        raise NodeError(f"/proc/self/mounts cannot be read: {exc}", hint="mount /proc") from exc
    for line in lines:
        _, point, mount_kind, mount_options, *_ = line.split(" ")
        # The kernel writes a space in a path as \040, so that columns can be split at spaces.
        mount_point = Path(point.replace("\\040", " "))
        # Of two mounts on one point, the later one covers the other.
        if existing.is_relative_to(mount_point) and len(mount_point.parts) >= longest:
            longest, kind, options = len(mount_point.parts), mount_kind, mount_options
    return kind == "tmpfs" and "noexec" not in options.split(",")


def _first_on_tmpfs(environment: Mapping[str, str]) -> Path:
    candidates = [Path(f"/dev/shm/pgpu-{os.geteuid()}")]  # noqa: S108 - owner and mode are verified below
    if os.geteuid() == 0:
        candidates.insert(0, Path("/run/pgpu"))
    elif environment.get("XDG_RUNTIME_DIR"):
        candidates.insert(0, Path(environment["XDG_RUNTIME_DIR"]) / "pgpu")
    for path in candidates:
        # After `su` the environment may still name another user's directory.
        if os.access(path.parent, os.W_OK | os.X_OK) and is_usable(path):
            return path
    tried = ", ".join(str(path) for path in candidates)
    raise NodeError(f"none of {tried} is on a tmpfs that allows programs", hint=_HINT)


def _make_private(path: Path, forbidden: int) -> None:
    """Create a directory, and check that it is this user's and has no forbidden mode bits."""
    try:
        # lstat after mkdir: a link or a directory that another user made first is found here, and refused.
        path.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as exc:
        raise NodeError(
            f"{path} cannot be made: {exc.strerror}", hint="set runtime_dir to a place you may write"
        ) from exc
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or stat.S_IMODE(found.st_mode) & forbidden:
        raise NodeError(
            f"{path} is not a directory of yours alone", hint="remove it, or set runtime_dir to another place"
        )
