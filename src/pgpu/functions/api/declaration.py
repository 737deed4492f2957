"""A function's declaration: its fields with units in their names, their text form, and the function's name.

The decorator, `pgpu.toml` and JSON use the same text form, so there is one parser: a number is in the field's plain unit
(bytes, seconds, 0 to 1), text is parsed by `pgpu.units`. An unknown field is an error, since a misspelt `memory` must not
become a function without a memory limit.
"""

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches

from pgpu.errors import RequestError
from pgpu.functions.api.surroundings import (
    CacheUse,
    DirectoryMount,
    SecretUse,
    parse_cache,
    parse_command,
    parse_environment,
    parse_mount,
    parse_secret,
)
from pgpu.units import MIB, parse_bytes, parse_compute_share, parse_duration_seconds, parse_memory_bytes, quoted

_DAY_SECONDS = 86400.0
_BOUNDS: dict[str, tuple[float, float]] = {
    "memory_bytes": (MIB, 2**50),
    "compute_share": (0.01, 1),
    "gpus": (0, 64),
    "host_memory_bytes": (64 * MIB, 2**50),
    "concurrency": (1, 1024),
    "timeout_seconds": (0.001, 7 * _DAY_SECONDS),
    "startup_timeout_seconds": (0.001, _DAY_SECONDS),
    "queue_limit": (0, 1_000_000),
    "max_body_bytes": (0, 2**40),
    "min_replicas": (0, 1000),
    "max_replicas": (1, 1000),
    "scale_to_zero_after_seconds": (0, 365 * _DAY_SECONDS),
    "target_concurrency": (1, 65536),
    "max_wait_seconds": (0.001, _DAY_SECONDS),
}

# Parts of URLs, metrics and container names.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?")
_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class FormerKeyWarning(DeprecationWarning):
    """A declaration has a key of the release before."""


def _check_between(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise RequestError(f"{name} is {value:g}", hint=f"{name} is from {least:g} to {most:g}")


@dataclass(frozen=True, slots=True)
class Batch:
    """Several requests are passed to the handler together, as a list.

    Attributes:
        max_size: The most requests in one batch, at least 1.
        max_wait_seconds: How long a free executor waits for more requests. 0: a batch starts as soon as the executor is free,
            with the requests that arrived meanwhile; that is best unless a batch of one costs as much as a full one.
    """

    max_size: int
    max_wait_seconds: float = 0.0

    def __post_init__(self) -> None:
        _check_between("max_size", self.max_size, 1, 65536)
        _check_between("max_wait", self.max_wait_seconds, 0, 60)


@dataclass(frozen=True, slots=True)
class Declaration:
    """Resources, limits and calling mode of a function; every field has a default."""

    memory_bytes: int | None = None
    """GPU memory of a replica on each of its GPUs, CUDA context included; None: estimated, as for a job."""

    compute_share: float | None = None
    """Share of each GPU's time, above 0 to 1; None: not limited."""

    gpus: int = 0
    """GPUs of a replica; 0 is a CPU function. In text form, memory or compute without a number of GPUs means 1."""

    host_memory_bytes: int | None = None
    """Limit of the host memory of a replica's container, its `/tmp` included; None: 4 GiB, the default of sealed containers.
    A process has no such limit."""

    concurrency: int = 1
    """Calls that one replica runs at a time. 1 by default, since most models are not thread-safe."""

    batch: Batch | None = None
    """How requests are batched; None: one at a time."""

    timeout_seconds: float = 60.0
    """How long a request may take, waiting included, unless the caller allows less."""

    startup_timeout_seconds: float = 300.0
    """How long importing and constructing may take; long by default, because weights may lie on slow disks."""

    is_idempotent: bool = False
    """A call may run twice: if a worker dies during one, the call is repeated."""

    queue_limit: int = 100
    """Requests that may wait in one replica; more are answered 429."""

    max_body_bytes: int = 100 * MIB
    """The largest body of a request; a larger one is answered 413."""

    retry_batches: bool = True
    """Whether the calls of a batch that raised run again in halves, so that only those fail that fail alone. False for a handler
    with side effects: then all of them fail."""

    min_replicas: int = 0
    """Replicas that stay without calls; 1 pins a function."""

    max_replicas: int = 1
    """The most replicas."""

    scale_to_zero_after_seconds: float = 300.0
    """How long a replica stays after its last request: loading most models again takes seconds."""

    target_concurrency: int | None = None
    """Calls for which one replica suffices; None: as many as it runs at a time."""

    max_wait_seconds: float = 0.1
    """How long a call may wait before another replica starts. People take 0.1 s for immediate (Nielsen 1993)."""

    network: str | None = None
    """The container's network; None: no network, calls arrive over a Unix socket."""

    is_public: bool = False
    """Calls need no token."""

    requirements: tuple[str, ...] = ()
    """Python packages to install, in pip's syntax."""

    arguments: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments of the constructor."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the replica; in text form `env`."""

    secrets: tuple[SecretUse, ...] = ()
    """Secrets of the owner that a replica gets."""

    mounts: tuple[DirectoryMount, ...] = ()
    """Directories of the server's machine, or volumes of a cluster."""

    cache: CacheUse | None = None
    """A directory that a command has filled, read-only for replicas; None for none."""

    fill: str | None = None
    """Command of a shell that fills the cache, in the source; None: as another version of the owner filled it last."""

    fill_secrets: tuple[SecretUse, ...] = ()
    """Secrets that this command gets; replicas do not."""

    is_asgi: bool = False
    """The callable is an ASGI application and gets every request of its function unchanged. Detected by its parameters."""

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None:
                _check_between(
                    name.removesuffix("_bytes").removesuffix("_seconds").removesuffix("_share"), value, least, most
                )
        if self.min_replicas > self.max_replicas:
            raise RequestError(
                f"min_replicas {self.min_replicas} is above max_replicas {self.max_replicas}",
                hint="raise max_replicas, or lower min_replicas",
            )
        if self.gpus == 0 and (self.memory_bytes is not None or self.compute_share is not None):
            raise RequestError("a function without a GPU has no GPU memory and no compute share", hint="set gpus=1")
        if self.is_asgi and self.batch is not None:
            raise RequestError("an ASGI application takes no batches", hint="leave batch out")
        if self.fill is not None and self.cache is None:
            raise RequestError("fill fills a cache, and none is named", hint='cache="weights:/cache"')
        cached = "" if self.cache is None else f"{self.cache.target}/"
        places = (f"{each.target}/" for each in self.mounts)
        if cached and any(place.startswith(cached) or cached.startswith(place) for place in places):
            raise RequestError(f"a mount and the cache are both at {cached}", hint="mount one of them elsewhere")
        if self.fill_secrets and self.fill is None:
            raise RequestError(
                "fill_secrets are given to the command that fills a cache", hint="secrets are for replicas"
            )


def check_name(name: str) -> str:
    """Return a valid function name unchanged.

    Raises:
        RequestError: The name is not valid.
    """
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{quoted(name)} is not a name of a function",
            hint="up to 63 small letters, digits, - and _, with a letter or digit at both ends",
        )
    return name


