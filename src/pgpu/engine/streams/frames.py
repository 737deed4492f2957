"""The protocol between a job's monitor and its clients: frames over one stream socket.

A frame is its kind (1 byte), the length of its payload (4 bytes, big endian) and the payload. The monitor's side is
native/monitor/followers.c.
"""

import json
import struct
from collections.abc import Iterator
from enum import IntEnum

from pgpu.structs import DecodeError, JsonDecoder, Struct, to_builtins

_HEADER = struct.Struct(">BI")
_MOST_PAYLOAD_BYTES = 1 << 20
_MOST_HELLO_BYTES = 512
_MOST_OFFSET = (1 << 63) - 1


class Kind(IntEnum):
    """Kinds of frames; clients send the first three, the monitor sends the others.

    Signals and terminal sizes use a datagram socket: on this connection they would queue behind input that the job does not
    read.
    """

    HELLO = 1
    """A `Hello`: the first frame of a connection."""

    STDIN = 2
    STDIN_END = 3
    OUTPUT = 4
    """The bytes of the log that follow those of the last frame; a frame may end anywhere in a record."""

    GAP = 5
    """The next `OUTPUT` begins at this 64-bit offset; the bytes before it are lost."""

    END = 6
    """The job is final in the ledger, and all of its output was sent."""


class Hello(Struct, frozen=True):
    """The options of one client."""

    offset: int
    """Offset in the log where the output begins."""

    holds_back: bool
    """Whether a slow client blocks the job; otherwise the client loses output."""

    owns_stdin: bool
    """Whether the job's standard input ends with this connection."""


_HELLO = JsonDecoder(Hello)


class Frame(Struct, frozen=True):
    """A decoded frame."""

    kind: Kind
    payload: bytes = b""


def encode_frame(kind: Kind, payload: bytes = b"") -> bytes:
    """Return a frame's bytes."""
    return _HEADER.pack(kind, len(payload)) + payload


def encode_hello(hello: Hello) -> bytes:
    """Return the bytes of the first frame."""
    return encode_frame(Kind.HELLO, json.dumps(to_builtins(hello)).encode())


def decode_hello(payload: bytes) -> Hello:
    """Read the first frame's payload.

    Raises:
        ValueError: The payload is no `Hello`.
    """
    if len(payload) > _MOST_HELLO_BYTES:  # Longer JSON could be nested so deeply that the parser fails.
        raise ValueError("the first frame is no hello")
    try:
        hello = _HELLO.decode(payload)
    except DecodeError as exc:
        raise ValueError("the first frame is no hello") from exc
    if not 0 <= hello.offset <= _MOST_OFFSET:
        raise ValueError("the first frame has no valid offset")
    return hello


def encode_gap(offset: int) -> bytes:
    """Return the `GAP` frame for the offset where output continues."""
    return encode_frame(Kind.GAP, struct.pack(">Q", offset))


def decode_gap(payload: bytes) -> int:
    """Return the offset where output continues."""
    offset: int = struct.unpack(">Q", payload)[0]
    return offset


class FrameDecoder:
    """Decodes frames from pieces that may end anywhere in a frame."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield every frame that these bytes complete.

        Raises:
            ValueError: The bytes are no frames.
        """
        self._pending += data
        while len(self._pending) >= _HEADER.size:
            number, payload_bytes = _HEADER.unpack_from(self._pending)
            if payload_bytes > _MOST_PAYLOAD_BYTES:
                raise ValueError("the bytes are no frame")
            end = _HEADER.size + payload_bytes
            if len(self._pending) < end:
                return
            payload = bytes(self._pending[_HEADER.size : end])
            del self._pending[:end]
            yield Frame(Kind(number), payload)
