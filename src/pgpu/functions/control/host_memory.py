"""Whether the host has memory left for processes that only wait."""

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_LEAST_FREE = 0.1


def is_host_short(meminfo: Path = _MEMINFO) -> bool:
    """Say whether less than a tenth of the host's memory could be had; True where that cannot be read."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
        amounts = {line.split(":")[0]: int(line.split()[1]) for line in lines if ":" in line}
        return amounts["MemAvailable"] < _LEAST_FREE * amounts["MemTotal"]
    except (OSError, ValueError, IndexError, KeyError):
        return True
