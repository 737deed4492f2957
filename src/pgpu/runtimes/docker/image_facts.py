"""The facts that are needed before a container of an image can hold a job: C library, preloads, library paths, users.

They are read from the files of a container that is created and never started. Shared libraries are parsed and never loaded,
since they may be of another architecture.
"""

import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from pgpu.host.atomic_file import write_atomically
from pgpu.structs import Struct, to_builtins

PRELOAD_PATH = "/etc/ld.so.preload"
CUDA_NAME = "libcuda.so.1"
NVML_NAME = "libnvidia-ml.so.1"

_TRIPLETS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
_MUSL_LOADERS = {"amd64": "/lib/ld-musl-x86_64.so.1", "arm64": "/lib/ld-musl-aarch64.so.1"}
_COMPAT_DIRECTORIES = ("/usr/local/cuda/compat", "/usr/local/cuda/compat/lib.real")
"""Where CUDA images have a driver library newer than the kernel module's own ("forward compatibility")."""

_LARGEST_PRELOAD_BYTES = 64 * 1024
_GROUP_PATH = "/etc/group"
_NUMBERED = re.compile(rb"[^A-Za-z_:]*[0-9]")
_FORMAT = 3


class ImageFacts(Struct, frozen=True):
    """Facts of one image."""

    libc: Literal["glibc", "musl"] | None
    """None if programs can only be static."""

    glibc_version: tuple[int, int] | None
    """The newest version that its libc.so.6 provides, as (2, 36); None without one or if it is unreadable."""

    preload_path: str
    """Path of /etc/ld.so.preload with symbolic links resolved, existing or not."""

    preload_lines: tuple[str, ...]
    """The image's own preloads."""

    cuda_paths: tuple[str, ...]
    """Paths of libcuda.so.1, symbolic links resolved: existing files, and the linker's standard directories."""

    nvml_paths: tuple[str, ...]
    """The same for libnvidia-ml.so.1."""

    users: tuple[str, ...]
    """The names in its /etc/passwd."""

    groups: tuple[str, ...]
    """The names in its /etc/group."""

    has_numbered_groups: bool
    """True if a line of its /etc/group could match a number that stands for another group, or the file is unreadable."""

    def to_json(self) -> str:
        return json.dumps({"format": _FORMAT, **to_builtins(self)})

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """Parse the output of `to_json`; None if it is of another version or damaged."""
        try:
            fields: dict[str, Any] = json.loads(text)
            if fields.pop("format") != _FORMAT:
                return None
            for name in ("preload_lines", "cuda_paths", "nvml_paths", "users", "groups"):
                fields[name] = tuple(fields[name])
            version = fields.pop("glibc_version")
            return cls(glibc_version=tuple(version) if version else None, **fields)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


class ContainerFiles(Protocol):
    """Read access to a container's file system."""

    def resolve(self, path: str) -> str | None:
        """Return a path with all symbolic links resolved, or None if it does not exist."""
        ...

    def read(self, path: str) -> bytes | None:
        """Return a file's content, following symbolic links, or None if there is no such file."""
        ...


def read_facts(files: ContainerFiles, architecture: str, library_path: Sequence[str]) -> ImageFacts:
    """Read the facts of an image.

    Args:
        files: The files of a container of it.
        architecture: From its manifest, such as `amd64`.
        library_path: The directories of the image's own LD_LIBRARY_PATH.
    """
    directories = (*_standard_directories(architecture), "/lib64", "/usr/lib", "/lib")
    contents = (files.read(f"{directory}/libc.so.6") for directory in directories)
    libc = next((content for content in contents if content is not None), None)
    musl_loader = _MUSL_LOADERS.get(architecture)
    has_musl = not libc and musl_loader is not None and files.resolve(musl_loader) is not None
    preload_path = files.resolve(PRELOAD_PATH)
    preload = (files.read(preload_path) if preload_path else None) or b""
    # A file above the limit is ignored: its copy would fill the slice's tmpfs.
    preload_text = preload.decode(errors="replace") if len(preload) <= _LARGEST_PRELOAD_BYTES else ""
    return ImageFacts(
        libc="glibc" if libc else "musl" if has_musl else None,
        glibc_version=newest_glibc(libc) if libc else None,
        preload_path=preload_path or PRELOAD_PATH,
        preload_lines=tuple(preload_text.splitlines()),
        cuda_paths=tuple(_places(files, architecture, library_path, CUDA_NAME)),
        nvml_paths=tuple(_places(files, architecture, library_path, NVML_NAME)),
        users=_names(files, "/etc/passwd"),
        groups=_names(files, _GROUP_PATH),
        has_numbered_groups=_has_numbered_groups(files),
    )


