"""Tensors into arguments, by the parameters' names and annotations.

An array takes a tensor as it is; a number, text or list takes its elements; everything else takes one BYTES element that
holds JSON, so that every function can be called by V2's clients. It refuses tensors that no parameter takes.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from pgpu.functions.handler import REQUIRED, Parameter, Signature, Values
from pgpu.functions.protocols.call_refusal import RefusedError, refusal_error
from pgpu.functions.protocols.inference.inference_request import InferenceRequest
from pgpu.functions.protocols.inference.tensors import Tensor
from pgpu.functions.protocols.library_types import bare_type, decode_library_type, dtype_of, is_array
from pgpu.units import quoted

_RESERVED = {"binary_data_output", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout"}
"""Parameters of a request that are V2's own, or Triton's."""

_SCALARS = {str, bytes, int, float, bool}


class TensorReader:
    """Reads the requests of one function."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._names = frozenset(each.name for each in signature.parameters)

    def read(self, request: InferenceRequest) -> Values:
        """Read the arguments of a call.

        Raises:
            RefusedError: They are not this function's: 422.
        """
        tensors = {each.name: each for each in self._renamed(request.tensors)}
        said = {name: value for name, value in request.parameters.items() if name not in _RESERVED}
        unknown = sorted((tensors.keys() | said.keys()) - self._names)
        if unknown and not self._signature.takes_others:
            raise _wrong(f"the function has no input {quoted(unknown[0])}; it has: {', '.join(sorted(self._names))}")
        values = tuple(self._value(each, tensors, said) for each in self._signature.parameters)
        return (*values, self._others(unknown, tensors, said)) if self._signature.takes_others else values

    def _renamed(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """One tensor for one parameter fits under any name: clients have names of their own."""
        parameters = self._signature.parameters
        if len(tensors) == len(parameters) == 1:
            return (msgspec.structs.replace(tensors[0], name=parameters[0].name),)
        return tensors

    def _value(self, parameter: Parameter, tensors: dict[str, Tensor], said: dict[str, Any]) -> Any:
        if parameter.name in tensors:
            return _bound(parameter.name, parameter.annotation, tensors[parameter.name])
        if parameter.name in said:
            return _converted(parameter.name, parameter.annotation, said[parameter.name])
        if parameter.default is REQUIRED:
            raise _wrong(f"input {quoted(parameter.name)} is missing")
        return parameter.default

    def _others(self, names: list[str], tensors: dict[str, Tensor], said: dict[str, Any]) -> dict[str, Any]:
        kind = self._signature.others
        return {
            name: _bound(name, kind, tensors[name]) if name in tensors else _converted(name, kind, said[name])
            for name in names
        }


def _converted(name: str, kind: Any, plain: Any) -> Any:
    try:
        return msgspec.convert(plain, kind, dec_hook=decode_library_type)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _wrong(f"parameter {quoted(name)}: {error}") from error


def _bound(name: str, kind: Any, tensor: Tensor) -> Any:
    try:
        if is_array(kind) or (bare_type(kind) in {Any, object} and "numpy" in sys.modules):
            return _array(tensor, dtype_of(kind))
        return _first_fit(kind, tensor)
    except msgspec.ValidationError as error:
        raise _wrong(f"input {quoted(name)}: {error}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise refusal_error(400, "bad_json", f"the data of input {quoted(name)} is not JSON") from error
    except ValueError as error:
        raise _wrong(f"input {quoted(name)}: {error}") from error


def _array(tensor: Tensor, dtype: Any) -> Any:
    array = tensor.array()
    if dtype is None or array.dtype == dtype:
        return array
    if tensor.datatype == "BYTES" or not sys.modules["numpy"].can_cast(array.dtype, dtype, "safe"):
        raise ValueError(f"{tensor.datatype} does not fit into {dtype.__name__}")
    return array.astype(dtype)


def _first_fit(kind: Any, tensor: Tensor) -> Any:
    """Try what a tensor may mean, from the plainest; the last error is what the caller is told."""
    wrong: msgspec.ValidationError | None = None
    for reading in _readings(kind, tensor):
        try:
            return reading()
        except msgspec.ValidationError as error:
            wrong = error
    raise wrong or ValueError("its data does not fit")


def _readings(kind: Any, tensor: Tensor) -> Iterator[Callable[[], Any]]:
    nested = tensor.nested()
    yield lambda: _convert(nested, kind)
    only = tensor.elements()[0] if nested is not None and _is_one(tensor) else None
    if only is not None:
        yield lambda: _convert(only, kind)
    if tensor.datatype == "BYTES":
        yield lambda: _convert(_texts(nested), kind)
    if isinstance(only, bytes):
        yield lambda: _convert(_texts(only), kind)
    if isinstance(only, bytes) and bare_type(kind) not in _SCALARS:
        yield lambda: msgspec.json.decode(only, type=kind, dec_hook=decode_library_type)
    if tensor.datatype == "UINT8" and bare_type(kind) is bytes:
        yield lambda: bytes(tensor.elements())


def _convert(plain: Any, kind: Any) -> Any:
    return msgspec.convert(plain, kind, dec_hook=decode_library_type)


def _is_one(tensor: Tensor) -> bool:
    return all(length == 1 for length in tensor.shape)


def _texts(value: Any) -> Any:
    """Elements of BYTES as text; those that are none stay bytes, and fit no parameter of text."""
    if isinstance(value, list):
        return [_texts(each) for each in value]
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        return value


def _wrong(error: str) -> RefusedError:
    return refusal_error(422, "bad_input", error)
