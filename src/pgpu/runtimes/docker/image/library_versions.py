"""Parses a shared library's bytes: its architecture, and the glibc versions that it needs or provides.

The file is never loaded, since it may be of another architecture.
"""

import re

_ELF_MAGIC = b"\x7fELF"
_MACHINES = {0x3E: "amd64", 0xB7: "arm64", 0x03: "386", 0x28: "arm", 0x15: "ppc64le", 0xF3: "riscv64", 0x16: "s390x"}
"""e_machine of the ELF specification → the architecture's name in image manifests."""

_GLIBC_VERSION = re.compile(rb"\0GLIBC_(\d+)\.(\d+)(?:\.\d+)?(?=\0)")


def architecture(library: bytes) -> str | None:
    """Return the architecture of a little-endian ELF file as in image manifests, such as `amd64`; None if unknown."""
    if not library.startswith(_ELF_MAGIC):
        return None
    return _MACHINES.get(int.from_bytes(library[18:20], "little"))


def newest_glibc(library: bytes) -> tuple[int, int] | None:
    """Return the newest glibc version that a library names, as (2, 36); None if it names none.

    For a program's library this is the required version; for libc.so.6 it is the provided one.
    """
    found = [(int(major), int(minor)) for major, minor in _GLIBC_VERSION.findall(library)]
    return max(found, default=None)
