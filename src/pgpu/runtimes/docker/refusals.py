"""Checks that reject container jobs before anything is created. Pure, given the engine's responses.

Each rejection is a RequestError with one line and, if there is a remedy, a hint.
"""

import platform
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from pgpu.errors import RequestError
from pgpu.model import JobSpec, Mount
from pgpu.runtimes.docker.image_facts import CUDA_NAME, NVML_NAME, PRELOAD_PATH, ImageFacts
from pgpu.runtimes.docker.mounts import JOB_DIRECTORY, plain
from pgpu.units import MIB, format_memory

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
"""Source: Docker's rule for container names."""

_NETWORK = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.:-]{0,127}")
_LIBRARIES = {CUDA_NAME, CUDA_NAME.removesuffix(".1"), NVML_NAME}
"""Volumes must not cover these: the shims are there, or another driver would be behind them."""

_LARGEST_ID = (1 << 31) - 1
"""Source: runc, `uids and gids must be in range 0-2147483647`."""

_PATHS = {"working directory", "volume"}
_LONGEST_PATH_BYTES = 4096
"""Source: PATH_MAX of limits.h, with the terminating zero."""

_MOST_VOLUMES = 64
"""The stager's limit (native/launcher/stage.c)."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_VOLUME_OPTIONS = re.compile(
    r"ro|rw|z|Z|nocopy|r?shared|r?slave|r?private|consistent|cached|delegated|U|O|no?exec|no?dev|no?suid"
)
_LEAST_MEMORY_BYTES = 64 * MIB
"""Minimum of a container: an idle front and worker take about 50 MiB."""


def refuse_bad_words(spec: JobSpec) -> None:
    """Raise RequestError if a field of the spec is invalid."""
    if not spec.image:
        raise RequestError("a container needs an image", hint="name it with --image")
    refuse_bad_reference(spec.image)
    _refuse_bad_text(spec)
    # A name of another script is the job's alone; engines accept only ASCII.
    if spec.name is not None and spec.name.isascii() and not _NAME.fullmatch(spec.name):
        raise RequestError(
            f"{spec.name!r} is not a container's name", hint="use letters, digits, _ . and -, at least two characters"
        )
    if spec.working_directory is not None and not spec.working_directory.startswith("/"):
        raise RequestError(f"the working directory {spec.working_directory!r} is not an absolute path in the container")
    for name, value in spec.environment:
        if not name or "=" in name or "\0" in name + value:
            raise RequestError(f"{name!r} is not a variable's name", hint="write --env NAME=VALUE")
    if spec.network is not None and not (spec.is_sealed and _NETWORK.fullmatch(spec.network)):
        raise RequestError(f"{spec.network!r} is no network of a sealed container", hint="such as bridge")
    if spec.host_memory_bytes is not None and not (spec.is_sealed and spec.host_memory_bytes >= _LEAST_MEMORY_BYTES):
        raise RequestError(
            f"{spec.host_memory_bytes} bytes are no host memory of a sealed container", hint="64MiB or more"
        )
    _refuse_bad_volumes((*spec.volumes, *spec.provisions))


def _refuse_bad_text(spec: JobSpec) -> None:
    """Raise RequestError for text that the engine's JSON cannot carry unchanged."""
    texts = [("command", word) for word in spec.command]
    texts += [("working directory", spec.working_directory or ""), ("user", spec.user or "")]
    texts += [("environment", word) for pair in spec.environment for word in pair]
    texts += [("volume", word) for volume in spec.volumes for word in (volume.source, volume.target, volume.options)]
    for what, text in texts:
        # A surrogate stands for a byte that is not UTF-8 (PEP 383); JSON would not carry that byte.
        if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
            raise RequestError(f"the {what} {text[:64]!r} is not text in UTF-8, or has a zero byte")
    for what, path in texts:
        if what in _PATHS and len(path.encode()) >= _LONGEST_PATH_BYTES:
            raise RequestError(f"the {what} {path[:64]!r}… is longer than a path can be")
    if len(spec.volumes) > _MOST_VOLUMES:
        raise RequestError(f"{len(spec.volumes)} volumes are too many", hint=f"name {_MOST_VOLUMES} at most")


def _refuse_bad_volumes(volumes: tuple[Mount, ...]) -> None:
    targets = set()
    for volume in volumes:
        target = plain(volume.target)
        _refuse_bad_volume(volume, target)
        if target in targets:
            raise RequestError(f"two volumes have the same place in the container: {target}")
        targets.add(target)


