"""Types of other libraries in JSON and msgpack: NumPy's arrays, pydantic's models, tensors that know `tolist()`.

It refuses to import any of them: a handler that uses one has imported it.
"""

import sys
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from pgpu.errors import RequestError
from pgpu.functions.handler import Parameter


def decode_library_type(kind: Any, plain: Any) -> Any:
    """Make a value of a foreign type out of plain ones.

    Raises:
        ValueError: The plain value does not fit, said in words for the caller; msgspec adds the path.
    """
    if is_array(kind):
        return array_of(plain, dtype_of(kind))
    if _is_model(kind):
        return _model_of(kind, plain)
    if isinstance(plain, kind):
        return plain
    return kind(plain)


def encode_library_type(value: Any) -> Any:
    """Make plain values out of one of a foreign type.

    Raises:
        TypeError: It is of a type that has no plain form.
    """
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a result of type {type(value).__name__} has no form in JSON")


def check_readable(parameter: Parameter) -> None:
    """Find out before the first request whether values of a parameter's type can be made at all.

    Raises:
        RequestError: They cannot.
    """
    try:
        unknown = next(_unknown_types(msgspec.inspect.type_info(parameter.annotation)), None)
        msgspec.json.Decoder(parameter.annotation)
    except TypeError as error:
        raise RequestError(f"parameter {parameter.name}: {error}", hint=_READABLE) from error
    if unknown is not None:
        raise RequestError(f"parameter {parameter.name}: no request can hold a {unknown.__name__}", hint=_READABLE)


_READABLE = "take bytes, numbers, text, lists, dataclasses, TypedDicts, msgspec or pydantic models, or numpy arrays"


def is_array(kind: Any) -> bool:
    """Whether a type is NumPy's array, with or without a dtype, annotated or optional too."""
    numpy = sys.modules.get("numpy")
    bare = bare_type(kind)
    return numpy is not None and (typing.get_origin(bare) or bare) is numpy.ndarray


def bare_type(kind: Any) -> Any:
    """A type without its annotations, and without the `None` that it may be instead."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return bare_type(arguments[0])
    rest = [each for each in arguments if each is not type(None)]
    return bare_type(rest[0]) if origin in {typing.Union, types.UnionType} and len(rest) == 1 else kind


def dtype_of(kind: Any) -> Any:
    """The dtype that `NDArray[np.float32]` names; None for a plain `ndarray`."""
    arguments = typing.get_args(bare_type(kind))
    inner = typing.get_args(arguments[1]) if len(arguments) > 1 else ()
    return inner[0] if inner and isinstance(inner[0], type) else None


def array_of(plain: Any, dtype: Any) -> Any:
    """Make an array out of nested lists.

    Raises:
        ValueError: They are ragged, or hold what is no number of this dtype.
    """
    numpy = sys.modules["numpy"]
    try:
        array = numpy.asarray(plain)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError("Expected a rectangular array of numbers") from error
    if array.dtype.kind not in "biuf":
        raise ValueError("Expected a rectangular array of numbers")
    return array if dtype is None else _cast(numpy, array, dtype)


def _cast(numpy: Any, array: Any, dtype: Any) -> Any:
    """Change an array's dtype; precision may be lost, as it always is, but no number becomes another one."""
    is_whole = array.dtype.kind in "biu" and numpy.dtype(dtype).kind in "iu"
    if array.size and not is_whole and not numpy.can_cast(array.dtype, dtype, "same_kind"):
        raise ValueError(f"Expected numbers of type {dtype.__name__}")
    try:
        with numpy.errstate(over="raise"):
            cast = array.astype(dtype)
    except FloatingPointError as error:
        raise ValueError(f"Expected numbers that {dtype.__name__} can hold") from error
    if is_whole and not numpy.array_equal(cast, array):
        raise ValueError(f"Expected numbers that {dtype.__name__} can hold")
    return cast


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate")


def _model_of(kind: Any, plain: Any) -> Any:
    pydantic = sys.modules["pydantic"]
    try:
        return kind.model_validate(plain)
    except pydantic.ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)
        raise ValueError("; ".join(f"{each['msg']} (at {_path(each['loc'])})" for each in wrong[:5])) from None


def _path(location: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in location) or "the model"


def _unknown_types(info: Any, seen: set[int] | None = None) -> Iterator[type]:
    """Walk a type as msgspec sees it, down to the types that neither it nor this module knows."""
    seen = set() if seen is None else seen
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType) and not _is_known(info.cls):
        yield info.cls
    for name in getattr(info, "__struct_fields__", ()):
        inner = getattr(info, name)
        for each in inner if isinstance(inner, tuple) else (inner,):
            if isinstance(each, (msgspec.inspect.Type, msgspec.inspect.Field)):
                yield from _unknown_types(each, seen)


def _is_known(kind: type) -> bool:
    numpy = sys.modules.get("numpy")
    is_numpys = numpy is not None and issubclass(kind, (numpy.ndarray, numpy.generic))
    return kind is object or is_numpys or _is_model(kind)
