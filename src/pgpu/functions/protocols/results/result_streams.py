"""Streams: server-sent events, lines of JSON, or bytes as they come.

A caller that accepts only JSON gets all pieces in one list. It refuses to end a broken stream as if it were whole.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from pgpu.functions.handler import Signature
from pgpu.functions.protocols.call_refusal import Refusal, RefusedError
from pgpu.functions.protocols.library_types import bare_type, encode_library_type
from pgpu.functions.protocols.media_types import BYTES, EVENTS, JSON, LINES, MSGPACK, negotiate
from pgpu.functions.protocols.parsed_call import StreamWriter

STREAMS = (EVENTS, LINES, JSON, MSGPACK)
"""What the pieces of a stream can be written as; the last two as one list."""

_LINE_ENDS = re.compile(r"\r\n|\r|\n")
_to_json = msgspec.json.Encoder(enc_hook=encode_library_type).encode


@dataclass(frozen=True, slots=True)
class EventStream:
    """One way to write pieces."""

    headers: dict[str, str]
    write: Callable[[Any], bytes]
    end: bytes
    breaking: tuple[bytes, bytes] | None
    """What stands around the error's JSON; None: the reader could not tell it from a piece."""

    def piece(self, item: Any) -> bytes:
        """Write one piece.

        Raises:
            RefusedError: It cannot be written.
        """
        try:
            return self.write(item)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            detail = f"a piece of type {type(item).__name__} cannot be written: {error}"
            raise RefusedError(Refusal(500, "handler_error", "UnwritableResult", detail=detail)) from error

    def broken(self, refusal: Refusal, request_id: str) -> bytes:
        """Write the error as the last piece."""
        if self.breaking is None:
            return b""
        before, after = self.breaking
        return before + bytes(refusal.reply(request_id).body) + after


def stream_writer(signature: Signature, accept: str | None) -> StreamWriter | None:
    """Choose how pieces are written; None: the caller accepts no stream, or wants one list rather."""
    gives_bytes = bare_type(signature.result) is bytes
    media = negotiate(accept, (BYTES, *STREAMS) if gives_bytes else (*STREAMS, BYTES))
    return _STREAMS.get(media) if media else None


def _event(item: Any) -> bytes:
    """An event of one piece; text goes as it is, its lines as lines of data, everything else as JSON."""
    if isinstance(item, str):
        return "".join(f"data: {line}\n" for line in _LINE_ENDS.split(item)).encode() + b"\n"
    return b"data: " + _to_json(item) + b"\n\n"


def _line(item: Any) -> bytes:
    return _to_json(item) + b"\n"


def _bytes(item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    raise TypeError("only bytes and text can be sent as they are")


def _headers(media: str) -> dict[str, str]:
    return {"content-type": media, "cache-control": "no-store", "x-accel-buffering": "no"}


_STREAMS: dict[str, StreamWriter] = {
    EVENTS: EventStream(
        _headers(EVENTS), _event, end=b"event: end\ndata: \n\n", breaking=(b"event: error\ndata: ", b"\n\n")
    ),
    LINES: EventStream(_headers(LINES), _line, end=b"", breaking=(b"", b"\n")),
    BYTES: EventStream(_headers(BYTES), _bytes, end=b"", breaking=None),
}
