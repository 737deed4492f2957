"""The paths of this machine at which CUDA clients find the driver's libraries, and which a shim must be mounted over.

The path of the real driver behind the shim is determined in enforcement and written into the slice.
"""

import functools
import glob
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from pgpu.libraries import CUDA_SHIM, NVML_SHIM

PRELOAD_PATH = Path("/etc/ld.so.preload")

_SHIM_OF = {"libcuda.so.1": CUDA_SHIM, "libcuda.so": CUDA_SHIM, "libnvidia-ml.so.1": NVML_SHIM}

_OTHER_DIRECTORIES = (
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",  # NixOS
    "/usr/local/cuda/compat",  # forward compatibility: a newer libcuda than the kernel module's own
    "/usr/local/cuda-*/compat",
)
_CACHE_LINE = re.compile(r"\s(?P<name>libcuda\.so(?:\.1)?|libnvidia-ml\.so\.1) \(.*\) => (?P<path>/\S+)")


@functools.cache
def shadows() -> tuple[tuple[str, Path], ...]:
    """Return (shim's file name, path without symbolic links) for each mount target of a shim.

    All existing copies that the dynamic linker or a well-known absolute path leads to are covered, including 32-bit ones, so
    that they fail instead of bypassing the limit. A library that does not exist is placed in the linker's standard
    directories, since a simulated job on a machine without a driver must find one there.
    """
    targets = {path.resolve(): _SHIM_OF[path.name] for path in _existing()}
    missing = {shim for shim in _SHIM_OF.values() if shim not in targets.values()}
    targets |= {path.resolve(): shim for path in _standard() if (shim := _SHIM_OF[path.name]) in missing}
    return tuple((shim, path) for path, shim in targets.items())


def _standard() -> Iterator[Path]:
    for directory in _standard_directories():
        yield from (directory / name for name in _SHIM_OF)


def _standard_directories() -> Iterator[Path]:
    multiarch = sysconfig.get_config_var("MULTIARCH")
    names = ("/usr/lib64",) if multiarch is None else (f"/usr/lib/{multiarch}", "/usr/lib64")
    yield from (Path(name) for name in names if Path(name).is_dir())


def _existing() -> Iterator[Path]:
    yield from _in_linker_cache()
    for pattern in _OTHER_DIRECTORIES:
        for directory in glob.glob(pattern):  # noqa: PTH207 - patterns are absolute
            yield from (path for name in _SHIM_OF if (path := Path(directory) / name).exists())


def _in_linker_cache() -> Iterator[Path]:
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        if Path(program).exists():
            listing = subprocess.run([program, "-p"], capture_output=True, text=True, check=False).stdout
            yield from (path for found in _CACHE_LINE.finditer(listing) if (path := Path(found["path"])).exists())
            return
