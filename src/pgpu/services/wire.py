"""Our frozen values as JSON and back: what a server and its clients say to each other.

Generic over dataclasses, so that a new field travels without a line here. A field that the reader does not know is
skipped and one that the writer did not send takes its default, so that neighbouring versions understand each other.
JSON is written in ASCII: bytes that are no UTF-8 survive, as they do in the ledger. This module refuses to judge values.
"""

import dataclasses
import json
import json.scanner
import types
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pgpu.errors import RequestError

T = TypeVar("T")

_PLAIN = (str, int, float, bool)
_LARGE_BYTES = 1 << 18
_MOST_INTEGER = (1 << 63) - 1
"""Larger ones find no room in the ledger."""


def encode(value: Any) -> bytes:
    """Return a value, or a structure of them, as JSON."""
    return json.dumps(value, default=_plain, ensure_ascii=True, separators=(",", ":")).encode("ascii")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} does not travel")


def parse(data: bytes) -> Any:
    """Read JSON.

    Raises:
        RequestError: It is none.
    """
    try:
        if len(data) <= _LARGE_BYTES:
            return json.loads(data, parse_constant=_no_number)
        return _interruptible().decode(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as exc:
        raise RequestError(f"this is no JSON: {exc}") from exc


def _interruptible() -> json.JSONDecoder:
    """Return a reader that other threads run beside: the usual one holds them up for a second in 16 MiB of small things."""
    decoder = json.JSONDecoder(parse_constant=_no_number)
    decoder.scan_once = json.scanner.py_make_scanner(decoder)  # type: ignore[attr-defined] # the standard library's own
    return decoder


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def decode(kind: type[T], data: Any, place: str = "") -> T:
    """Make a value of a type out of parsed JSON.

    Args:
        kind: A dataclass, or what the fields of one may be: plain types, tuples, enumerations, literals, unions.
        data: What JSON held.
        place: Where in the message it stood, for the complaint.

    Raises:
        RequestError: It is no such value; says where.
    """
    return cast("T", _decoded(kind, data, place))


def _decoded(kind: Any, data: Any, place: str) -> Any:  # noqa: PLR0911 - one line for each kind of type
    if dataclasses.is_dataclass(kind):
        return _dataclass(cast("type[Any]", kind), data, place)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType}:
        return _first_that_fits(arguments, data, place)
    if origin is tuple:
        return _tuple(arguments, data, place)
    if origin is Literal:
        return data if data in arguments else _refuse(f"one of {', '.join(map(str, arguments))}", place)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data) if data in {member.value for member in kind} else _refuse(f"a {kind.__name__}", place)
    if kind is types.NoneType:
        return None if data is None else _refuse("null", place)
    return _plain_of(kind, data, place)


def _plain_of(kind: Any, data: Any, place: str) -> Any:
    if kind is float and isinstance(data, int) and not isinstance(data, bool) and abs(data) < 1 << 1023:
        return float(data)
    if kind not in _PLAIN:
        raise TypeError(f"{kind} does not travel")
    is_storable = not isinstance(data, int) or -_MOST_INTEGER <= data <= _MOST_INTEGER
    return data if type(data) is kind and is_storable else _refuse(f"a {kind.__name__}", place)


def _dataclass(kind: type[Any], data: Any, place: str) -> Any:
    if not isinstance(data, Mapping):
        _refuse("an object", place)
    hints, fields = _shape(cast("Hashable", kind))
    missing = [
        field.name
        for field in fields
        if field.name not in data
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        _refuse("there", f"{place}.{missing[0]}")
    present = {field.name: data[field.name] for field in fields if field.name in data}
    return kind(**{name: _decoded(hints[name], value, f"{place}.{name}") for name, value in present.items()})


@cache
def _shape(kind: Any) -> tuple[dict[str, Any], tuple[dataclasses.Field[Any], ...]]:
    return get_type_hints(kind), dataclasses.fields(kind)


def _tuple(arguments: Sequence[Any], data: Any, place: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        _refuse("a list", place)
    if len(arguments) == 2 and arguments[1] is Ellipsis:  # noqa: PLR2004 - tuple[X, ...]
        return tuple(_decoded(arguments[0], item, f"{place}[{index}]") for index, item in enumerate(data))
    if len(data) != len(arguments):
        _refuse(f"a list of {len(arguments)}", place)
    return tuple(_decoded(kind, item, place) for kind, item in zip(arguments, data, strict=True))


def _first_that_fits(arguments: Sequence[Any], data: Any, place: str) -> Any:
    """Of several dataclasses only one has all its fields in `data`: those of our unions share none without a default."""
    if data is None and types.NoneType in arguments:
        return None
    refusal: RequestError | None = None
    for kind in arguments:
        if kind is types.NoneType:
            continue
        try:
            return _decoded(kind, data, place)
        except RequestError as exc:
            refusal = refusal or exc
    raise refusal or RequestError(f"{place.lstrip('.') or 'the message'} is nothing that can be read")


def _refuse(what: str, place: str) -> Any:
    raise RequestError(f"{place.lstrip('.') or 'the message'} is not {what}")
