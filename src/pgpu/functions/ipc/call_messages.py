"""The call protocol: messages as msgpack arrays, and frames of a fixed header (length, kind, flags, number of the call) and one message.

Pure: bytes in, frames out. Compatibility: fields of messages are only added at the end and have defaults, so a gateway and a
replica of neighbouring versions understand each other. Messages have a maximum length; larger bodies travel as memory files.
"""

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pgpu.errors import PgpuError
from pgpu.units import MIB

if TYPE_CHECKING:
    Body = bytes | bytearray | memoryview
else:
    Body = memoryview  # the type that msgspec decodes to: a view of the received buffer, without a copy
"""A body in memory. Senders pass any of the three types; receivers get a view of the received buffer."""

BODILESS = frozenset({204, 304})
"""Statuses of responses that end after the headers; a client would read a body as the start of the next response."""


class FrameKind(IntEnum):
    """Type of a frame."""

    CALL = 1
    """A `Call`: replica to worker, or gateway to replica."""

    REPLY = 2
    """A `Reply` to the call with the same number; complete, unless chunks follow."""

    CHUNK = 3
    """A `Chunk`: the next piece of a reply's body."""

    CANCEL = 4
    """The call with this number was cancelled. Empty; has no answer of its own."""

    CREDIT = 5
    """Flow control: one chunk of this number was delivered, so one more may be sent. Empty."""

    COMMAND = 6
    """A `Command`, independent of calls."""

    NOTIFICATION = 7
    """A `Notification`: the result of the `Command` with the same number, or, with number 0, a status change."""


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request, as the worker gets it."""

    id: str
    """The request's id, as in `X-Request-Id` and in the log."""

    method: str
    """In upper case."""

    path: str
    """Decoded, with the leading slash and without the query."""

    query: str
    """The part after `?`, still encoded."""

    headers: dict[str, str]
    """Names in lower case; several headers of one name are joined with `, `."""

    timeout_seconds: float
    """Time left until the caller's deadline, when the frame was sent."""

    body: Body = b""
    """The whole body; empty where it travels as a memory file."""


class Reply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer to a call, or its head where the body follows in chunks."""

    status: int
    """HTTP status."""

    headers: dict[str, str]
    """Names in lower case; no Content-Length. Set-Cookie cannot be joined: several of them differ in the case of their letters."""

    body: Body = b""
    """The whole body; empty where it travels as a memory file or in chunks."""

    is_last: bool = True
    """False: chunks follow."""

    started_seconds: float = 0.0
    """Start of the handler's call on the monotonic clock; 0: the handler did not start."""

    exec_seconds: float = 0.0
    """Duration of binding, calling and encoding, up to this message."""


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece of a streamed body."""

    body: Body
    is_last: bool = False
    is_broken: bool = False
    """The handler failed after its answer had begun: the connection must end without a proper end of the body."""


class Command(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A control command: `spawn` to the zygote; `health` and `leave` to the worker; `describe`, `state`, `park` and `wake` to the replica."""

    name: str


class Notification(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A result or a status change: `imported`, `born`, `ended`, `ready`, `failed`, `health`, `state`, `description`."""

    name: str
    data: dict[str, Any] = {}


INLINE_BYTES = MIB
"""Largest body inside a frame. Measured: up to this size a copy is cheaper than a memory file with its mapping and page faults."""

STREAM_WINDOW = 16
"""Pieces of a stream that may be in flight: a slow caller pauses its handler instead of filling memory."""

LONGEST_MESSAGE_BYTES = 4 * INLINE_BYTES
"""An inline body and the largest headers that a replica accepts, with a margin."""

HAS_FILE = 1
"""Flag: the body is the next memory file that came with the bytes."""

_HEADER = struct.Struct("<IBBQ")
_KINDS = frozenset(FrameKind)
_encode = msgspec.msgpack.Encoder().encode


class MalformedFrameError(PgpuError):
    """The peer sent bytes that are no valid frames; the connection cannot be used any more."""


class CallFrame(NamedTuple):
    """One received frame with its message still encoded."""

    kind: int
    number: int
    payload: memoryview
    has_file: bool


def encode_frame(kind: int, number: int, message: object = None, *, has_file: bool = False) -> bytes:
    """Encode one frame; without a message its payload is empty.

    Args:
        kind: One of `FrameKind`.
        number: The call's number, 0 to 2⁶⁴ − 1.
        message: A message, or a tuple of the same fields in the same order, which is cheaper to make.
        has_file: The body travels next to the frame as a memory file.
    """
    # Tuples and structs with array_like encode to the same msgpack array.
    payload = b"" if message is None else _encode(message)
    return _HEADER.pack(len(payload), kind, HAS_FILE if has_file else 0, number) + payload


class Decoder:
    """Splits a byte stream into frames, independent of how reads cut it."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> list[CallFrame]:
        """Return the frames that are complete now; keep an incomplete rest for the next call.

        Raises:
            MalformedFrameError: A header is invalid.
        """
        data = self._rest + received if self._rest else received
        view, offset, length = memoryview(data), 0, len(data)
        frames: list[CallFrame] = []
        while length - offset >= _HEADER.size:
            size, kind, flags, number = _HEADER.unpack_from(data, offset)
            if size > LONGEST_MESSAGE_BYTES or kind not in _KINDS or flags > HAS_FILE:
                raise MalformedFrameError(f"kind {kind}, {size} bytes, flags {flags}")
            start = offset + _HEADER.size
            # The length was checked first: an invalid one would make the decoder buffer without limit.
            if length - start < size:
                break
            offset = start + size
            # A view, not a copy: payloads can be large, and the frame keeps `data` alive.
            frames.append(CallFrame(kind, number, view[start:offset], flags == HAS_FILE))
        self._rest = data[offset:] if offset < length else b""
        return frames


_DECODERS = {
    FrameKind.CALL: msgspec.msgpack.Decoder(Call).decode,
    FrameKind.REPLY: msgspec.msgpack.Decoder(Reply).decode,
    FrameKind.CHUNK: msgspec.msgpack.Decoder(Chunk).decode,
    FrameKind.COMMAND: msgspec.msgpack.Decoder(Command).decode,
    FrameKind.NOTIFICATION: msgspec.msgpack.Decoder(Notification).decode,
}


def decode_message(frame: CallFrame) -> Any:
    """Decode a frame's message; None for kinds without one.

    Raises:
        MalformedFrameError: The payload does not match the kind.
    """
    decode = _DECODERS.get(frame.kind)  # type: ignore[call-overload] # an IntEnum's member equals its number
    try:
        return decode(frame.payload) if decode is not None else None
    except msgspec.MsgspecError as error:
        raise MalformedFrameError(f"kind {frame.kind}: {error}") from error