def default_name(attribute: str) -> str:
    """Derive a function's name from its callable's: `TextEmbedding` becomes `text-embedding`.

    Raises:
        RequestError: The result is not a valid name.
    """
    words = _WORD_STARTS.sub("-", attribute.rpartition(".")[2])
    return check_name(words.lower().strip("_-"))


def parse_declaration(words: Mapping[str, object], base: Declaration | None = None) -> Declaration:
    """Parse a declaration from its text form.

    Args:
        words: Values by field, such as `{"memory": "4GiB", "concurrency": 2}`.
        base: Defaults, which `words` overrides field by field, and `env` variable by variable; None resets a field. `gpus: 0` also
            resets memory and compute.

    Raises:
        RequestError: A field is unknown, or has an invalid value.
    """
    merged = {} if base is None else dump_declaration(base)
    if words.get("gpus") == 0:
        merged = {word: value for word, value in merged.items() if word not in {"memory", "compute"}}
    merged |= _by_current_names(words)
    if words.get("env") and base is not None:
        merged["env"] = {**base.environment, **parse_environment(words["env"])}
    values = dict(_parse_field(word, value) for word, value in merged.items() if value is not None)
    if "gpus" not in values and ("memory_bytes" in values or "compute_share" in values):
        values["gpus"] = 1
    return Declaration(**values)  # type: ignore[arg-type] # each parser returns its field's type


def _by_current_names(words: Mapping[str, object]) -> dict[str, object]:
    """Return words by today's names; warns of names of before, of which those without a successor are left out."""
    current = {word: value for word, value in words.items() if word not in _NOTES}
    for word in words.keys() & _NOTES.keys():
        if words[word] is not None:
            warnings.warn(_NOTES[word], FormerKeyWarning, stacklevel=3)
            if word in _RENAMED:
                current[_RENAMED[word]] = words[word]
    return current


def _parse_field(word: str, value: object) -> tuple[str, object]:
    if word not in _PARSERS:
        near = get_close_matches(word, _PARSERS, 1, 0.5)
        raise RequestError(
            f"{quoted(word)} is no key of a declaration",
            hint=f"did you mean {near[0]}?" if near else f"known: {', '.join(_PARSERS)}",
        )
    name, parse = _PARSERS[word]
    try:
        return name, parse(value)
    except RequestError as error:
        raise RequestError(f"{word}: {error}", hint=error.hint) from error


def dump_declaration(declaration: Declaration) -> dict[str, object]:
    """Return the text form that `parse_declaration` reads back: JSON values, without the fields that have their defaults."""
    default, words = Declaration(), dict[str, object]()
    for word, (name, _) in _PARSERS.items():
        value = getattr(declaration, name)
        if value == getattr(default, name):
            continue
        if isinstance(value, Batch):
            value = {"max_size": value.max_size, "max_wait": value.max_wait_seconds}
        elif isinstance(value, tuple):
            value = [str(each) for each in value]
        elif isinstance(value, Mapping):
            value = dict(value)
        elif isinstance(value, CacheUse):
            value = str(value)
        words[word] = value
    return words


