"""Results as tensors of the Open Inference Protocol V2, and a function's metadata as a V2 model.

Arrays are sent unchanged, numbers and text as tensors of one element. A result without such a form becomes one BYTES element
with its JSON, marked by the parameter `content_type`.
"""

import base64
import dataclasses
import struct
import sys
import typing
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from pgpu.functions.handler import Signature
from pgpu.functions.ipc.call_messages import Reply
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.functions.protocols.inference_request import HEADER_LENGTH, InferenceRequest
from pgpu.functions.protocols.library_types import bare_type, dtype_of, encode_library_type, is_array
from pgpu.functions.protocols.media_types import BYTES, JSON
from pgpu.functions.protocols.results import StreamWriter, unwritable
from pgpu.functions.protocols.tensors import DATATYPES

_OUTPUT = "output"
_KINDS = {"b": "BOOL", "u": "UINT", "i": "INT", "f": "FP"}
_INT64 = range(-(2**63), 2**63)
_SCALARS = {bool: "BOOL", int: "INT64", float: "FP64"}
_DTYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip
_to_json = msgspec.json.Encoder(enc_hook=encode_library_type).encode


class OutputTensor(msgspec.Struct, frozen=True):
    """One named tensor of a response."""

    datatype: str
    shape: tuple[int, ...]
    data: Any
    """A NumPy array, or a flat list of Python values."""

    parameters: dict[str, Any] = {}

    def binary(self) -> bytes | memoryview:
        """Return the elements for the binary extension."""
        if self.datatype == "BYTES":
            texts = (each if isinstance(each, bytes) else each.encode() for each in self.data)
            return b"".join(part for each in texts for part in (struct.pack("<I", len(each)), each))
        if isinstance(self.data, list):
            return struct.pack(f"<{len(self.data)}{DATATYPES[self.datatype].code}", *self.data)
        numpy = sys.modules["numpy"]
        return memoryview(numpy.ascontiguousarray(self.data, DATATYPES[self.datatype].numpy).reshape(-1)).cast("B")

    def entry(self, name: str, binary_bytes: int | None) -> dict[str, Any]:
        """Return the tensor's entry in the response's JSON; with a size, its elements follow in binary form."""
        entry: dict[str, Any] = {"name": name, "datatype": self.datatype, "shape": self.shape}
        if binary_bytes is not None:
            return {**entry, "parameters": {**self.parameters, "binary_data_size": binary_bytes}}
        data = self.data if isinstance(self.data, list) else self.data.ravel().tolist()
        parameters = self.parameters
        if self.datatype == "BYTES" and data and isinstance(data[0], bytes):
            try:
                data, parameters = [each.decode() for each in data], {}
            except UnicodeDecodeError:
                # JSON holds text only: other bytes are sent as base64 and marked so, as MLServer does.
                data, parameters = [base64.b64encode(each).decode() for each in data], {"content_type": "base64"}
        return {**entry, **({"parameters": parameters} if parameters else {}), "data": data}


class InferenceWriter(msgspec.Struct, frozen=True):
    """Writes the result of one request."""

    name: str
    version: str
    request: InferenceRequest

    @property
    def stream_writer(self) -> StreamWriter | None:
        """None: V2 has no streams, so items are collected."""
        return None

    def write(self, result: Any) -> Reply | Refusal:
        """Write a result as named tensors."""
        try:
            outputs = self._select(outputs_of(result))
            if isinstance(outputs, Refusal):
                return outputs
            binaries = [output.binary() for _, output, is_binary in outputs if is_binary]
            lengths = iter([len(each) for each in binaries])
            entries = [output.entry(name, next(lengths) if is_binary else None) for name, output, is_binary in outputs]
            head: dict[str, Any] = {"model_name": self.name, "model_version": self.version, "outputs": entries}
            if self.request.id:
                head["id"] = self.request.id
            json = _to_json(head)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return unwritable(result, error)
        if not binaries:
            return Reply(200, {"content-type": JSON}, json)
        return Reply(200, {"content-type": BYTES, HEADER_LENGTH: str(len(json))}, b"".join((json, *binaries)))

    def _select(self, outputs: dict[str, OutputTensor]) -> list[tuple[str, OutputTensor, bool]] | Refusal:
        requested = self.request.outputs
        if not requested:
            return [(name, output, self.request.is_binary) for name, output in outputs.items()]
        if len(requested) == len(outputs) == 1:
            return [(requested[0][0], next(iter(outputs.values())), requested[0][1])]
        missing = [name for name, _ in requested if name not in outputs]
        if missing:
            return Refusal(422, "bad_input", f"the function gives no output {missing[0]!r}")
        return [(name, outputs[name], is_binary) for name, is_binary in requested]