def _refuse_bad_volume(volume: Mount, target: str) -> None:
    shown = ":".join(filter(None, (volume.source, volume.target, volume.options)))
    if not volume.source:
        raise RequestError(f"the volume {shown!r} names nothing to mount", hint="write --volume HOST:CONTAINER[:ro]")
    if not target.startswith("/") or target == "/":
        raise RequestError(f"the volume {shown!r} needs an absolute path in the container other than /")
    if target in {JOB_DIRECTORY, PRELOAD_PATH} or target.startswith(f"{JOB_DIRECTORY}/"):
        raise RequestError(f"the volume {shown!r} lies where pgpu puts the slice ({target})")
    if posixpath.basename(target) in _LIBRARIES:
        raise RequestError(
            f"the volume {shown!r} lies where pgpu puts the driver's library ({target})",
            hint="leave it out: the driver comes with the slice",
        )
    if not volume.source.startswith("/") and not _NAME.fullmatch(volume.source):
        raise RequestError(
            f"the volume {shown!r} has no valid name: {volume.source!r}",
            hint="use letters, digits, _ . and -, at least two characters; a directory is written /data or ./data",
        )
    for option in filter(None, volume.options.split(",")):
        if not _VOLUME_OPTIONS.fullmatch(option):
            raise RequestError(
                f"the volume {shown!r} has an unknown option {option!r}", hint="Docker's are ro, rw, z, Z, …"
            )


def refuse_bad_image(spec: JobSpec, image: Mapping[str, Any]) -> None:
    """Raise RequestError if an image is of another architecture or has no command.

    Args:
        spec: The job.
        image: The engine's description of its image.
    """
    architecture, ours = image.get("Architecture"), _ARCHITECTURES.get(platform.machine(), platform.machine())
    if architecture and architecture != ours:
        raise RequestError(
            f"the image {spec.image} is for {architecture}, and this machine is {ours}",
            hint=f"docker pull --platform linux/{ours} {spec.image}",
        )
    configuration = image.get("Config") or {}
    if not spec.command and not configuration.get("Cmd") and not configuration.get("Entrypoint"):
        raise RequestError(f"the image {spec.image} has no command of its own", hint="write one after --")


def refuse_unknown_user(spec: JobSpec, image: Mapping[str, Any], facts: ImageFacts) -> None:
    """Raise RequestError if the image has no such user or group; numbers need no entry.

    Source: `docker run --user`, and the image's own USER by default.
    """
    user, _, group = (spec.user or (image.get("Config") or {}).get("User") or "").partition(":")
    for what, name, known in (("user", user, facts.users), ("group", group, facts.groups)):
        if not name or name in known or (name.isdecimal() and int(name) <= _LARGEST_ID):
            continue
        if name.isdecimal():
            raise RequestError(f"{what} {name} is too large a number", hint=f"the largest is {_LARGEST_ID}")
        raise RequestError(
            f"the image {spec.image} knows no {what} {name!r}",
            hint=f"write --user UID[:GID] in numbers, or one of: {', '.join(known) or 'none'}",
        )


def refuse_more_than_the_machine_has(spec: JobSpec, engine: Mapping[str, Any]) -> None:
    """Raise RequestError if a container requests more host memory than the machine has.

    Args:
        spec: The job.
        engine: The response of `GET /info`.
    """
    has_bytes = int(engine.get("MemTotal") or 0)
    if spec.host_memory_bytes is not None and spec.host_memory_bytes > has_bytes:
        raise RequestError(
            f"{format_memory(spec.host_memory_bytes)} of host memory are more than this machine's"
            f" {format_memory(has_bytes)}"
        )


def refuse_old_libc(spec: JobSpec, facts: ImageFacts, needed_glibc: tuple[int, int] | None) -> None:
    """Raise RequestError if the image's C library cannot load the shim.

    A musl image passes: the shim loads there without breaking a process, and there is no CUDA for musl.
    """
    if facts.libc != "glibc" or needed_glibc is None:
        return
    if facts.glibc_version is None:
        raise RequestError(f"the image {spec.image} has a C library whose version cannot be read")
    if facts.glibc_version < needed_glibc:
        raise RequestError(
            f"the image {spec.image} has glibc {_dotted(facts.glibc_version)}, and this build of pgpu needs"
            f" {_dotted(needed_glibc)} or newer",
            hint="install pgpu's wheel, which needs glibc 2.17, or use a newer image",
        )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


_DOMAIN_PART = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_DOMAIN = rf"(?:{_DOMAIN_PART}(?:\.{_DOMAIN_PART})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_TAG = r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}"
_DIGEST = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
_REFERENCE = re.compile(rf"(?:{_DOMAIN}/)?{_COMPONENT}(?:/{_COMPONENT})*(?::{_TAG})?(?:@{_DIGEST})?")
"""Source: the grammar of distribution/reference, which Docker and Podman use; an image's ID matches it too."""

_LONGEST = 255 + 1 + 128 + 1 + 256
"""A name, a tag and a digest. Source: the same; names are limited to 255."""

_ID = re.compile(r"sha256:[0-9a-f]{64}")


def refuse_bad_reference(image: str) -> None:
    """Raise RequestError if a text is not a valid image name."""
    if len(image) > _LONGEST or not _REFERENCE.fullmatch(image):
        shown = image if len(image) <= _LONGEST else f"{image[:64]}…"
        raise RequestError(
            f"{shown!r} is not an image's name", hint="write [HOST[:PORT]/]NAME[:TAG][@DIGEST], in small letters"
        )


def is_image_id(text: object) -> bool:
    """True for the ID of an image; containers and volumes have other formats."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None
