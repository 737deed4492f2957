"""A control group of a job's own, for the enforcer whose limits are the kernel's and the driver's.

Only made where such a limit is asked for: it needs a writable unified hierarchy, which ordinary users seldom have. The
module refuses to know what is limited.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from pgpu.errors import RuntimeUnavailableError
from pgpu.model import Delivery

LimitCgroup = Callable[[Path, Delivery], None]
"""Carries out `Delivery.cgroup_limits` on a control group, or raises EnforcementError."""

_FILE_SYSTEM = "cgroup2"


def enter_leaf(pid: int, job_id: str) -> Path:
    """Make a leaf below this process's own group and move a process that is held back into it.

    Raises:
        RuntimeUnavailableError: There is no unified hierarchy, or it cannot be written.
    """
    leaf = _own_group() / f"pgpu-{job_id}"
    try:
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(str(pid), encoding="ascii")
    except OSError as exc:
        raise RuntimeUnavailableError(
            f"the control group {leaf} cannot be made: {exc.strerror}",
            hint="run pgpu as root on a machine with cgroup v2, or without the driver's own limit",
        ) from exc
    return leaf


def kill_leaf(leaf: Path) -> None:
    """End everything in a leaf at once, where the kernel can (5.14 and newer)."""
    with contextlib.suppress(OSError):
        (leaf / "cgroup.kill").write_text("1", encoding="ascii")


def remove_leaf(leaf: Path) -> None:
    """Remove a leaf, and the limits on it, unless something is still in it."""
    with contextlib.suppress(OSError):
        leaf.rmdir()


def _own_group() -> Path:
    own = next((line[3:] for line in _lines("/proc/self/cgroup") if line.startswith("0::")), None)
    root = next(_unified_roots(), None)
    if own is None or root is None:
        raise RuntimeUnavailableError("this machine has no cgroup v2", hint="the driver's own limit needs it")
    return root / own.lstrip("/")


def _unified_roots() -> Iterator[Path]:
    for line in _lines("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        if after.split(" ")[0] == _FILE_SYSTEM:
            yield Path(before.split(" ")[4])


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
