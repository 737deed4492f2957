"""Frames: a fixed header and one message in msgpack. Pure: bytes in, frames out.

The header says how long the message is, its kind, its flags and the call's number. It refuses to read a message that is
longer than any side would write: what is large travels beside the frame as a memory file.
"""

import struct
from typing import Any, NamedTuple

import msgspec

from pgpu.errors import PgpuError
from pgpu.functions.ipc.messages import Call, Chunk, Command, FrameKind, Notification, Reply
from pgpu.units import MIB

INLINE_BYTES = MIB
"""Bodies up to this lie in the frame. Measured: below it a copy is cheaper than a file, its map and its faults."""

LONGEST_MESSAGE_BYTES = 4 * INLINE_BYTES
"""A body in line and the headers that a front accepts, with room to spare."""

HAS_FILE = 1
"""Flag: the body is the next memory file that came with the bytes."""

_HEADER = struct.Struct("<IBBQ")
_KINDS = frozenset(FrameKind)
_encode = msgspec.msgpack.Encoder().encode


class MalformedFrameError(PgpuError):
    """The other side does not speak this language; its connection is of no more use."""


class Frame(NamedTuple):
    """One message on its way, not yet read."""

    kind: int
    number: int
    payload: memoryview
    has_file: bool


def encode_frame(kind: int, number: int, message: object = None, *, has_file: bool = False) -> bytes:
    """Write one frame; without a message its payload is empty.

    Args:
        kind: One of `FrameKind`.
        number: The call's, 0 to 2⁶⁴ − 1.
        message: A message, or a tuple of the same fields in the same order, which is cheaper to make.
        has_file: Its body travels beside it.
    """
    payload = b"" if message is None else _encode(message)
    return _HEADER.pack(len(payload), kind, HAS_FILE if has_file else 0, number) + payload


class Decoder:
    """Cuts a stream of bytes into frames, however the bytes were cut on their way."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> list[Frame]:
        """Return the frames that are whole now; keep what is not.

        Raises:
            MalformedFrameError: These bytes are no frames.
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


_READERS = {
    FrameKind.CALL: msgspec.msgpack.Decoder(Call).decode,
    FrameKind.REPLY: msgspec.msgpack.Decoder(Reply).decode,
    FrameKind.CHUNK: msgspec.msgpack.Decoder(Chunk).decode,
    FrameKind.ASK: msgspec.msgpack.Decoder(Command).decode,
    FrameKind.TELL: msgspec.msgpack.Decoder(Notification).decode,
}


def decode_message(one: Frame) -> Any:
    """Read a frame's message; None where the kind has none.

    Raises:
        MalformedFrameError: The payload is not what the kind promises.
    """
    reader = _READERS.get(one.kind)  # type: ignore[call-overload] # an IntEnum's member is its number
    try:
        return reader(one.payload) if reader is not None else None
    except msgspec.MsgspecError as error:
        raise MalformedFrameError(f"kind {one.kind}: {error}") from error
