"""JSON codec for structs and errors, shared by the server and its clients.

Generic over structs, so that a new field needs no code here. Unknown fields are skipped and missing ones take their
default, so that neighbouring versions understand each other. Bytes that are no UTF-8 are escaped surrogates, as in the ledger.
An error keeps its class, message and hint across the wire.
"""

import json
import json.scanner
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from pgpu.errors import PgpuBug, PgpuError, RequestError
from pgpu.structs import FieldInfo, Struct, asdict, encode_json, fields

T = TypeVar("T")

_SCALARS = (str, int, float, bool)
_LARGE_BYTES = 1 << 18
_MOST_INTEGER = (1 << 63) - 1
"""The ledger's largest (SQLite's 64-bit integers)."""


def encode_error(error: PgpuError) -> dict[str, Any]:
    """Describe an error; `kinds` are its classes, the narrowest first."""
    return {
        "error": {
            "kinds": [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, PgpuError)],
            "message": str(error),
            "hint": error.hint,
            "nearest_bytes": error.nearest_bytes if isinstance(error, RequestError) else None,
        }
    }


def decode_error(data: Any) -> PgpuError:
    """Make an error of the narrowest class that this version has; `PgpuBug` if `data` describes none."""
    try:
        fields = data["error"]
        message, hint, kinds = str(fields["message"]), fields.get("hint"), list(fields["kinds"])
    except (TypeError, KeyError):
        return PgpuBug("the server's answer cannot be understood", hint="are both sides of one version?")
    known = {kind.__name__: kind for kind in _classes(PgpuError)}
    kind = next((known[name] for name in kinds if name in known), PgpuError)
    if issubclass(kind, RequestError):
        return kind(message, hint=hint, nearest_bytes=fields.get("nearest_bytes"))
    return kind(message, hint=hint)


def _classes(root: type[PgpuError]) -> Iterator[type[PgpuError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _classes(kind)


def encode(value: Any) -> bytes:
    """Return a value, or a structure of them, as JSON."""
    # Of ten thousand jobs, the standard library's encoder would keep all other threads waiting for a second.
    with suppress(UnicodeEncodeError):  # a lone surrogate, which only the standard library writes
        return encode_json(value)
    return json.dumps(value, default=_plain, ensure_ascii=True, separators=(",", ":")).encode("ascii")


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} cannot be encoded")


def parse(data: bytes) -> Any:
    """Parse JSON.

    Raises:
        RequestError: It is not JSON.
    """
    try:
        if len(data) <= _LARGE_BYTES:
            return json.loads(data, parse_constant=_refuse_constant)
        # The C scanner holds the GIL for up to a second on 16 MiB of small values; the Python one lets other threads run.
        decoder = json.JSONDecoder(parse_constant=_refuse_constant)
        decoder.scan_once = json.scanner.py_make_scanner(decoder)  # type: ignore[attr-defined] # absent from typeshed
        return decoder.decode(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as exc:
        raise RequestError(f"this is no JSON: {exc}") from exc


def _refuse_constant(word: str) -> Any:
    # NaN and infinities: Python's JSON accepts them, the standard does not, and no field of ours may have them.
    raise ValueError(f"{word} is no number")


def decode(kind: type[T], data: Any, place: str = "") -> T:
    """Convert parsed JSON to a typed value.

    Args:
        kind: A struct, or what the fields of one may be: plain types, tuples, enumerations, literals, unions.
        data: Parsed JSON.
        place: Its path in the message, for the error.

    Raises:
        RequestError: It is no such value; the message names the place.
    """
    return cast("T", _convert(kind, data, place))


def _convert(kind: Any, data: Any, place: str) -> Any:  # noqa: PLR0911 - one line for each kind of type
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _convert_struct(kind, data, place)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType}:
        return _convert_union(arguments, data, place)
    if origin is tuple:
        return _convert_tuple(arguments, data, place)
    if origin is Literal:
        return data if data in arguments else _refuse(f"one of {', '.join(map(str, arguments))}", place)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data) if data in {member.value for member in kind} else _refuse(f"a {kind.__name__}", place)
    if kind is types.NoneType:
        return None if data is None else _refuse("null", place)
    return _convert_scalar(kind, data, place)


def _convert_scalar(kind: Any, data: Any, place: str) -> Any:
    if kind is float and isinstance(data, int) and not isinstance(data, bool) and abs(data) < 1 << 1023:
        return float(data)
    if kind not in _SCALARS:
        raise TypeError(f"{kind} cannot be encoded")
    # `type() is`, not isinstance: a bool is an int in Python, and no number in JSON.
    is_storable = not isinstance(data, int) or -_MOST_INTEGER <= data <= _MOST_INTEGER
    return data if type(data) is kind and is_storable else _refuse(f"a {kind.__name__}", place)


def _convert_struct(kind: type[Struct], data: Any, place: str) -> Any:
    if not isinstance(data, Mapping):
        _refuse("an object", place)
    found = _fields_of(kind)
    for each in found:
        if each.required and each.name not in data:
            _refuse("there", f"{place}.{each.name}")
    # Fields of `data` that this version does not have are skipped.
    present = [each for each in found if each.name in data]
    return kind(**{each.name: _convert(each.type, data[each.name], f"{place}.{each.name}") for each in present})


@cache  # `fields` evaluates annotations, which costs more than the conversion itself.
def _fields_of(kind: type[Struct]) -> tuple[FieldInfo, ...]:
    return fields(kind)


def _convert_tuple(arguments: Sequence[Any], data: Any, place: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        _refuse("a list", place)
    if len(arguments) == 2 and arguments[1] is Ellipsis:  # noqa: PLR2004 - tuple[X, ...]
        return tuple(_convert(arguments[0], item, f"{place}[{index}]") for index, item in enumerate(data))
    if len(data) != len(arguments):
        _refuse(f"a list of {len(arguments)}", place)
    return tuple(_convert(kind, item, place) for kind, item in zip(arguments, data, strict=True))


def _convert_union(arguments: Sequence[Any], data: Any, place: str) -> Any:
    # At most one struct of a union has all its required fields in `data`: those of our unions share none.
    if data is None and types.NoneType in arguments:
        return None
    refusal: RequestError | None = None
    for kind in arguments:
        if kind is types.NoneType:
            continue
        try:
            return _convert(kind, data, place)
        except RequestError as exc:
            refusal = refusal or exc
    raise refusal or RequestError(f"{place.lstrip('.') or 'the message'} is nothing that can be read")


def _refuse(what: str, place: str) -> Any:
    raise RequestError(f"{place.lstrip('.') or 'the message'} is not {what}")
