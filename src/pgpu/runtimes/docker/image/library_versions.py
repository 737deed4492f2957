"""What a shared library says of itself: its machine, and the versions of glibc that it needs or has.

A pure reading of bytes. It refuses to load a library: the ones asked about may be another machine's.
"""

import re

_ELF_MAGIC = b"\x7fELF"
_MACHINES = {0x3E: "amd64", 0xB7: "arm64", 0x03: "386", 0x28: "arm", 0x15: "ppc64le", 0xF3: "riscv64", 0x16: "s390x"}
"""e_machine of the ELF specification → the architecture's name in image manifests."""

_GLIBC_VERSION = re.compile(rb"\0GLIBC_(\d+)\.(\d+)(?:\.\d+)?(?=\0)")


def architecture(library: bytes) -> str | None:
    """Return the machine of a little-endian ELF file as image manifests write it, such as `amd64`; None if unknown."""
    if not library.startswith(_ELF_MAGIC):
        return None
    return _MACHINES.get(int.from_bytes(library[18:20], "little"))


def newest_glibc(library: bytes) -> tuple[int, int] | None:
    """Return the newest version of glibc that a library names, as (2, 36).

    For a program's library that is what it needs; for libc.so.6 it is what it has. None if it names none.
    """
    found = [(int(major), int(minor)) for major, minor in _GLIBC_VERSION.findall(library)]
    return max(found, default=None)
