"""The GPU request of a container: read from its `config.json`, and from its image through the engine's socket.

An annotation overrides a variable. A variable that the image sets to the same value counts as the image's own, not as
set by the command that started the container; it requests nothing unless the setting `image_requests` allows it.

Only a Docker engine can distinguish the two. It holds the container's lock while it waits for its runtime, so only calls
that need no lock are made: the list of containers, which is read from a copy, and the image. Their paths name no version: engines
end old ones (Docker 29 those before 1.44).
"""

from __future__ import annotations

import _socket  # `socket` takes 3 ms to import
import json
from collections.abc import Callable
from contextlib import closing

from pgpu.app.oci.runc_call import ContainerRefusedError
from pgpu.errors import PgpuError
from pgpu.units import parse_compute_share, parse_duration_seconds, parse_memory_bytes, quoted

TYPE_CHECKING = False  # `typing` takes 4 ms to import
if TYPE_CHECKING:
    from typing import Any

_NAMES = {
    "memory": "PGPU_MEMORY",
    "gpus": "PGPU_GPUS",
    "compute": "PGPU_COMPUTE",
    "strict": "PGPU_STRICT",
    "sharing": "PGPU_SHARING",
    "wait-timeout": "PGPU_WAIT_TIMEOUT",
}
MODES = ("time-slice", "exclusive", "mps", "auto")
"""Sharing modes of a container: the same as of `pgpu run`."""

_EXCLUSIVE, _MPS, _AUTO = MODES[1:]

_MOST_GPUS = 16
_MOST_DIGITS = 9
_OWN_GPUS_HINT = "leave out --gpus and --device: the runtime pgpu adds the GPU that it grants"
_ENGINE_HINT = (
    "PGPU_MEMORY of an image requests nothing, and only the engine can distinguish it from `docker run -e`: name the engine "
    "with `pgpu install-runtime --engine`, or use `--annotation pgpu.memory=4GiB`"
)
_ENGINE_TIMEOUT_SECONDS = 2.0


class GpuRequest:
    """What a container requests of the GPUs; its attributes are fields of the container's record."""

    def __init__(
        self,
        memory_bytes: int,
        gpu_count: int,
        wait_timeout: float | None,
        *,
        has_timeout: bool,
        compute_share: float | None = None,
        is_strict: bool = False,
        sharing: str = MODES[0],
    ) -> None:
        self.memory_bytes = memory_bytes
        self.gpu_count = gpu_count
        self.wait_timeout_seconds = wait_timeout
        """None waits without limit; where `has_timeout` is false, the settings decide."""

        self.has_timeout = has_timeout
        self.compute_share = compute_share
        self.is_strict = is_strict
        self.sharing = sharing
        """One of `MODES`."""

        self.unconfirmed: list[str] = []
        """Variables that request something unless the image sets them to the same value, which the engine knows."""


class EngineAwayError(ContainerRefusedError):
    """The engine does not answer."""

    is_starting = False
    """Whether it may answer soon: an engine listens before it starts containers, and serves its API only afterwards."""


class ContainerImage:
    """What the engine reports of a container and its image."""

    def __init__(self, name: str, image_id: str, container_name: str, environment: list[str]) -> None:
        self.name = name
        self.id = image_id
        self.container_name = container_name
        self.environment = environment


def parse_gpu_request(
    configuration: dict[str, Any], image_environment: Callable[[], list[str]], *, images_may_ask: bool
) -> GpuRequest | None:
    """Read the request in a container's configuration; None without one.

    Args:
        configuration: The content of `config.json`.
        image_environment: Returns the variables of the image; called only if a variable requests something.
        images_may_ask: Whether variables of images count.

    Raises:
        ContainerRefusedError: The request cannot be read, or whole GPUs are requested as well.
    """
    annotations = configuration.get("annotations") or {}
    words = {key: annotations[f"pgpu.{key}"] for key in _NAMES if f"pgpu.{key}" in annotations}
    missing = {variable: key for key, variable in _NAMES.items() if key not in words}
    environment = (configuration.get("process") or {}).get("env") or []
    settings = [word for word in environment if word.partition("=")[0] in missing]
    if settings and not images_may_ask:
        of_the_image = set(image_environment())
        settings = [word for word in settings if word not in of_the_image]
    for word in settings:
        name, _, value = word.partition("=")
        words[missing[name]] = value
    if not words.get("memory"):
        return None
    _refuse_other_gpus(configuration)
    request = _read(words)
    request.unconfirmed = settings
    # With a user namespace of its own, no program of the container could be a client of an MPS server.
    has_other_users = bool((configuration.get("linux") or {}).get("uidMappings"))
    if request.sharing == _MPS:
        if request.gpu_count > 1:
            raise ContainerRefusedError("MPS is for containers on one GPU", hint="leave PGPU_GPUS or PGPU_SHARING out")
        if has_other_users:
            raise ContainerRefusedError(
                "under MPS a container's users must be this machine's, and the engine maps them to others",
                hint="start it with --userns=host, or leave PGPU_SHARING out",
            )
    # `auto` may choose MPS, which such a container cannot use.
    if request.sharing == _AUTO and has_other_users:
        request.sharing = MODES[0]
    return request


