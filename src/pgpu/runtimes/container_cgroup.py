"""Locates the control group of a container, for the enforcer that limits control groups. Only reads."""

from pathlib import Path

from pgpu.errors import EnforcementError

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
    for _number, controllers, path in entries:
        if "memory" in controllers.split(","):
            return _CGROUP_ROOT / "memory" / path.lstrip("/")
    for number, _controllers, path in entries:
        if number == "0":
            return _CGROUP_ROOT / path.lstrip("/")
    raise EnforcementError("the container is in no control group that could be limited")
