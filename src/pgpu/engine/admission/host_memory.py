"""What memory the host could give to jobs that oversubscribe: read from the kernel, never guessed.

A figure that cannot be read counts as nothing: no job is started on memory that may not be there.
"""

from pathlib import Path

from pgpu.units import MIB

KEPT_BYTES = 512 * MIB
"""Never promised to any job."""

_KIB = 1024
_MEMINFO = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def available_bytes(meminfo: Path = _MEMINFO, cgroups: Path = _CGROUPS, own_cgroup: Path = _OWN_CGROUP) -> int:
    """Return what could be promised now: the machine's, or the control group's that we are in, whichever is less."""
    try:
        machine_bytes = _available_of_machine(meminfo)
    except (OSError, ValueError, StopIteration):
        return 0
    return max(0, min([machine_bytes, *_left_of_cgroups(cgroups, own_cgroup)]) - KEPT_BYTES)


def _available_of_machine(meminfo: Path) -> int:
    lines = meminfo.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * _KIB for line in lines if line.startswith("MemAvailable:"))


def _left_of_cgroups(cgroups: Path, own_cgroup: Path) -> list[int]:
    """What each control group above us leaves; version 1 tells nothing that the machine does not."""
    try:
        line = next(line for line in own_cgroup.read_text(encoding="utf-8").splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    found = []
    place = cgroups / line.removeprefix("0::").lstrip("/")
    for directory in (place, *place.parents):
        if cgroups in (directory, *directory.parents):
            found += _left_of(directory)
    return found


def _left_of(cgroup: Path) -> list[int]:
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = (cgroup / "memory.current").read_text(encoding="ascii").strip()
    except OSError:
        return []
    return [] if limit == "max" else [max(0, int(limit) - int(used))]
