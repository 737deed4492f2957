"""A declaration as people write it: in the decorator, in `pgpu.toml`, in JSON. One reader for all three.

A number is in the field's plain unit (bytes, seconds, 0 to 1), text is read by `pgpu.units`. It refuses to guess: a
word that it does not know is an error, since a misspelt `memory` must not become a function without a limit.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches

from pgpu.errors import RequestError
from pgpu.functions.api.declaration import Batch, Declaration
from pgpu.units import parse_bytes, parse_compute_share, parse_duration_seconds, parse_memory_bytes, quoted

_OF_A_SLICE = {"memory", "compute"}


def parse_declaration(words: Mapping[str, object], base: Declaration | None = None) -> Declaration:
    """Read a declaration.

    Args:
        words: What is said, such as `{"memory": "4GiB", "concurrency": 2}`.
        base: What was said before; the words go over it one by one, and None takes one back. `gpus: 0` takes back the
            slice, too.

    Raises:
        RequestError: A word that is not known, or a value that it cannot have.
    """
    said = _before(base, words) | dict(words)
    values = {_field_of(word): _read(word, value) for word, value in said.items() if value is not None}
    if "gpus" not in values and ("memory_bytes" in values or "compute_share" in values):
        values["gpus"] = 1
    return Declaration(**values)  # type: ignore[arg-type] # each reader returns its field's type


def dump_declaration(declaration: Declaration) -> dict[str, object]:
    """Write a declaration so that `from_words` reads it back; plain JSON values, without what is as by default."""
    words = {word: getattr(declaration, field) for word, (field, _) in _READERS.items()}
    default = {word: getattr(_DEFAULT, field) for word, (field, _) in _READERS.items()}
    differing = {word: value for word, value in words.items() if value != default[word]}
    return {word: _plain(value) for word, value in differing.items()} | _stated_gpus(declaration)


def _before(base: Declaration | None, words: Mapping[str, object]) -> dict[str, object]:
    said = {} if base is None else dump_declaration(base)
    is_without_gpu = words.get("gpus") == 0
    return {word: value for word, value in said.items() if not (is_without_gpu and word in _OF_A_SLICE)}


def _stated_gpus(declaration: Declaration) -> dict[str, object]:
    return {"gpus": declaration.gpus} if declaration.gpus else {}


def _plain(value: object) -> object:
    if isinstance(value, Batch):
        return {"max_size": value.max_size, "max_wait": value.max_wait_seconds}
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _field_of(word: str) -> str:
    if word not in _READERS:
        near = get_close_matches(word, _READERS, 1, 0.5)
        raise RequestError(
            f"{quoted(word)} is nothing that a function says about itself",
            hint=f"did you mean {near[0]}?" if near else f"known: {', '.join(_READERS)}",
        )
    return _READERS[word][0]


def _read(word: str, value: object) -> object:
    try:
        return _READERS[word][1](value)
    except RequestError as error:
        raise RequestError(f"{word}: {error}", hint=error.hint) from error


def _amount(read_text: Callable[[str], float], example: str) -> Callable[[object], float]:
    def read(value: object) -> float:
        if isinstance(value, str):
            return read_text(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:  # noqa: PLR0124 - NaN
            return value
        raise RequestError(f"{quoted(str(value))} is not an amount", hint=f"write it like {example}")

    return read


def _bytes(read_text: Callable[[str], int]) -> Callable[[object], int]:
    read = _amount(read_text, '"4GiB"')

    def whole(value: object) -> int:
        amount = read(value)
        return _whole(amount)

    return whole


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{quoted(str(value))} is not a whole number", hint="write it like 2")
    return value


def _yes_or_no(value: object) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{quoted(str(value))} is neither true nor false", hint="write True or False")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise RequestError(f"{quoted(str(value))} is not text", hint='write it like "auto"')
    return value


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise RequestError(f"{quoted(str(value))} is not a list", hint='write it like ["numpy", "pillow>=10"]')
    return tuple(_text(each) for each in value)


def _keywords(value: object) -> dict[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise RequestError(f"{quoted(str(value))} is not a table", hint='write it like {"weights": "ssd.onnx"}')
    return dict(value)


def _batch(value: object) -> Batch:
    if isinstance(value, Batch):
        return value
    if isinstance(value, Mapping):
        return _batch_of_table(value)
    return Batch(_whole(value))


def _batch_of_table(table: Mapping[str, object]) -> Batch:
    unknown = sorted(set(table) - {"max_size", "max_wait"})
    if unknown or "max_size" not in table:
        wrong = f"{quoted(str(unknown[0]))} is not known" if unknown else "max_size is missing"
        raise RequestError(wrong, hint="write it like {max_size = 16, max_wait = 0}")
    return Batch(_whole(table["max_size"]), _seconds(table.get("max_wait", 0.0)))


_seconds = _amount(parse_duration_seconds, '"30s"')
_READERS: dict[str, tuple[str, Callable[[object], object]]] = {
    "memory": ("memory_bytes", _bytes(parse_memory_bytes)),
    "compute": ("compute_share", _amount(parse_compute_share, '"30%"')),
    "gpus": ("gpus", _whole),
    "host_memory": ("host_memory_bytes", _bytes(parse_memory_bytes)),
    "concurrency": ("concurrency", _whole),
    "batch": ("batch", _batch),
    "timeout": ("timeout_seconds", _seconds),
    "startup_timeout": ("startup_timeout_seconds", _seconds),
    "idempotent": ("is_idempotent", _yes_or_no),
    "queue_limit": ("queue_limit", _whole),
    "max_body": ("max_body_bytes", _bytes(parse_bytes)),
    "minimum": ("minimum", _whole),
    "maximum": ("maximum", _whole),
    "idle": ("idle_seconds", _seconds),
    "keep_warm": ("keep_warm", _text),
    "network": ("network", _text),
    "public": ("is_public", _yes_or_no),
    "requirements": ("requirements", _texts),
    "arguments": ("arguments", _keywords),
    "asgi": ("is_asgi", _yes_or_no),
}
"""The words, the field of each, and who reads its value."""

_DEFAULT = Declaration()
_UNSAID = {each.name for each in fields(Declaration)} - {field for field, _ in _READERS.values()}
assert not _UNSAID, f"fields that no word says: {_UNSAID}"  # noqa: S101 - a new field without a word ends every test
