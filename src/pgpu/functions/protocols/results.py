"""Results as responses: bytes unchanged, text as text, everything else as JSON or msgpack, and streams.

A stream is sent as server-sent events, as lines of JSON, or as raw bytes. A caller that accepts only JSON gets all items in one
list. A result that cannot be written is an error of the handler, never an empty response; a stream that fails never ends like
a complete one.
"""

import re
import typing
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from pgpu.functions.handler import Signature
from pgpu.functions.ipc.call_messages import Reply
from pgpu.functions.protocols.call_refusal import Refusal, RefusedError
from pgpu.functions.protocols.library_types import bare_type, encode_library_type
from pgpu.functions.protocols.media_types import BYTES, EVENTS, JSON, LINES, MSGPACK, TEXT, negotiate
from pgpu.structs import Struct

_VALUES = (JSON, MSGPACK)
_TEXTS = (TEXT, JSON, MSGPACK)
# The last two as one list.
_STREAM_TYPES = (EVENTS, LINES, JSON, MSGPACK)

_UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)
_LINE_ENDS = re.compile(r"\r\n|\r|\n")

_to_json = msgspec.json.Encoder(enc_hook=encode_library_type).encode
_to_msgpack = msgspec.msgpack.Encoder(enc_hook=encode_library_type).encode
_ENCODERS: dict[str, Callable[[Any], Any]] = {JSON: _to_json, MSGPACK: _to_msgpack, TEXT: str.encode}
_HEADERS = {
    JSON: {"content-type": JSON},
    MSGPACK: {"content-type": MSGPACK},
    TEXT: {"content-type": f"{TEXT}; charset=utf-8"},
}


class StreamWriter(Protocol):
    """How the items of a stream are written."""

    @property
    def headers(self) -> dict[str, str]:
        """Of the response; shared, so it must not be changed."""

    @property
    def end(self) -> bytes:
        """Bytes after the last item; may be empty."""

    def piece(self, item: Any) -> bytes:
        """Write one item.

        Raises:
            RefusedError: The item cannot be written; the stream is then broken.
        """

    def broken(self, refusal: Refusal, request_id: str) -> bytes:
        """Write the message that ends a failed stream; may be empty."""


class ResultWriter(Protocol):
    """How a result is written."""

    @property
    def stream_writer(self) -> StreamWriter | None:
        """How items are written; None: the caller takes no stream, so they are collected into one list."""

    def write(self, result: Any) -> Reply | Refusal:
        """Write a result; a refusal if it cannot be written, with the reason in `detail`."""


class PlainWriter(Struct, frozen=True):
    """The media types for one Accept header; None where the caller accepts none of a kind's types."""

    for_values: str | None
    for_text: str | None
    for_bytes: str | None
    stream_writer: StreamWriter | None

    def write(self, result: Any) -> Reply | Refusal:
        """Write a result in the media type for its Python type."""
        media = self.for_values
        if isinstance(result, str):
            media = self.for_text
        elif isinstance(result, (bytes, bytearray, memoryview)):
            media = self.for_bytes
            if media is not None and media not in _ENCODERS:
                return Reply(200, {"content-type": media}, result)
        if media is None:
            return Refusal(406, "not_acceptable", "the result has no form that the Accept header allows")
        try:
            return Reply(200, _HEADERS[media], _ENCODERS[media](result))
        except _UNWRITABLE as error:
            return unwritable(result, error)


def plain_writer(signature: Signature, accept: str | None) -> PlainWriter | None:
    """Negotiate the media types for one Accept header; None: the caller accepts none that the handler can return."""
    kind = bare_type(signature.result)
    gives_bytes = kind is bytes
    media = negotiate(accept, (BYTES, *_STREAM_TYPES) if gives_bytes else (*_STREAM_TYPES, BYTES))
    writer = PlainWriter(
        for_values=negotiate(accept, _VALUES),
        for_text=negotiate(accept, _TEXTS),
        for_bytes=negotiate(accept, (_bytes_type(signature), JSON, MSGPACK)),
        stream_writer=_STREAMS.get(media) if media else None,
    )
    choices: tuple[object, ...]
    if signature.is_stream:
        choices = (writer.stream_writer, writer.for_values)
    elif kind in {Any, object}:
        choices = (writer.for_values, writer.for_text, writer.for_bytes, writer.stream_writer)
    else:
        choices = (writer.for_bytes if gives_bytes else writer.for_text if kind is str else writer.for_values,)
    return writer if any(choices) else None


def accepted_types(signature: Signature) -> tuple[str, ...]:
    """Return the media types of a handler's results, the preferred one first."""
    kind = bare_type(signature.result)
    if signature.is_stream:
        return _STREAM_TYPES
    if kind is bytes:
        return (_bytes_type(signature), JSON, MSGPACK)
    return _TEXTS if kind is str else _VALUES


def _bytes_type(signature: Signature) -> str:
    """Return the media type of `Annotated[bytes, "image/png"]`, else octet-stream."""
    extras = typing.get_args(signature.result)[1:] if typing.get_origin(signature.result) is typing.Annotated else ()
    return next((each for each in extras if isinstance(each, str) and "/" in each), BYTES)


def unwritable(result: Any, error: BaseException) -> Refusal:
    """Return the refusal for a result that cannot be written; the reason is in the log only."""
    kind = type(result).__name__
    return Refusal(
        500, "handler_error", "UnwritableResult", detail=f"the result, of type {kind}, cannot be written: {error}"
    )


class _MediaStream(Struct, frozen=True):
    """A `StreamWriter` for one media type."""

    media: str
    encode: Callable[[Any], bytes]
    end: bytes
    breaking: tuple[bytes, bytes] | None
    """Bytes around the JSON of an error; None: it could not be distinguished from an item, so none is sent."""

    @property
    def headers(self) -> dict[str, str]:
        return {"content-type": self.media, "cache-control": "no-store", "x-accel-buffering": "no"}

    def piece(self, item: Any) -> bytes:
        try:
            return self.encode(item)
        except _UNWRITABLE as error:
            detail = f"a piece of type {type(item).__name__} cannot be written: {error}"
            raise RefusedError(Refusal(500, "handler_error", "UnwritableResult", detail=detail)) from error

    def broken(self, refusal: Refusal, request_id: str) -> bytes:
        if self.breaking is None:
            return b""
        before, after = self.breaking
        return before + bytes(refusal.reply(request_id).body) + after


def _encode_event(item: Any) -> bytes:
    # Text is sent unchanged, each line as a line of data; everything else as JSON.
    if isinstance(item, str):
        return "".join(f"data: {line}\n" for line in _LINE_ENDS.split(item)).encode() + b"\n"
    return b"data: " + _to_json(item) + b"\n\n"


def _encode_bytes(item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    raise TypeError("only bytes and text can be sent unchanged")


_STREAMS: dict[str, StreamWriter] = {
    EVENTS: _MediaStream(
        EVENTS, _encode_event, end=b"event: end\ndata: \n\n", breaking=(b"event: error\ndata: ", b"\n\n")
    ),
    LINES: _MediaStream(LINES, lambda item: _to_json(item) + b"\n", end=b"", breaking=(b"", b"\n")),
    BYTES: _MediaStream(BYTES, _encode_bytes, end=b"", breaking=None),
}
