"""Frames: a fixed header (length, kind, flags, number of the call) and one message in msgpack. Pure: bytes in, frames out.

Messages have a maximum length; larger bodies travel as memory files next to the frame.
"""

import struct
from typing import Any, NamedTuple

import msgspec

from pgpu.errors import PgpuError
from pgpu.functions.ipc.messages import Call, Chunk, Command, FrameKind, Notification, Reply
from pgpu.units import MIB

INLINE_BYTES = MIB
"""Largest body inside a frame. Measured: up to this size a copy is cheaper than a memory file with its mapping and page faults."""

LONGEST_MESSAGE_BYTES = 4 * INLINE_BYTES
"""An inline body and the largest headers that a replica accepts, with a margin."""

HAS_FILE = 1
"""Flag: the body is the next memory file that came with the bytes."""

_HEADER = struct.Struct("<IBBQ")
_KINDS = frozenset(FrameKind)
_encode = msgspec.msgpack.Encoder().encode


class MalformedFrameError(PgpuError):
    """The peer sent bytes that are no valid frames; the connection cannot be used any more."""


class Frame(NamedTuple):
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
    payload = b"" if message is None else _encode(message)
    return _HEADER.pack(len(payload), kind, HAS_FILE if has_file else 0, number) + payload


class Decoder:
    """Splits a byte stream into frames, independent of how reads cut it."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> list[Frame]:
        """Return the frames that are complete now; keep an incomplete rest for the next call.

        Raises:
            MalformedFrameError: A header is invalid.
        """
        data = self._rest + received if self._rest else received
        view, offset, length = memoryview(data), 0, len(data)
        frames: list[Frame] = []
        while length - offset >= _HEADER.size:
            size, kind, flags, number = _HEADER.unpack_from(data, offset)
            if size > LONGEST_MESSAGE_BYTES or kind not in _KINDS or flags > HAS_FILE:
                raise MalformedFrameError(f"kind {kind}, {size} bytes, flags {flags}")
            start = offset + _HEADER.size
            if length - start < size:
                break
            offset = start + size
            frames.append(Frame(kind, number, view[start:offset], flags == HAS_FILE))
        self._rest = data[offset:] if offset < length else b""
        return frames


_DECODERS = {
    FrameKind.CALL: msgspec.msgpack.Decoder(Call).decode,
    FrameKind.REPLY: msgspec.msgpack.Decoder(Reply).decode,
    FrameKind.CHUNK: msgspec.msgpack.Decoder(Chunk).decode,
    FrameKind.COMMAND: msgspec.msgpack.Decoder(Command).decode,
    FrameKind.NOTIFICATION: msgspec.msgpack.Decoder(Notification).decode,
}


def decode_message(frame: Frame) -> Any:
    """Decode a frame's message; None for kinds without one.

    Raises:
        MalformedFrameError: The payload does not match the kind.
    """
    decode = _DECODERS.get(frame.kind)  # type: ignore[call-overload] # an IntEnum's member equals its number
    try:
        return decode(frame.payload) if decode is not None else None
    except msgspec.MsgspecError as error:
        raise MalformedFrameError(f"kind {frame.kind}: {error}") from error
