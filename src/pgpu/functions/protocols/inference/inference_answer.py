"""The answer of an inference: JSON, and after it the bytes of those outputs that were asked for so.

It refuses an output that the function does not give.
"""

import base64
from typing import Any

import msgspec

from pgpu.functions.ipc.messages import Reply
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.functions.protocols.inference.inference_request import HEADER_LENGTH, InferenceRequest
from pgpu.functions.protocols.inference.output_tensors import OutputTensor, outputs_of
from pgpu.functions.protocols.media_types import BYTES, JSON
from pgpu.functions.protocols.parsed_call import StreamWriter
from pgpu.functions.protocols.results import unwritable

_to_json = msgspec.json.Encoder().encode


class InferenceWriter(msgspec.Struct, frozen=True):
    """How one request has its answer written."""

    name: str
    version: str
    request: InferenceRequest

    @property
    def streaming(self) -> StreamWriter | None:
        """None: V2 has no streams, so pieces are collected."""
        return None

    def write(self, result: Any) -> Reply | Refusal:
        """Write a result as named tensors."""
        try:
            outputs = self._asked_for(outputs_of(result))
            return outputs if isinstance(outputs, Refusal) else self._reply(outputs)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return unwritable(result, error)

    def _asked_for(self, outputs: dict[str, OutputTensor]) -> list[tuple[str, OutputTensor, bool]] | Refusal:
        asked = self.request.outputs
        if not asked:
            return [(name, output, self.request.is_binary) for name, output in outputs.items()]
        if len(asked) == len(outputs) == 1:
            return [(asked[0][0], next(iter(outputs.values())), asked[0][1])]
        missing = [name for name, _ in asked if name not in outputs]
        if missing:
            return Refusal(422, "bad_input", f"the function gives no output {missing[0]!r}")
        return [(name, outputs[name], is_binary) for name, is_binary in asked]

    def _reply(self, outputs: list[tuple[str, OutputTensor, bool]]) -> Reply:
        binaries = [output.binary() for _, output, is_binary in outputs if is_binary]
        lengths = iter([len(each) for each in binaries])
        written = [_written(name, output, next(lengths) if is_binary else None) for name, output, is_binary in outputs]
        head = _to_json(self._head(written))
        if not binaries:
            return Reply(200, {"content-type": JSON}, head)
        return Reply(200, {"content-type": BYTES, HEADER_LENGTH: str(len(head))}, b"".join((head, *binaries)))

    def _head(self, outputs: list[dict[str, Any]]) -> dict[str, Any]:
        head: dict[str, Any] = {"model_name": self.name, "model_version": self.version, "outputs": outputs}
        return {**head, "id": self.request.id} if self.request.id else head


def _written(name: str, output: OutputTensor, binary_bytes: int | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "datatype": output.datatype, "shape": output.shape}
    if binary_bytes is not None:
        return {**entry, "parameters": {**output.parameters, "binary_data_size": binary_bytes}}
    data, parameters = output.plain(), output.parameters
    if output.datatype == "BYTES" and data and isinstance(data[0], bytes):
        data, parameters = _as_text(data)
    return {**entry, **({"parameters": parameters} if parameters else {}), "data": data}


def _as_text(strings: list[bytes]) -> tuple[list[str], dict[str, Any]]:
    """JSON holds text; bytes that are none go as base64 and say so, as MLServer's do."""
    try:
        return [each.decode() for each in strings], {}
    except UnicodeDecodeError:
        return [base64.b64encode(each).decode() for each in strings], {"content_type": "base64"}
