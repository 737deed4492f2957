"""V2's data types, what each is in Python, in `struct` and in NumPy, and how one array of JSON holds them.

It refuses to round: a number that its type cannot hold is an error of the caller.
"""

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from types import GenericAlias
from typing import Annotated, Any, NamedTuple

import msgspec


class Datatype(NamedTuple):
    """One data type of V2."""

    code: str
    """Of `struct`, little endian; empty for BYTES, whose elements have no size."""

    numpy: str
    """Of NumPy; empty where it has none."""

    element: Any
    """What JSON's elements must be."""

    size_bytes: int


def _integer(bits: int, *, is_signed: bool) -> Any:
    least = -(2 ** (bits - 1)) if is_signed else 0
    most = 2 ** (bits - is_signed) - 1
    return Annotated[int, msgspec.Meta(ge=least, le=most) if bits < 64 else msgspec.Meta(ge=max(least, -(2**63)))]  # noqa: PLR2004 - msgspec's own bounds have 64 bits


DATATYPES = {
    "BOOL": Datatype("?", "?", bool, 1),
    "UINT8": Datatype("B", "<u1", _integer(8, is_signed=False), 1),
    "UINT16": Datatype("H", "<u2", _integer(16, is_signed=False), 2),
    "UINT32": Datatype("I", "<u4", _integer(32, is_signed=False), 4),
    "UINT64": Datatype("Q", "<u8", _integer(64, is_signed=False), 8),
    "INT8": Datatype("b", "<i1", _integer(8, is_signed=True), 1),
    "INT16": Datatype("h", "<i2", _integer(16, is_signed=True), 2),
    "INT32": Datatype("i", "<i4", _integer(32, is_signed=True), 4),
    "INT64": Datatype("q", "<i8", _integer(64, is_signed=True), 8),
    "FP16": Datatype("e", "<f2", float, 2),
    "BF16": Datatype("H", "", float, 2),
    "FP32": Datatype("f", "<f4", float, 4),
    "FP64": Datatype("d", "<f8", float, 8),
    "BYTES": Datatype("", "", str, 0),
}

MOST_DIMENSIONS = 32
"""NumPy's own limit before its version 2."""

_OPENING = re.compile(rb"[\s\[]*")


def count_of(shape: Sequence[int]) -> int:
    """How many elements a shape has."""
    return math.prod(shape)


def elements_of_json(raw: bytes, datatype: str, shape: Sequence[int]) -> list[Any]:
    """Read a tensor's `data`, flat or nested as its shape.

    Raises:
        ValueError: It is not of this type and shape; in words for the caller.
        msgspec.DecodeError: It is malformed.
    """
    opening = _OPENING.match(raw)
    depth = opening[0].count(b"[") if opening else 0
    if depth not in {0, 1, len(shape)}:
        raise ValueError("its data is neither flat nor nested like its shape")
    elements = _decoder(datatype, depth).decode(raw)
    flat = _flattened(elements, shape) if depth > 1 else elements if depth else [elements]
    if len(flat) != count_of(shape):
        raise ValueError(f"its data has {len(flat)} elements and its shape {count_of(shape)}")
    return flat


@lru_cache(256)
def _decoder(datatype: str, depth: int) -> "msgspec.json.Decoder[Any]":
    kind = DATATYPES[datatype].element
    for _ in range(depth):
        kind = GenericAlias(list, (kind,))
    return msgspec.json.Decoder(kind)


def _flattened(nested: list[Any], shape: Sequence[int]) -> list[Any]:
    level = [nested]
    for length in shape[:-1]:
        if any(len(each) != length for each in level):
            raise ValueError("its data is not nested like its shape")
        level = list(chain.from_iterable(level))
    if any(len(each) != shape[-1] for each in level):
        raise ValueError("its data is not nested like its shape")
    return list(chain.from_iterable(level))


def nested(flat: Sequence[Any], shape: Sequence[int]) -> Any:
    """Nest elements as a shape says; a scalar for the shape of a scalar."""
    if not shape:
        return flat[0]
    level: list[Any] = list(flat)
    for length in reversed(shape[1:]):
        level = [level[at : at + length] for at in range(0, len(level), length)] if length else []
    return level
