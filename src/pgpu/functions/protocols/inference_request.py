"""Requests of the Open Inference Protocol V2 with its binary extension, and their tensors as arguments.

A request is JSON, followed by the bytes of the tensors that are marked as binary; lengths must add up. A parameter of an array
type gets its tensor as an array that shares the request's memory; a number, text or list gets the elements; any other type is
decoded from one BYTES element that holds JSON, so V2 clients can call every function. Shared memory and classification are
rejected, since they need state between calls.

Source: https://github.com/kserve/open-inference-protocol and Triton's "Binary Tensor Data Extension".
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import msgspec

from pgpu.functions.handler import REQUIRED, Parameter, Signature, Values
from pgpu.functions.protocols.body_reader import Buffer
from pgpu.functions.protocols.call_refusal import RefusedError, refusal_error
from pgpu.functions.protocols.library_types import bare_type, decode_library_type, dtype_of, is_array
from pgpu.functions.protocols.media_types import BYTES, FORM, JSON, media_type
from pgpu.functions.protocols.tensors import DATATYPES, MOST_DIMENSIONS, Tensor
from pgpu.units import quoted

HEADER_LENGTH = "inference-header-content-length"
"""Number of JSON bytes in the body, if tensors follow them."""

# Rows of an empty tensor at most: a loop over them must end in reasonable time.
_MOST_EMPTY = 2**16

# Request parameters of V2 or Triton, which are no arguments.
_RESERVED = {"binary_data_output", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout"}

_SCALARS = {str, bytes, int, float, bool}
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
    """A parsed request."""

    id: str
    parameters: dict[str, Any]
    tensors: tuple[Tensor, ...]
    outputs: tuple[tuple[str, bool], ...]
    """Names of the requested outputs, and whether each is binary; empty: all of them."""

    is_binary: bool
    """Outputs are binary by default."""


_decode = msgspec.json.Decoder(_Head).decode


def read_request(body: Buffer, headers: Mapping[str, str]) -> InferenceRequest:
    """Parse a request.

    Raises:
        RefusedError: It is no valid request of V2: 400, or 415.
    """
    length, head_bytes = headers.get(HEADER_LENGTH), len(body)
    if length is None:
        content_type = headers.get("content-type")
        if content_type and media_type(content_type).essence not in {JSON, BYTES, FORM}:
            raise refusal_error(415, "bad_content_type", f"an inference request is {JSON}", accept=JSON)
    elif length.isascii() and length.isdigit() and len(length) <= 19 and int(length) <= len(body):  # noqa: PLR2004 - 64 bits
        head_bytes = int(length)
    else:
        raise _bad_inference("Inference-Header-Content-Length is not a length within the body")
    # A view, so that binary tensors share the memory of the body instead of being copied.
    view = memoryview(body)
    try:
        head = _decode(view[:head_bytes])
    except msgspec.ValidationError as error:
        raise _bad_inference(f"this is no request of V2: {error}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise refusal_error(400, "bad_json", "the request is not JSON") from error
    is_binary = _flag(head.parameters, "binary_data_output", otherwise=False)
    for each in head.outputs:
        if each.parameters.get("classification") or any(n.startswith("shared_memory") for n in each.parameters):
            raise _bad_inference(f"output {quoted(each.name)}: classification and shared memory are not supported")
    return InferenceRequest(
        id=head.id,
        parameters=head.parameters,
        tensors=_read_tensors(head.inputs, view[head_bytes:]),
        outputs=tuple((each.name, _flag(each.parameters, "binary_data", otherwise=is_binary)) for each in head.outputs),
        is_binary=is_binary,
    )


def _read_tensors(inputs: list[_Input], rest: memoryview) -> tuple[Tensor, ...]:
    if len({each.name for each in inputs}) != len(inputs):
        raise _bad_inference("two inputs have one name")
    tensors, at = [], 0
    for each in inputs:
        # Binary tensors follow one another in the order of the inputs.
        size_bytes = _binary_bytes(each)
        tensors.append(_read_tensor(each, None if size_bytes is None else rest[at : at + size_bytes]))
        at += size_bytes or 0
    if at != rest.nbytes:
        raise _bad_inference(f"the inputs have {at} bytes of binary data, the body {rest.nbytes}")
    return tuple(tensors)


def _binary_bytes(given: _Input) -> int | None:
    if any(name.startswith("shared_memory") for name in given.parameters):
        raise _bad_inference("tensors in shared memory are not supported")
    size_bytes = given.parameters.get("binary_data_size")
    if size_bytes is None:
        return None
    if isinstance(size_bytes, bool) or not isinstance(size_bytes, int) or size_bytes < 0:
        raise _bad_inference(f"binary_data_size of input {quoted(given.name)} is no number of bytes")
    return size_bytes


def _read_tensor(given: _Input, binary: memoryview | None) -> Tensor:
    if given.datatype not in DATATYPES:
        raise _bad_inference(f"input {quoted(given.name)} has a datatype that is not in V2")
    if not all(given.shape) and math.prod(filter(None, given.shape)) > _MOST_EMPTY:
        raise _bad_inference(f"input {quoted(given.name)} has no elements and a shape of more than {_MOST_EMPTY} rows")
    if binary is None and isinstance(given.data, msgspec.UnsetType):
        raise _bad_inference(f"input {quoted(given.name)} has no data")
    if binary is not None and given.data is not msgspec.UNSET:
        raise _bad_inference(f"input {quoted(given.name)} has data twice")
    data = b"" if isinstance(given.data, msgspec.UnsetType) else bytes(given.data)
    return Tensor(given.name, given.datatype, tuple(given.shape), data, binary)


def _flag(parameters: Mapping[str, Any], name: str, *, otherwise: bool) -> bool:
    value = parameters.get(name, otherwise)
    if not isinstance(value, bool):
        raise _bad_inference(f"{name} is neither true nor false")
    return value


def _bad_inference(error: str) -> RefusedError:
    return refusal_error(400, "bad_inference", error)


class TensorReader:
    """Converts the tensors of one function's requests to arguments, by the parameters' names and annotations."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._names = frozenset(each.name for each in signature.parameters)

    def read(self, request: InferenceRequest) -> Values:
        """Return the arguments of a call.

        Raises:
            RefusedError: The tensors do not fit the parameters: 422.
        """
        parameters, tensors = self._signature.parameters, request.tensors
        if len(tensors) == len(parameters) == 1:
            # Clients have names of their own: a single tensor fits a single parameter under any name.
            tensors = (msgspec.structs.replace(tensors[0], name=parameters[0].name),)
        by_name = {each.name: each for each in tensors}
        plain = {name: value for name, value in request.parameters.items() if name not in _RESERVED}
        unknown = sorted((by_name.keys() | plain.keys()) - self._names)
        if unknown and not self._signature.takes_others:
            raise _bad_input(
                f"the function has no input {quoted(unknown[0])}; it has: {', '.join(sorted(self._names))}"
            )
        values = tuple(self._read_argument(each, by_name, plain) for each in parameters)
        if not self._signature.takes_others:
            return values
        kind = self._signature.others
        others = {
            name: _bind(name, kind, by_name[name]) if name in by_name else _bind_plain(name, kind, plain[name])
            for name in unknown
        }
        return (*values, others)

    def _read_argument(self, parameter: Parameter, tensors: dict[str, Tensor], plain: dict[str, Any]) -> Any:
        if parameter.name in tensors:
            return _bind(parameter.name, parameter.annotation, tensors[parameter.name])
        if parameter.name in plain:
            return _bind_plain(parameter.name, parameter.annotation, plain[parameter.name])
        if parameter.default is REQUIRED:
            raise _bad_input(f"input {quoted(parameter.name)} is missing")
        return parameter.default


