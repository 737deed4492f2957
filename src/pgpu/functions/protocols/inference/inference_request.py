"""The request of an inference: JSON, and after it the bytes of those tensors that say so.

It refuses what does not add up: bytes that no tensor has, tensors whose bytes are missing, names twice.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from pgpu.functions.protocols.call_refusal import RefusedError, refusal_error
from pgpu.functions.protocols.inference.datatypes import DATATYPES, MOST_DIMENSIONS
from pgpu.functions.protocols.inference.tensors import Tensor
from pgpu.functions.protocols.media_types import BYTES, FORM, JSON, media_type
from pgpu.functions.protocols.request_body import Buffer
from pgpu.units import quoted

HEADER_LENGTH = "inference-header-content-length"
"""How many bytes of the body are JSON, where tensors follow it."""

_MOST_EMPTY = 2**16
"""Rows of nothing that an empty tensor may have: whoever goes over them must come to an end."""

_Dimension = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
_Shape = Annotated[list[_Dimension], msgspec.Meta(max_length=MOST_DIMENSIONS)]


class _Input(msgspec.Struct, frozen=True):
    name: str
    shape: _Shape
    datatype: str
    parameters: dict[str, Any] = {}
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Output(msgspec.Struct, frozen=True):
    name: str
    parameters: dict[str, Any] = {}


class _Head(msgspec.Struct, frozen=True):
    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[_Output] = []


class InferenceRequest(msgspec.Struct, frozen=True):
    """One request, taken apart."""

    id: str
    parameters: dict[str, Any]
    tensors: tuple[Tensor, ...]
    outputs: tuple[tuple[str, bool], ...]
    """Names that are asked for, and whether each comes as bytes; empty: all of them."""

    is_binary: bool
    """Outputs come as bytes unless asked for otherwise."""


_decode = msgspec.json.Decoder(_Head).decode


def read_request(body: Buffer, headers: Mapping[str, str]) -> InferenceRequest:
    """Take a request apart.

    Raises:
        RefusedError: It is none of V2: 400, or 415.
    """
    length = headers.get(HEADER_LENGTH)
    if length is None:
        _check_type(headers.get("content-type"))
    head_bytes = len(body) if length is None else _length(length, len(body))
    view = memoryview(body)
    try:
        head = _decode(view[:head_bytes])
    except msgspec.ValidationError as error:
        raise _bad(f"the request is none of V2: {error}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise refusal_error(400, "bad_json", "the request is not JSON") from error
    is_binary = _flag(head.parameters, "binary_data_output", otherwise=False)
    return InferenceRequest(
        id=head.id,
        parameters=head.parameters,
        tensors=_tensors(head.inputs, view[head_bytes:]),
        outputs=tuple((each.name, _output_is_binary(each, is_binary)) for each in head.outputs),
        is_binary=is_binary,
    )


def _check_type(content_type: str | None) -> None:
    if content_type and media_type(content_type).essence not in {JSON, BYTES, FORM}:
        raise refusal_error(415, "bad_content_type", f"an inference request is {JSON}", accept=JSON)


def _length(text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= most):  # noqa: PLR2004 - 64 bits
        raise _bad("Inference-Header-Content-Length is not a length within the body")
    return int(text)


def _tensors(inputs: list[_Input], rest: memoryview) -> tuple[Tensor, ...]:
    if len({each.name for each in inputs}) != len(inputs):
        raise _bad("two inputs have one name")
    tensors, at = [], 0
    for each in inputs:
        size_bytes = _binary_bytes(each)
        tensors.append(_tensor(each, None if size_bytes is None else rest[at : at + size_bytes]))
        at += size_bytes or 0
    if at != rest.nbytes:
        raise _bad(f"the inputs have {at} bytes of binary data, the body {rest.nbytes}")
    return tuple(tensors)


def _tensor(given: _Input, binary: memoryview | None) -> Tensor:
    if given.datatype not in DATATYPES:
        raise _bad(f"input {quoted(given.name)} is of a type that V2 has not")
    if not all(given.shape) and math.prod(filter(None, given.shape)) > _MOST_EMPTY:
        raise _bad(f"input {quoted(given.name)} has no elements and a shape of more than {_MOST_EMPTY} rows")
    if binary is None and isinstance(given.data, msgspec.UnsetType):
        raise _bad(f"input {quoted(given.name)} has no data")
    if binary is not None and given.data is not msgspec.UNSET:
        raise _bad(f"input {quoted(given.name)} has data twice")
    data = b"" if isinstance(given.data, msgspec.UnsetType) else bytes(given.data)
    return Tensor(given.name, given.datatype, tuple(given.shape), data, binary)


def _binary_bytes(given: _Input) -> int | None:
    if any(name.startswith("shared_memory") for name in given.parameters):
        raise _bad("tensors in shared memory are not taken")
    size_bytes = given.parameters.get("binary_data_size")
    if size_bytes is None:
        return None
    if isinstance(size_bytes, bool) or not isinstance(size_bytes, int) or size_bytes < 0:
        raise _bad(f"binary_data_size of input {quoted(given.name)} is no number of bytes")
    return size_bytes


def _output_is_binary(output: _Output, otherwise: bool) -> bool:  # noqa: FBT001
    if output.parameters.get("classification") or any(n.startswith("shared_memory") for n in output.parameters):
        raise _bad(f"output {quoted(output.name)} asks for what is not given: classification or shared memory")
    return _flag(output.parameters, "binary_data", otherwise=otherwise)


def _flag(parameters: Mapping[str, Any], name: str, *, otherwise: bool) -> bool:
    value = parameters.get(name, otherwise)
    if not isinstance(value, bool):
        raise _bad(f"{name} is neither true nor false")
    return value


def _bad(error: str) -> RefusedError:
    return refusal_error(400, "bad_inference", error)