def outputs_of(result: Any) -> dict[str, OutputTensor]:
    """Convert a result to named tensors: by the keys of a mapping or record, by number for several, else as `output`.

    Raises:
        TypeError: It has no form in JSON either.
    """
    named = _fields_of(result)
    tensors = {name: _tensor_of(value) for name, value in named.items()} if named else {}
    if named and all(tensors.values()):
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}
    whole = _tensor_of(result)
    return {_OUTPUT: whole or OutputTensor("BYTES", (1,), [_to_json(result).decode()], {"content_type": JSON})}


def _fields_of(result: Any) -> dict[str, Any]:
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


def _tensor_of(value: Any) -> OutputTensor | None:
    """Convert a value to a tensor; None if it has no such form."""
    if hasattr(value, "tolist"):
        return _tensor_of_array(value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return _tensor_of_list(value)
    datatype = _datatype_of([value])
    return OutputTensor(datatype, (1,), [value]) if datatype else None


def _tensor_of_array(value: Any) -> OutputTensor | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return _tensor_of(value.tolist())
    try:
        array = numpy.asarray(value)
    except (TypeError, ValueError):  # another library's tensor on a GPU, or with a data type that NumPy lacks
        return _tensor_of(value.tolist())
    if array.dtype.kind in "USO":
        return _tensor_of(array.tolist())
    datatype = _KINDS.get(array.dtype.kind, "") + ("" if array.dtype.kind == "b" else str(array.dtype.itemsize * 8))
    return OutputTensor(datatype, array.shape or (1,), array) if datatype in DATATYPES else None


def _tensor_of_list(value: Sequence[Any]) -> OutputTensor | None:
    shape, level = [len(value)], list(value)
    while level and all(isinstance(each, (list, tuple)) for each in level):
        if len({len(each) for each in level}) != 1:
            return None
        shape.append(len(level[0]))
        level = list(chain.from_iterable(level))
    datatype = _datatype_of(level) if level else "FP64"
    return OutputTensor(datatype, tuple(shape), level) if datatype else None


def _datatype_of(elements: list[Any]) -> str | None:
    kinds = {type(each) for each in elements}
    if kinds == {bool}:
        return "BOOL"
    if kinds == {int} and all(each in _INT64 for each in elements):
        return "INT64"
    if kinds in ({float}, {int, float}):
        return "FP64"
    return "BYTES" if kinds in ({str}, {bytes}) else None


def model_metadata(name: str, version: str, signature: Signature) -> dict[str, Any]:
    """Describe a function as a V2 model, as far as its annotations go; an unknown dimension is −1."""
    inputs = [(each.name, each.annotation) for each in signature.parameters]
    return {
        "name": name,
        "versions": [version],
        "platform": "pgpu",
        "inputs": [_describe_tensor(*each) for each in inputs],
        "outputs": [_describe_tensor(_OUTPUT, signature.result)],
    }


def _describe_tensor(name: str, kind: Any) -> dict[str, Any]:
    datatype, shape = _form_of(bare_type(kind))
    return {"name": name, "datatype": datatype, "shape": shape}


def _form_of(kind: Any) -> tuple[str, list[int]]:
    if is_array(kind):
        dtype = dtype_of(kind)
        return _DTYPES.get(dtype.__name__ if dtype else "", "FP32"), [-1]
    if typing.get_origin(kind) is list:
        datatype, shape = _form_of(bare_type(typing.get_args(kind)[0]))
        return (datatype, [-1]) if datatype != "BYTES" or shape == [1] else ("BYTES", [1])
    return _SCALARS.get(kind, "BYTES") if isinstance(kind, type) else "BYTES", [1]