def dump_served(declaration: Declaration) -> dict[str, object]:
    """Return the text form for the replica's own command line, without what its job gives it: that line is in every list of processes."""
    return {word: value for word, value in dump_declaration(declaration).items() if word not in _OF_THE_JOB}


def _amount_parser(parse_text: Callable[[str], float], example: str) -> Callable[[object], float]:
    def parse(value: object) -> float:
        if isinstance(value, str):
            return parse_text(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:  # noqa: PLR0124 - NaN
            return value
        raise RequestError(f"{quoted(str(value))} is not an amount", hint=f"write it like {example}")

    return parse


def _bytes_parser(parse_text: Callable[[str], int]) -> Callable[[object], int]:
    parse = _amount_parser(parse_text, '"4GiB"')
    return lambda value: _parse_whole(parse(value))


def _parse_whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{quoted(str(value))} is not a whole number", hint="write it like 2")
    return value


def _parse_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{quoted(str(value))} is neither true nor false", hint="write True or False")
    return value


def _parse_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise RequestError(f"{quoted(str(value))} is not text", hint='write it like "bridge"')
    return value


def _parse_texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise RequestError(f"{quoted(str(value))} is not a list", hint='write it like ["numpy", "pillow>=10"]')
    return tuple(_parse_text(each) for each in value)


def _parse_table(value: object) -> dict[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise RequestError(f"{quoted(str(value))} is not a table", hint='write it like {"weights": "ssd.onnx"}')
    return dict(value)


def _parse_batch(value: object) -> Batch:
    if isinstance(value, Batch):
        return value
    if not isinstance(value, Mapping):
        return Batch(_parse_whole(value))
    unknown = sorted(set(value) - {"max_size", "max_wait"})
    if unknown or "max_size" not in value:
        wrong = f"{quoted(str(unknown[0]))} is not known" if unknown else "max_size is missing"
        raise RequestError(wrong, hint="write it like {max_size = 16, max_wait = 0}")
    return Batch(_parse_whole(value["max_size"]), _parse_seconds(value.get("max_wait", 0.0)))


_parse_seconds = _amount_parser(parse_duration_seconds, '"30s"')
_OF_THE_JOB = {"env", "secrets", "mounts", "cache", "fill", "fill_secrets"}
# By the name in text form: the field and the parser of its value.
_PARSERS: dict[str, tuple[str, Callable[[object], object]]] = {
    "memory": ("memory_bytes", _bytes_parser(parse_memory_bytes)),
    "compute": ("compute_share", _amount_parser(parse_compute_share, '"30%"')),
    "gpus": ("gpus", _parse_whole),
    "host_memory": ("host_memory_bytes", _bytes_parser(parse_memory_bytes)),
    "concurrency": ("concurrency", _parse_whole),
    "batch": ("batch", _parse_batch),
    "timeout": ("timeout_seconds", _parse_seconds),
    "startup_timeout": ("startup_timeout_seconds", _parse_seconds),
    "idempotent": ("is_idempotent", _parse_bool),
    "queue_limit": ("queue_limit", _parse_whole),
    "max_body": ("max_body_bytes", _bytes_parser(parse_bytes)),
    "retry_batches": ("retry_batches", _parse_bool),
    "min_replicas": ("min_replicas", _parse_whole),
    "max_replicas": ("max_replicas", _parse_whole),
    "scale_to_zero_after": ("scale_to_zero_after_seconds", _parse_seconds),
    "target_concurrency": ("target_concurrency", _parse_whole),
    "max_wait": ("max_wait_seconds", _parse_seconds),
    "network": ("network", _parse_text),
    "public": ("is_public", _parse_bool),
    "requirements": ("requirements", _parse_texts),
    "arguments": ("arguments", _parse_table),
    "env": ("environment", parse_environment),
    "mounts": ("mounts", lambda value: tuple(parse_mount(each) for each in _parse_texts(value))),
    "cache": ("cache", lambda value: parse_cache(_parse_text(value))),
    "fill": ("fill", parse_command),
    "fill_secrets": ("fill_secrets", lambda value: tuple(parse_secret(each) for each in _parse_texts(value))),
    "secrets": ("secrets", lambda value: tuple(parse_secret(each) for each in _parse_texts(value))),
    "asgi": ("is_asgi", _parse_bool),
}

_RENAMED = {"minimum": "min_replicas", "maximum": "max_replicas", "idle": "scale_to_zero_after"}
_NOTES = {old: f"{old} is now {new}; this release still accepts the old name" for old, new in _RENAMED.items()} | {
    "keep_warm": "keep_warm has no effect any more: min_replicas keeps replicas, scale_to_zero_after ends idle ones"
}

_UNPARSED = {each.name for each in fields(Declaration)} - {name for name, _ in _PARSERS.values()}
assert not _UNPARSED, f"fields without a parser: {_UNPARSED}"  # noqa: S101 - a new field without one fails every test
