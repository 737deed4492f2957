"""Plain HTTP answers: bytes as they are, text as text, everything else as JSON or msgpack.

It refuses to answer in a form that the caller does not accept: that is 406.
"""

import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from pgpu.functions.handler import Signature
from pgpu.functions.ipc.messages import Reply
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.functions.protocols.library_types import bare_type, encode_library_type
from pgpu.functions.protocols.media_types import BYTES, JSON, MSGPACK, TEXT, negotiate
from pgpu.functions.protocols.parsed_call import StreamWriter
from pgpu.functions.protocols.results.result_streams import STREAMS, stream_writer

_VALUES = (JSON, MSGPACK)
_TEXTS = (TEXT, JSON, MSGPACK)

Encode = Callable[[Any], Any]

_to_json = msgspec.json.Encoder(enc_hook=encode_library_type).encode
_to_msgpack = msgspec.msgpack.Encoder(enc_hook=encode_library_type).encode
_ENCODERS: dict[str, Encode] = {JSON: _to_json, MSGPACK: _to_msgpack, TEXT: str.encode}
_HEADERS = {
    JSON: {"content-type": JSON},
    MSGPACK: {"content-type": MSGPACK},
    TEXT: {"content-type": f"{TEXT}; charset=utf-8"},
}


@dataclass(frozen=True, slots=True)
class PlainWriter:
    """How one Accept header has answers written; None where it accepts nothing that such a result can become."""

    for_values: str | None
    for_text: str | None
    for_bytes: str | None
    streaming: StreamWriter | None

    def write(self, result: Any) -> Reply | Refusal:
        """Write a result in the form that fits its type."""
        if isinstance(result, str):
            return _written(self.for_text, result)
        if isinstance(result, (bytes, bytearray, memoryview)):
            return self._bytes(result)
        return _written(self.for_values, result)

    def _bytes(self, result: bytes | bytearray | memoryview) -> Reply | Refusal:
        if self.for_bytes is None or self.for_bytes in _ENCODERS:
            return _written(self.for_bytes, result)
        return Reply(200, {"content-type": self.for_bytes}, result)


def plain_writer(signature: Signature, accept: str | None) -> PlainWriter | None:
    """Choose the forms of answers for one Accept header; None: it accepts nothing that the handler gives."""
    form = PlainWriter(
        for_values=negotiate(accept, _VALUES),
        for_text=negotiate(accept, _TEXTS),
        for_bytes=negotiate(accept, (declared_type(signature), JSON, MSGPACK)),
        streaming=stream_writer(signature, accept),
    )
    return form if any(_choices(signature, form)) else None


def accepted_types(signature: Signature) -> tuple[str, ...]:
    """What a handler's answers can be written as, its favourite first."""
    kind = bare_type(signature.result)
    if signature.is_stream:
        return STREAMS
    if kind is bytes:
        return (declared_type(signature), JSON, MSGPACK)
    return _TEXTS if kind is str else _VALUES


def declared_type(signature: Signature) -> str:
    """The media type that `Annotated[bytes, "image/png"]` names, else octet-stream."""
    extras = typing.get_args(signature.result)[1:] if typing.get_origin(signature.result) is typing.Annotated else ()
    return next((each for each in extras if isinstance(each, str) and "/" in each), BYTES)


def _choices(signature: Signature, form: PlainWriter) -> tuple[object, ...]:
    kind = bare_type(signature.result)
    if signature.is_stream:
        return (form.streaming, form.for_values)
    if kind in {Any, object}:
        return (form.for_values, form.for_text, form.for_bytes, form.streaming)
    return (form.for_bytes if kind is bytes else form.for_text if kind is str else form.for_values,)


def _written(media: str | None, result: Any) -> Reply | Refusal:
    if media is None:
        return Refusal(406, "not_acceptable", "the result has no form that the Accept header allows")
    try:
        return Reply(200, _HEADERS[media], _ENCODERS[media](result))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return unwritable(result, error)


def unwritable(result: Any, error: BaseException) -> Refusal:
    """Refuse a call whose handler gave what cannot be written; why stands in the log."""
    kind = type(result).__name__
    return Refusal(
        500, "handler_error", "UnwritableResult", detail=f"the result, of type {kind}, cannot be written: {error}"
    )
