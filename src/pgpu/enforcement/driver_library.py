"""Locates the real NVIDIA driver's libraries, past symbolic links and pgpu's own shims.

Candidates come from the linker cache and a list of known directories. A candidate must exist and must not be a shim, and
both libraries must be found.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from pgpu.errors import EnforcementError
from pgpu.libraries import CUDA_SHIM, NVML_SHIM, library_path
from pgpu.structs import Struct

_CACHE_LINE = re.compile(r"^\s*(?P<name>\S+) \((?P<kind>[^)]*)\) => (?P<path>/\S+)$", re.MULTILINE)
_ARCHITECTURE_WORD = {"x86_64": "x86-64", "aarch64": "AArch64"}
_KNOWN_DIRECTORIES = (
    "/usr/lib/{machine}-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",  # NixOS
)


class DriverLibraries(Struct, frozen=True):
    """Paths without symbolic links."""

    cuda: Path
    nvml: Path


def find_driver() -> DriverLibraries:
    """Find the libraries that a program started here would load, including a forward-compatible libcuda.

    Raises:
        EnforcementError: A library is missing, or is a shim: pgpu runs inside a job.
    """
    return DriverLibraries(
        cuda=_find("libcuda.so.1", library_path(CUDA_SHIM)),
        nvml=_find("libnvidia-ml.so.1", library_path(NVML_SHIM)),
    )


def refuse_shim(real: Path, shim: Path) -> None:
    """Reject a driver library that is pgpu's own shim, since its calls would recurse.

    Raises:
        EnforcementError: Both paths are the same file, or have equal content.
    """
    import filecmp  # noqa: PLC0415 - at the start of a slice only

    if real.samefile(shim) or filecmp.cmp(real, shim, shallow=False):
        raise EnforcementError(
            f"{real} is pgpu's own shim, not the driver", hint="run pgpu outside of a job that runs in a slice"
        )


def _find(name: str, shim: Path) -> Path:
    known = (Path(directory.format(machine=os.uname().machine)) / name for directory in _KNOWN_DIRECTORIES)
    for path in (*_in_linker_cache(name), *known):
        if path.exists():
            real = path.resolve()
            refuse_shim(real, shim)
            return real
    raise EnforcementError(f"the driver's {name} is not on this machine", hint="install the NVIDIA driver")


def _in_linker_cache(name: str) -> Iterator[Path]:
    """Yield the entries of `ldconfig -p` for this machine's architecture, in the dynamic linker's order."""
    import subprocess  # noqa: PLC0415 - once in the life of a process

    # By path, since /sbin is not in the PATH of most users.
    program = next((each for each in ("/sbin/ldconfig", "/usr/sbin/ldconfig") if Path(each).exists()), None)
    if program is None:
        return
    cache = subprocess.run([program, "-p"], capture_output=True, text=True, check=False).stdout
    # A multiarch machine lists one entry for each architecture; a library of another one cannot be loaded.
    word = _ARCHITECTURE_WORD.get(os.uname().machine, "")
    for found in _CACHE_LINE.finditer(cache):
        if found["name"] == name and word in found["kind"]:
            yield Path(found["path"])
