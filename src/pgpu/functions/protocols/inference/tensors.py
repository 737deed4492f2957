"""A tensor of a request: what its bytes are, as an array of NumPy's or as plain lists.

It refuses to trust a shape: the number of elements is checked before anything is made of them.
"""

import struct
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from pgpu.functions.protocols.inference.datatypes import DATATYPES, count_of, elements_of_json, nested
from pgpu.functions.protocols.request_body import Buffer


class Tensor(msgspec.Struct, frozen=True):
    """One named tensor of a request."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    json: bytes = b""
    """Its `data` as it came, where it came in JSON."""

    binary: Buffer | None = None
    """Its bytes, where they came after the JSON."""

    def elements(self) -> Sequence[Any]:
        """All elements in row-major order, as Python's own values; those of BYTES are bytes.

        Raises:
            ValueError: The data does not fit type and shape.
            msgspec.DecodeError: It is malformed.
        """
        if self.binary is not None:
            return self._binary_elements(memoryview(self.binary))
        elements = elements_of_json(self.json, self.datatype, self.shape)
        return [each.encode() for each in elements] if self.datatype == "BYTES" else elements

    def nested(self) -> Any:
        """The elements in lists like the shape.

        Raises:
            ValueError: The data does not fit type and shape.
            msgspec.DecodeError: It is malformed.
        """
        return nested(self.elements(), self.shape)

    def array(self) -> Any:
        """An array of NumPy's that may be written to; it shares the request's memory where that is possible.

        Raises:
            ValueError: The data does not fit type and shape.
            msgspec.DecodeError: It is malformed.
        """
        numpy = sys.modules["numpy"]
        if self.datatype == "BYTES":
            elements = self.elements()
            array = numpy.empty(len(elements), object)
            array[:] = elements
            return array.reshape(self.shape)
        flat = self._viewed(numpy) if self.binary is not None else self._made(numpy)
        return flat.reshape(self.shape)

    def _made(self, numpy: Any) -> Any:
        try:
            with numpy.errstate(over="raise"):
                return numpy.array(self.elements(), DATATYPES[self.datatype].numpy or "<f4")
        except (OverflowError, FloatingPointError) as error:
            raise ValueError(f"its data holds a number that {self.datatype} does not") from error

    def _viewed(self, numpy: Any) -> Any:
        self._check_length(memoryview(self.binary or b""))
        if self.datatype == "BF16":
            halves = numpy.frombuffer(self.binary, "<u2").astype("<u4")
            return (halves << 16).view("<f4")
        return numpy.require(numpy.frombuffer(self.binary, DATATYPES[self.datatype].numpy), requirements=("A", "W"))

    def _binary_elements(self, data: memoryview) -> Sequence[Any]:
        if self.datatype == "BYTES":
            return self._strings(data)
        self._check_length(data)
        elements = struct.unpack(f"<{count_of(self.shape)}{DATATYPES[self.datatype].code}", data)
        return [_widened(each) for each in elements] if self.datatype == "BF16" else elements

    def _check_length(self, data: memoryview) -> None:
        expected_bytes = count_of(self.shape) * DATATYPES[self.datatype].size_bytes
        if data.nbytes != expected_bytes:
            raise ValueError(f"its binary data has {data.nbytes} bytes, its type and shape {expected_bytes}")

    def _strings(self, data: memoryview) -> list[bytes]:
        """Each element is its length in four bytes, and then itself."""
        strings, at = [], 0
        while at + 4 <= data.nbytes:
            end = at + 4 + int.from_bytes(data[at : at + 4], "little")
            strings.append(bytes(data[at + 4 : end]))
            at = end
        if at != data.nbytes or len(strings) != count_of(self.shape):
            raise ValueError("its binary data is not as many strings as its shape has elements")
        return strings


def _widened(half: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", half << 16))[0]
    return value