def _names(files: ContainerFiles, path: str) -> tuple[str, ...]:
    """Return the first field of each line, as in passwd(5) and group(5)."""
    lines = (files.read(path) or b"").decode(errors="replace").splitlines()
    return tuple(dict.fromkeys(line.partition(":")[0] for line in lines if ":" in line))


def _has_numbered_groups(files: ContainerFiles) -> bool:
    """Conservative test: engines differ in how they trim, split and complete lines."""
    if files.resolve(_GROUP_PATH) is None:
        return False
    content = files.read(_GROUP_PATH)
    return content is None or any(_NUMBERED.match(line) for line in content.split(b"\n"))


def _standard_directories(architecture: str) -> Iterator[str]:
    if architecture in _TRIPLETS:
        yield f"/usr/lib/{_TRIPLETS[architecture]}"
    yield "/usr/lib64"


def _places(files: ContainerFiles, architecture: str, library_path: Sequence[str], name: str) -> list[str]:
    standard = []
    for directory in _standard_directories(architecture):
        # The engine creates a missing mount target and follows links, so the target is the file behind a link, or else the
        # path itself below the resolved directory.
        existing_file = files.resolve(f"{directory}/{name}")
        standard.append(existing_file or posixpath.join(files.resolve(directory) or directory, name))
    others = (*_COMPAT_DIRECTORIES, *(path for path in library_path if path.startswith("/")), "/usr/lib", "/lib")
    existing = [found for directory in others if (found := files.resolve(f"{directory}/{name}"))]
    return list(dict.fromkeys((*standard, *existing)))


class FactsCache(Struct, frozen=True):
    """Cache of facts by image ID. An ID is a digest, so its facts never change."""

    directory: Path

    def load(self, image_id: str) -> ImageFacts | None:
        try:
            return ImageFacts.from_json(self._path(image_id).read_text(encoding="utf-8"))
        except OSError:
            return None

    def store(self, image_id: str, facts: ImageFacts) -> None:
        """Store facts atomically."""
        path = self._path(image_id)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, facts.to_json().encode(), 0o644)

    def _path(self, image_id: str) -> Path:
        return self.directory / f"{image_id.removeprefix('sha256:')}.json"


_ELF_MAGIC = b"\x7fELF"
_MACHINES = {0x3E: "amd64", 0xB7: "arm64", 0x03: "386", 0x28: "arm", 0x15: "ppc64le", 0xF3: "riscv64", 0x16: "s390x"}
"""e_machine of the ELF specification → the architecture's name in image manifests."""

# Version names in the string table, each between two zero bytes. The second is a look-ahead, since it also begins the next name.
_GLIBC_VERSION = re.compile(rb"\0GLIBC_(\d+)\.(\d+)(?:\.\d+)?(?=\0)")


def architecture(library: bytes) -> str | None:
    """Return the architecture of a little-endian ELF file as in image manifests, such as `amd64`; None if unknown."""
    if not library.startswith(_ELF_MAGIC):
        return None
    # e_machine is the 16-bit field at offset 18 of the ELF header, for 32-bit and 64-bit files alike.
    return _MACHINES.get(int.from_bytes(library[18:20], "little"))


def newest_glibc(library: bytes) -> tuple[int, int] | None:
    """Return the newest glibc version that a library names, as (2, 36); None if it names none.

    For a program's library this is the required version; for libc.so.6 it is the provided one.
    """
    found = [(int(major), int(minor)) for major, minor in _GLIBC_VERSION.findall(library)]
    return max(found, default=None)
