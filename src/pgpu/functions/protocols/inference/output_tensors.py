"""Results as tensors: arrays as they are, numbers and text as tensors of one element, anything else as JSON in one.

It refuses to lose anything: what has no tensor's form becomes one BYTES element with its JSON, and says so.
"""

import dataclasses
import struct
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from pgpu.functions.protocols.inference.datatypes import DATATYPES
from pgpu.functions.protocols.library_types import encode_library_type
from pgpu.functions.protocols.media_types import JSON

_OUTPUT = "output"
_KINDS = {"b": "BOOL", "u": "UINT", "i": "INT", "f": "FP"}
_INT64 = range(-(2**63), 2**63)
_to_json = msgspec.json.Encoder(enc_hook=encode_library_type).encode


class OutputTensor(msgspec.Struct, frozen=True):
    """One named tensor of an answer."""

    datatype: str
    shape: tuple[int, ...]
    data: Any
    """An array of NumPy's, or a flat list of Python's values; text is text."""

    parameters: dict[str, Any] = {}

    def plain(self) -> Any:
        """The elements for JSON, flat."""
        return self.data if isinstance(self.data, list) else self.data.ravel().tolist()

    def binary(self) -> bytes | memoryview:
        """The elements for the binary extension."""
        if self.datatype == "BYTES":
            texts = (each if isinstance(each, bytes) else each.encode() for each in self.data)
            return b"".join(part for each in texts for part in (struct.pack("<I", len(each)), each))
        if isinstance(self.data, list):
            return struct.pack(f"<{len(self.data)}{DATATYPES[self.datatype].code}", *self.data)
        numpy = sys.modules["numpy"]
        return memoryview(numpy.ascontiguousarray(self.data, DATATYPES[self.datatype].numpy).reshape(-1)).cast("B")


def outputs_of(result: Any) -> dict[str, OutputTensor]:
    """Make named tensors of a result: a mapping's or record's by its keys, several by number, one as `output`.

    Raises:
        TypeError: It has no form in JSON either.
    """
    named = _named(result)
    tensors = {name: _tensor(value) for name, value in named.items()} if named else {}
    if named and all(tensors.values()):
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}
    return {_OUTPUT: _tensor(result) or _json_of(result)}


def _named(result: Any) -> dict[str, Any]:
    if isinstance(result, Mapping):
        return dict(result) if all(isinstance(name, str) for name in result) else {}
    if isinstance(result, msgspec.Struct):
        return msgspec.structs.asdict(result)
    if dataclasses.is_dataclass(result):
        return {each.name: getattr(result, each.name) for each in dataclasses.fields(result)}
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return dict(zip(result._fields, result, strict=True))
    if isinstance(result, (tuple, list)) and result and all(hasattr(each, "tolist") for each in result):
        return {f"{_OUTPUT}_{index}": each for index, each in enumerate(result)}
    return {}


def _tensor(value: Any) -> OutputTensor | None:
    """Make a tensor of a value; None where it has no tensor's form."""
    if hasattr(value, "tolist"):
        return _of_array(value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return _of_list(value)
    datatype = _datatype([value])
    return OutputTensor(datatype, (1,), [value]) if datatype else None


def _of_array(value: Any) -> OutputTensor | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return _tensor(value.tolist())
    try:
        array = numpy.asarray(value)
    except (TypeError, ValueError):  # a tensor of another library that lies on a GPU, or is of a type of its own
        return _tensor(value.tolist())
    if array.dtype.kind in "USO":
        return _tensor(array.tolist())
    datatype = _KINDS.get(array.dtype.kind, "") + ("" if array.dtype.kind == "b" else str(array.dtype.itemsize * 8))
    return OutputTensor(datatype, array.shape or (1,), array) if datatype in DATATYPES else None


def _of_list(value: Sequence[Any]) -> OutputTensor | None:
    shape, level = [len(value)], list(value)
    while level and all(isinstance(each, (list, tuple)) for each in level):
        if len({len(each) for each in level}) != 1:
            return None
        shape.append(len(level[0]))
        level = list(chain.from_iterable(level))
    datatype = _datatype(level) if level else "FP64"
    return OutputTensor(datatype, tuple(shape), level) if datatype else None


def _datatype(elements: list[Any]) -> str | None:
    kinds = {type(each) for each in elements}
    if kinds == {bool}:
        return "BOOL"
    if kinds == {int} and all(each in _INT64 for each in elements):
        return "INT64"
    if kinds in ({float}, {int, float}):
        return "FP64"
    return "BYTES" if kinds in ({str}, {bytes}) else None


def _json_of(result: Any) -> OutputTensor:
    return OutputTensor("BYTES", (1,), [_to_json(result).decode()], {"content_type": JSON})
