"""What V2's clients ask of a model: its inputs and outputs, as far as annotations tell.

It refuses to invent: a dimension that nobody knows is −1, as V2 has it.
"""

import typing
from typing import Any

from pgpu.functions.handler import Signature
from pgpu.functions.protocols.library_types import bare_type, dtype_of, is_array

_SCALARS = {bool: "BOOL", int: "INT64", float: "FP64"}
_DTYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip


def model_metadata(name: str, version: str, signature: Signature) -> dict[str, Any]:
    """Describe a function as V2 describes a model."""
    return {
        "name": name,
        "versions": [version],
        "platform": "pgpu",
        "inputs": [_tensor(each.name, each.annotation) for each in signature.parameters],
        "outputs": [_tensor("output", signature.result)],
    }


def _tensor(name: str, kind: Any) -> dict[str, Any]:
    datatype, shape = _form(bare_type(kind))
    return {"name": name, "datatype": datatype, "shape": shape}


def _form(kind: Any) -> tuple[str, list[int]]:
    if is_array(kind):
        dtype = dtype_of(kind)
        return _DTYPES.get(dtype.__name__ if dtype else "", "FP32"), [-1]
    if typing.get_origin(kind) is list:
        datatype, shape = _form(bare_type(typing.get_args(kind)[0]))
        return (datatype, [-1]) if datatype != "BYTES" or shape == [1] else ("BYTES", [1])
    return _SCALARS.get(kind, "BYTES") if isinstance(kind, type) else "BYTES", [1]
