"""What a container asks for, and whether it was its user who asked.

An annotation beats a variable. A variable that stands in the image with the same value was not asked for by whoever
started the container: it counts as the image's, which asks for nothing unless the operator lets images ask.
"""

from collections.abc import Callable
from typing import Any

from pgpu.app.oci.refusing import RefusedError
from pgpu.errors import PgpuError
from pgpu.units import parse_compute_share, parse_duration_seconds, parse_memory_bytes

_NAMES = {
    "memory": "PGPU_MEMORY",
    "gpus": "PGPU_GPUS",
    "compute": "PGPU_COMPUTE",
    "strict": "PGPU_STRICT",
    "sharing": "PGPU_SHARING",
    "wait-timeout": "PGPU_WAIT_TIMEOUT",
}
MODES = ("time-slice", "exclusive", "mps", "auto")
"""Sharing modes that a container can ask for: all that `pgpu run` knows."""

_EXCLUSIVE, _MPS, _AUTO = MODES[1:]

_MOST_GPUS = 16
_OWN_GPUS = "leave out --gpus and --device: the runtime pgpu brings the GPU that it grants"


class GpuRequest:
    """An amount of GPU memory that a container is to have."""

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
        """None waits for ever, or as long as the settings say where `has_timeout` is false."""

        self.has_timeout = has_timeout
        self.compute_share = compute_share
        self.is_strict = is_strict
        self.sharing = sharing
        """One of `MODES`."""


def parse_gpu_request(
    configuration: dict[str, Any], image_environment: Callable[[], list[str]], *, images_may_ask: bool
) -> GpuRequest | None:
    """Read what a container's configuration asks for; None if it asks for no GPU.

    Args:
        configuration: The content of `config.json`.
        image_environment: Tells the variables of its image; only called where a variable asks.
        images_may_ask: Whether those may ask, too.

    Raises:
        RefusedError: It cannot be read, or a GPU is asked for in another way as well.
    """
    annotations = configuration.get("annotations") or {}
    words = {key: annotations[f"pgpu.{key}"] for key in _NAMES if f"pgpu.{key}" in annotations}
    missing = {variable: key for key, variable in _NAMES.items() if key not in words}
    settings = [word for word in _environment(configuration) if word.partition("=")[0] in missing]
    if settings and not images_may_ask:
        of_the_image = set(image_environment())
        settings = [word for word in settings if word not in of_the_image]
    for word in settings:
        name, _, value = word.partition("=")
        words[missing[name]] = value
    if not words.get("memory"):
        return None
    _refuse_other_gpus(configuration)
    ask = _read(words)
    if ask.sharing == _MPS:
        _refuse_mps(ask, configuration)
    if ask.sharing == _AUTO and _has_other_users(configuration):
        ask.sharing = MODES[0]
    return ask


def _environment(configuration: dict[str, Any]) -> list[str]:
    return list((configuration.get("process") or {}).get("env") or [])


def _read(words: dict[str, str]) -> GpuRequest:
    try:
        wait = words.get("wait-timeout")
        return GpuRequest(
            parse_memory_bytes(words["memory"]),
            _gpu_count(words.get("gpus", "1")),
            None if wait in {None, "forever"} else parse_duration_seconds(str(wait)),
            has_timeout=wait is not None,
            **_compute(words),
        )
    except PgpuError as exc:
        raise RefusedError(str(exc), hint=exc.hint) from exc


def _compute(words: dict[str, str]) -> dict[str, Any]:
    share, strict, sharing = words.get("compute"), words.get("strict", "0"), words.get("sharing") or MODES[0]
    if strict not in {"", "0", "1"}:
        raise RefusedError(f"PGPU_STRICT={strict!r} is neither 0 nor 1", hint="write PGPU_STRICT=1")
    if sharing not in MODES:
        raise RefusedError(
            f"PGPU_SHARING={sharing!r} is no sharing mode", hint=f"write {', '.join(MODES[:-1])} or {MODES[-1]}"
        )
    if strict == "1" and not share:
        raise RefusedError("PGPU_STRICT needs a share that it holds to", hint="add PGPU_COMPUTE=30%")
    if sharing == _EXCLUSIVE and share:
        raise RefusedError("PGPU_COMPUTE and PGPU_SHARING=exclusive were both asked for", hint="leave one of them out")
    return {
        "compute_share": parse_compute_share(share) if share else None,
        "is_strict": strict == "1",
        "sharing": sharing,
    }


def _gpu_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_GPUS:
        raise RefusedError(f"PGPU_GPUS={text!r} is no number of GPUs", hint=f"write 1 to {_MOST_GPUS}")
    return int(text)


def _refuse_mps(ask: GpuRequest, configuration: dict[str, Any]) -> None:
    """Refuse whom MPS can never take: a server takes one user's clients, as this machine knows users."""
    if ask.gpu_count > 1:
        raise RefusedError("MPS is for containers on one GPU", hint="leave PGPU_GPUS or PGPU_SHARING out")
    if _has_other_users(configuration):
        raise RefusedError(
            "under MPS a container's users must be this machine's, and the engine maps them to others",
            hint="start it with --userns=host, or leave PGPU_SHARING out",
        )


def _has_other_users(configuration: dict[str, Any]) -> bool:
    """Whether the engine maps the container's users to others, so that none of its programs could be a client of MPS."""
    return bool((configuration.get("linux") or {}).get("uidMappings"))


def _refuse_other_gpus(configuration: dict[str, Any]) -> None:
    """Refuse what would give the container whole GPUs beside its slice."""
    for stage in (configuration.get("hooks") or {}).values():
        if any("nvidia" in str(hook.get("path", "")) for hook in stage or ()):
            raise RefusedError("PGPU_MEMORY and --gpus were both asked for", hint=_OWN_GPUS)
    for device in (configuration.get("linux") or {}).get("devices") or ():
        if str(device.get("path", "")).startswith("/dev/nvidia"):
            raise RefusedError(f"PGPU_MEMORY and the device {device['path']} were both asked for", hint=_OWN_GPUS)
