"""Data types and tensors of the Open Inference Protocol V2, in JSON, in binary form, and as NumPy arrays.

The number of elements is checked before a tensor is decoded. A number that the type cannot hold is the caller's error; nothing
is rounded or wrapped.
"""

import math
import re
import struct
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from types import GenericAlias
from typing import Annotated, Any, NamedTuple

import msgspec

from pgpu.functions.protocols.body_reader import Buffer


class Datatype(NamedTuple):
    """One data type of V2."""

    code: str
    """For `struct`, little endian; empty for BYTES, whose elements have no fixed size."""

    numpy: str
    """NumPy's name; empty if it has none."""

    element: Any
    """The type of an element in JSON."""

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


class Tensor(msgspec.Struct, frozen=True):
    """One named tensor of a request."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    json: bytes = b""
    """Its `data` in JSON, if it came so."""

    binary: Buffer | None = None
    """Its bytes, if they came after the JSON."""

    def elements(self) -> Sequence[Any]:
        """Return all elements in row-major order as Python values; those of BYTES are bytes.

        Raises:
            ValueError: The data does not fit type and shape.
            msgspec.DecodeError: The JSON is malformed.
        """
        if self.binary is None:
            elements = _decode_json(self.json, self.datatype, self.shape)
            return [each.encode() for each in elements] if self.datatype == "BYTES" else elements
        data = memoryview(self.binary)
        if self.datatype == "BYTES":
            return self._decode_strings(data)
        self._check_length(data)
        numbers = struct.unpack(f"<{math.prod(self.shape)}{DATATYPES[self.datatype].code}", data)
        if self.datatype != "BF16":
            return numbers
        # bfloat16 is the upper half of a float32.
        return list(struct.unpack(f"<{len(numbers)}f", struct.pack(f"<{len(numbers)}I", *(n << 16 for n in numbers))))

    def as_lists(self) -> Any:
        """Return the elements as lists nested like the shape.

        Raises:
            ValueError: The data does not fit type and shape.
            msgspec.DecodeError: The JSON is malformed.
        """
        return nest(self.elements(), self.shape)

    def array(self) -> Any:
        """Return a writable NumPy array; it shares the request's memory where alignment allows.

        Raises:
            ValueError: The data does not fit type and shape.
            msgspec.DecodeError: The JSON is malformed.
        """
        numpy = sys.modules["numpy"]
        dtype = DATATYPES[self.datatype].numpy
        if self.datatype == "BYTES":
            elements = self.elements()
            array = numpy.empty(len(elements), object)
            array[:] = elements
        elif self.binary is None:
            try:
                with numpy.errstate(over="raise"):
                    array = numpy.array(self.elements(), dtype or "<f4")
            except (OverflowError, FloatingPointError) as error:
                raise ValueError(f"its data holds a number that {self.datatype} does not") from error
        else:
            self._check_length(memoryview(self.binary))
            if self.datatype == "BF16":
                array = (numpy.frombuffer(self.binary, "<u2").astype("<u4") << 16).view("<f4")
            else:
                # `require` copies only if the bytes are misaligned or read-only.
                array = numpy.require(numpy.frombuffer(self.binary, dtype), requirements=("A", "W"))
        return array.reshape(self.shape)

    def _check_length(self, data: memoryview) -> None:
        expected_bytes = math.prod(self.shape) * DATATYPES[self.datatype].size_bytes
        if data.nbytes != expected_bytes:
            raise ValueError(f"its binary data has {data.nbytes} bytes, its type and shape {expected_bytes}")

    def _decode_strings(self, data: memoryview) -> list[bytes]:
        # Each element is preceded by its length in four bytes.
        strings, at = [], 0
        while at + 4 <= data.nbytes:
            end = at + 4 + int.from_bytes(data[at : at + 4], "little")
            strings.append(bytes(data[at + 4 : end]))
            at = end
        if at != data.nbytes or len(strings) != math.prod(self.shape):
            raise ValueError("its binary data is not as many strings as its shape has elements")
        return strings


def _decode_json(raw: bytes, datatype: str, shape: Sequence[int]) -> list[Any]:
    """Decode a tensor's `data`, which is flat or nested like its shape.

    Raises:
        ValueError: It is not of this type and shape; the text is for the caller.
        msgspec.DecodeError: It is malformed.
    """
    opening = _OPENING.match(raw)
    # The number of opening brackets selects the decoder; a mixed depth then fails to decode.
    depth = opening[0].count(b"[") if opening else 0
    if depth not in {0, 1, len(shape)}:
        raise ValueError("its data is neither flat nor nested like its shape")
    elements = _json_decoder(datatype, depth).decode(raw)
    flat = _flatten(elements, shape) if depth > 1 else elements if depth else [elements]
    if len(flat) != math.prod(shape):
        raise ValueError(f"its data has {len(flat)} elements and its shape {math.prod(shape)}")
    return flat


# msgspec compiles a decoder for its type; without the cache each tensor would compile one again.
@lru_cache(256)
def _json_decoder(datatype: str, depth: int) -> "msgspec.json.Decoder[Any]":
    kind = DATATYPES[datatype].element
    for _ in range(depth):
        kind = GenericAlias(list, (kind,))
    return msgspec.json.Decoder(kind)


def _flatten(lists: list[Any], shape: Sequence[int]) -> list[Any]:
    level = [lists]
    for length in shape:
        if any(len(each) != length for each in level):
            raise ValueError("its data is not nested like its shape")
        level = list(chain.from_iterable(level))
    return level


def nest(flat: Sequence[Any], shape: Sequence[int]) -> Any:
    """Nest elements like a shape; the shape of a scalar gives the element itself."""
    if not shape:
        return flat[0]
    level: list[Any] = list(flat)
    for length in reversed(shape[1:]):
        level = [level[at : at + length] for at in range(0, len(level), length)] if length else []
    return level
