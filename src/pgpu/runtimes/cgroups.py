"""The control group of a job, for the enforcer that limits control groups.

A process gets a leaf of its own, which needs a writable cgroup v2 hierarchy; ordinary users seldom have one, so it is created
only if such a limit is requested. A container has a group already, which is only located here.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

from pgpu.errors import EnforcementError, RuntimeUnavailableError
from pgpu.model import Delivery

LimitCgroup = Callable[[Path, Delivery], None]
"""Applies `Delivery.cgroup_limits` to a control group, or raises EnforcementError."""

_FILE_SYSTEM = "cgroup2"


def enter_leaf(pid: int, job_id: str) -> Path:
    """Create a leaf below this process's own group and move a held back process into it.

    Raises:
        RuntimeUnavailableError: There is no cgroup v2 hierarchy, or it cannot be written.
    """
    leaf = _own_group() / f"pgpu-{job_id}"
    try:
        leaf.mkdir(exist_ok=True)
        # Moves all threads of the process. It is held back before its execve, so all its descendants start in the leaf.
        (leaf / "cgroup.procs").write_text(str(pid), encoding="ascii")
    except OSError as exc:
        raise RuntimeUnavailableError(
            f"the control group {leaf} cannot be made: {exc.strerror}",
            hint="run pgpu as root on a machine with cgroup v2, or without the driver's own limit",
        ) from exc
    return leaf


def kill_leaf(leaf: Path) -> None:
    """Kill all processes of a leaf at once through cgroup.kill (Linux 5.14 and newer)."""
    with contextlib.suppress(OSError):
        # The kernel includes processes that are being forked, so none escapes between a scan and its kill.
        (leaf / "cgroup.kill").write_text("1", encoding="ascii")


def remove_leaf(leaf: Path) -> None:
    """Remove a leaf and its limits; no effect while it has processes."""
    with contextlib.suppress(OSError):
        leaf.rmdir()


def _own_group() -> Path:
    # Hierarchy 0 is the unified one; on hybrid machines the same file lists those of cgroup v1 as well.
    own = next((line[3:] for line in _lines("/proc/self/cgroup") if line.startswith("0::")), None)
    root = None
    # proc_pid_mountinfo(5): the mount point is the fifth field; the type follows " - ", after a variable number of fields.
    for line in _lines("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        if after.split(" ")[0] == _FILE_SYSTEM:
            root = Path(before.split(" ")[4])
            break
    if own is None or root is None:
        raise RuntimeUnavailableError("this machine has no cgroup v2", hint="the driver's own limit needs it")
    return root / own.lstrip("/")


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()


_CGROUP_ROOT = Path("/sys/fs/cgroup")


def leaf_cgroup(pid: int, proc: Path = Path("/proc")) -> Path:
    """Return the control group of a process: the memory controller's of cgroup v1, else that of the unified hierarchy.

    Raises:
        EnforcementError: The process is gone or has neither.
    """
    try:
        lines = (proc / str(pid) / "cgroup").read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise EnforcementError(f"the container's control group cannot be read: {error.strerror}") from error
    entries = [line.split(":", 2) for line in lines]
    # A controller is in one hierarchy only: if cgroup v1 has the one for memory, the unified hierarchy does not.
    for _number, controllers, path in entries:
        if "memory" in controllers.split(","):
            return _CGROUP_ROOT / "memory" / path.lstrip("/")
    for number, _controllers, path in entries:
        if number == "0":
            return _CGROUP_ROOT / path.lstrip("/")
    raise EnforcementError("the container is in no control group that could be limited")