def _bind_plain(name: str, kind: Any, plain: Any) -> Any:
    try:
        return _convert(plain, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _bad_input(f"parameter {quoted(name)}: {error}") from error


def _bind(name: str, kind: Any, tensor: Tensor) -> Any:
    try:
        if is_array(kind) or (bare_type(kind) in {Any, object} and "numpy" in sys.modules):
            return _cast_array(tensor, dtype_of(kind))
        # The plainest interpretation that fits is used; the caller gets the error of the last one.
        wrong: msgspec.ValidationError | None = None
        for interpretation in _interpretations(kind, tensor):
            try:
                return interpretation()
            except msgspec.ValidationError as error:
                wrong = error
        raise wrong or ValueError("its data does not fit")
    except msgspec.ValidationError as error:
        raise _bad_input(f"input {quoted(name)}: {error}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise refusal_error(400, "bad_json", f"the data of input {quoted(name)} is not JSON") from error
    except ValueError as error:
        raise _bad_input(f"input {quoted(name)}: {error}") from error


def _cast_array(tensor: Tensor, dtype: Any) -> Any:
    array = tensor.array()
    if dtype is None or array.dtype == dtype:
        return array
    if tensor.datatype == "BYTES" or not sys.modules["numpy"].can_cast(array.dtype, dtype, "safe"):
        raise ValueError(f"{tensor.datatype} does not fit into {dtype.__name__}")
    return array.astype(dtype)


def _interpretations(kind: Any, tensor: Tensor) -> Iterator[Callable[[], Any]]:
    nested = tensor.as_lists()
    yield lambda: _convert(nested, kind)
    is_one = nested is not None and all(length == 1 for length in tensor.shape)
    only = tensor.elements()[0] if is_one else None
    if only is not None:
        yield lambda: _convert(only, kind)
    if tensor.datatype == "BYTES":
        yield lambda: _convert(_as_text(nested), kind)
    if isinstance(only, bytes):
        yield lambda: _convert(_as_text(only), kind)
    if isinstance(only, bytes) and bare_type(kind) not in _SCALARS:
        yield lambda: msgspec.json.decode(only, type=kind, dec_hook=decode_library_type)
    if tensor.datatype == "UINT8" and bare_type(kind) is bytes:
        yield lambda: bytes(tensor.elements())


def _convert(plain: Any, kind: Any) -> Any:
    return msgspec.convert(plain, kind, dec_hook=decode_library_type)


def _as_text(value: Any) -> Any:
    # Elements that are not UTF-8 stay bytes, and so fit no parameter of text.
    if isinstance(value, list):
        return [_as_text(each) for each in value]
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        return value


def _bad_input(error: str) -> RefusedError:
    return refusal_error(422, "bad_input", error)