def _refuse_other_gpus(configuration: dict[str, Any]) -> None:
    # `docker run --gpus` adds a hook of NVIDIA's container toolkit, `--device` adds device nodes: both give whole GPUs.
    for stage in (configuration.get("hooks") or {}).values():
        if any("nvidia" in str(hook.get("path", "")) for hook in stage or ()):
            raise ContainerRefusedError("PGPU_MEMORY and --gpus were both requested", hint=_OWN_GPUS_HINT)
    for device in (configuration.get("linux") or {}).get("devices") or ():
        if str(device.get("path", "")).startswith("/dev/nvidia"):
            raise ContainerRefusedError(
                f"PGPU_MEMORY and the device {device['path']} were both requested", hint=_OWN_GPUS_HINT
            )


def _read(words: dict[str, str]) -> GpuRequest:
    try:
        wait, count = words.get("wait-timeout"), words.get("gpus", "1")
        memory_bytes = parse_memory_bytes(words["memory"])
        # The length first: int() raises an error above 4,300 digits.
        if not (count.isdecimal() and len(count) <= _MOST_DIGITS and 1 <= int(count) <= _MOST_GPUS):
            raise ContainerRefusedError(
                f"PGPU_GPUS={quoted(count)} is no number of GPUs", hint=f"write 1 to {_MOST_GPUS}"
            )
        return GpuRequest(
            memory_bytes,
            int(count),
            None if wait in {None, "forever"} else parse_duration_seconds(str(wait)),
            has_timeout=wait is not None,
            **_read_compute(words),
        )
    except PgpuError as exc:
        raise ContainerRefusedError(str(exc), hint=exc.hint) from exc


def _read_compute(words: dict[str, str]) -> dict[str, Any]:
    share, strict, sharing = words.get("compute"), words.get("strict", "0"), words.get("sharing") or MODES[0]
    if strict not in {"", "0", "1"}:
        raise ContainerRefusedError(f"PGPU_STRICT={strict!r} is neither 0 nor 1", hint="write PGPU_STRICT=1")
    if sharing not in MODES:
        raise ContainerRefusedError(
            f"PGPU_SHARING={sharing!r} is no sharing mode", hint=f"write {', '.join(MODES[:-1])} or {MODES[-1]}"
        )
    if strict == "1" and not share:
        raise ContainerRefusedError("PGPU_STRICT needs a share that it holds to", hint="add PGPU_COMPUTE=30%")
    if sharing == _EXCLUSIVE and share:
        raise ContainerRefusedError(
            "PGPU_COMPUTE and PGPU_SHARING=exclusive were both requested", hint="leave one of them out"
        )
    return {
        "compute_share": parse_compute_share(share) if share else None,
        "is_strict": strict == "1",
        "sharing": sharing,
    }


def find_image(engine: str, container_id: str) -> ContainerImage:
    """Return the image of a container that is being created.

    Raises:
        EngineAwayError: The engine does not answer.
        ContainerRefusedError: It has no such container, or does not report the image.
    """
    # {"id":["CONTAINER"]}, percent-encoded by hand: urllib takes milliseconds to import.
    filters = "%7B%22id%22%3A%5B%22" + container_id + "%22%5D%7D"
    found = _get(engine, f"/containers/json?all=1&filters={filters}")
    if not found:
        raise ContainerRefusedError(f"the engine at {engine} knows no container {container_id[:12]}", hint=_ENGINE_HINT)
    image = _get(engine, f"/images/{found[0]['ImageID']}/json")
    names = found[0].get("Names") or [""]
    environment = (image.get("Config") or {}).get("Env") or []
    return ContainerImage(
        str(found[0]["Image"]), str(found[0]["ImageID"]), str(names[0]).lstrip("/"), list(environment)
    )


def _get(engine: str, path: str) -> Any:
    try:
        return json.loads(_get_body(engine, path))
    except OSError as exc:
        error = EngineAwayError(f"the engine at {engine} does not report the image: {exc}", hint=_ENGINE_HINT)
        # The latter: its queue of connections is full.
        error.is_starting = isinstance(exc, TimeoutError | BlockingIOError)
        raise error from exc
    except ValueError as exc:
        raise ContainerRefusedError(
            f"the engine at {engine} does not report the image: {exc}", hint=_ENGINE_HINT
        ) from exc


def _get_body(engine: str, path: str) -> bytes:
    """Send a request by HTTP/1.0: the body is not chunked and ends with the connection."""
    scheme, _, address = engine.partition("://")
    if scheme != "unix":
        raise ValueError("not a Unix socket")
    with closing(_socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)) as connection:
        connection.settimeout(_ENGINE_TIMEOUT_SECONDS)
        connection.connect(address)
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: pgpu\r\n\r\n".encode())
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    if head.split(b" ", 2)[1:2] != [b"200"]:
        raise ValueError(f"it answered {head.splitlines()[0].decode('ascii', 'replace')}" if head else "empty answer")
    return body
