"""The machine's memory, as Linux reports it in `/proc/meminfo`."""

from collections.abc import Mapping
from pathlib import Path

from pgpu.units import KIB

MEMINFO = Path("/proc/meminfo")


def read_meminfo(path: Path = MEMINFO) -> Mapping[str, int]:
    """Return amounts in bytes by the kernel's names, such as `MemTotal` and `MemAvailable`; counts of pages are left out.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not in this format.
    """
    pairs = (line.partition(":") for line in path.read_text(encoding="ascii").splitlines())
    return {name: int(amount.split()[0]) * KIB for name, _, amount in pairs if amount.endswith(" kB")}
