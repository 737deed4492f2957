"""Types of other libraries in JSON and msgpack: NumPy arrays, pydantic models, tensors with `tolist()`.

None of these libraries is imported here; a handler that uses one has imported it already.
"""

import sys
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from pgpu.errors import RequestError
from pgpu.functions.handler import Parameter

_READABLE = "take bytes, numbers, text, lists, dataclasses, TypedDicts, msgspec or pydantic models, or numpy arrays"


def decode_library_type(kind: Any, plain: Any) -> Any:
    """Make a value of a library's type from plain values; msgspec's `dec_hook`.

    Raises:
        ValueError: The plain value does not fit; the text is for the caller, and msgspec appends the path.
    """
    if is_array(kind):
        return array_of(plain, dtype_of(kind))
    if _is_model(kind):
        return _make_model(kind, plain)
    if isinstance(plain, kind):
        return plain
    return kind(plain)


def encode_library_type(value: Any) -> Any:
    """Make plain values from a value of a library's type; msgspec's `enc_hook`.

    Raises:
        TypeError: The type has no plain form.
    """
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a result of type {type(value).__name__} has no form in JSON")


def check_readable(parameter: Parameter) -> None:
    """Check before the first request that values of a parameter's type can be decoded.

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


def is_array(kind: Any) -> bool:
    """Whether a type is a NumPy array, also with a dtype, annotated or optional."""
    numpy = sys.modules.get("numpy")
    bare = bare_type(kind)
    return numpy is not None and (typing.get_origin(bare) or bare) is numpy.ndarray


def bare_type(kind: Any) -> Any:
    """Return a type without annotations and without an alternative `None`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return bare_type(arguments[0])
    rest = [each for each in arguments if each is not type(None)]
    return bare_type(rest[0]) if origin in {typing.Union, types.UnionType} and len(rest) == 1 else kind


def dtype_of(kind: Any) -> Any:
    """Return the dtype of `NDArray[np.float32]`; None for a plain `ndarray`."""
    arguments = typing.get_args(bare_type(kind))
    inner = typing.get_args(arguments[1]) if len(arguments) > 1 else ()
    return inner[0] if inner and isinstance(inner[0], type) else None


def array_of(plain: Any, dtype: Any) -> Any:
    """Make an array from nested lists; with a dtype, precision may be lost, but no integer changes its value.

    Raises:
        ValueError: The lists are ragged, or hold something other than numbers of this dtype.
    """
    numpy = sys.modules["numpy"]
    try:
        array = numpy.asarray(plain)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError("Expected a rectangular array of numbers") from error
    if array.dtype.kind not in "biuf":
        raise ValueError("Expected a rectangular array of numbers")
    if dtype is None:
        return array
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


def _make_model(kind: Any, plain: Any) -> Any:
    pydantic = sys.modules["pydantic"]
    try:
        return kind.model_validate(plain)
    except pydantic.ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)[:5]
        paths = (".".join(str(part) for part in each["loc"]) or "the model" for each in wrong)
        raise ValueError(
            "; ".join(f"{each['msg']} (at {path})" for each, path in zip(wrong, paths, strict=True))
        ) from None


def _unknown_types(info: Any, seen: set[int] | None = None) -> Iterator[type]:
    """Walk msgspec's description of a type and yield the types that neither msgspec nor this module decodes."""
    seen = set() if seen is None else seen
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        kind, numpy = info.cls, sys.modules.get("numpy")
        is_numpys = numpy is not None and issubclass(kind, (numpy.ndarray, numpy.generic))
        if kind is not object and not is_numpys and not _is_model(kind):
            yield kind
    for name in getattr(info, "__struct_fields__", ()):
        inner = getattr(info, name)
        for each in inner if isinstance(inner, tuple) else (inner,):
            if isinstance(each, (msgspec.inspect.Type, msgspec.inspect.Field)):
                yield from _unknown_types(each, seen)
