"""Prints what a built wheel needs of a machine, and fails if it needs more than it promises.

    python tools/wheel_requirements.py dist/gpuslice-*.whl [--retag]

The wheel promises glibc 2.17 and carries every C library and the man pages. With `--retag` a wheel that keeps the promise is renamed from
`linux_*` to `manylinux_2_17_*`, which is what installers match. It never changes a wheel's content.
"""

import argparse
import base64
import hashlib
import sys
import zipfile
from pathlib import Path

from pgpu.libraries import (
    BRINGER,
    CUDA_SHIM,
    ENTER,
    HOLD,
    LAUNCHER,
    MONITOR,
    NVML_SHIM,
    OCI_RUNTIME,
    PROBE,
    SIMULATED_CUDA,
    SIMULATED_NVML,
    STAGER,
)
from pgpu.runtimes.docker.image_facts import architecture, newest_glibc

_OLDEST_GLIBC = (2, 17)
_NATIVE = "pgpu/_native/"
_NEED_NOTHING = (ENTER, HOLD, LAUNCHER, MONITOR)
_EXPECTED = (
    CUDA_SHIM,
    NVML_SHIM,
    PROBE,
    STAGER,
    BRINGER,
    OCI_RUNTIME,
    SIMULATED_CUDA,
    SIMULATED_NVML,
    *_NEED_NOTHING,
)
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def complaints(wheel: Path) -> list[str]:
    """Return what is wrong with a wheel, one line each, and print what each library needs."""
    machine = wheel.stem.rsplit("-", 1)[1].removeprefix("linux_").removeprefix("manylinux_2_17_")
    found = []
    with zipfile.ZipFile(wheel) as archive:
        names = {name.removeprefix(_NATIVE) for name in archive.namelist() if name.startswith(_NATIVE)}
        found += [f"{name} is missing" for name in _EXPECTED if name not in names]
        pages = [name.rpartition("/share/man/")[2] for name in archive.namelist()]
        if not {"man1/pgpu-run.1", "man7/pgpu-errors.7"}.issubset(pages):
            found.append("the man pages are missing")
        for name in sorted(names):
            content = archive.read(_NATIVE + name)
            needed = newest_glibc(content)
            print(f"{name}: {architecture(content)}, glibc {needed and '.'.join(map(str, needed))}")
            if name in _NEED_NOTHING:
                found += [f"{name} needs glibc {needed}, and is to start anywhere"] if needed else []
            elif needed is None or needed > _OLDEST_GLIBC:
                found.append(f"{name} needs glibc {needed}")
            if architecture(content) != _MACHINES[machine]:
                found.append(f"{name} is for {architecture(content)}")
    return found


def retag(wheel: Path) -> Path:
    """Rename a `linux_*` wheel to `manylinux_2_17_*`, inside and out."""
    target = wheel.with_name(wheel.name.replace("-linux_", "-manylinux_2_17_"))
    if target == wheel:
        return wheel
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        tag = next(name for name in old.namelist() if name.endswith(".dist-info/WHEEL"))
        words = old.read(tag).replace(b"-linux_", b"-manylinux_2_17_")
        for info in old.infolist():
            content = old.read(info)
            if info.filename == tag:
                content = words
            elif info.filename.endswith(".dist-info/RECORD"):
                content = _record_with(content, tag, words)
            new.writestr(info, content)
    wheel.unlink()
    return target


def _record_with(record: bytes, name: str, content: bytes) -> bytes:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    line = b"%s,sha256=%s,%d" % (name.encode(), digest, len(content))
    lines = [line if each.startswith(name.encode() + b",") else each for each in record.splitlines()]
    return b"\n".join(lines) + b"\n"


def main() -> int:
    """Check one wheel."""
    parser = argparse.ArgumentParser(description="Check what a wheel needs of a machine.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--retag", action="store_true")
    arguments = parser.parse_args()
    wrong = complaints(arguments.wheel)
    for line in wrong:
        print(f"{arguments.wheel.name}: {line}", file=sys.stderr)
    if not wrong and arguments.retag:
        print(retag(arguments.wheel))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
