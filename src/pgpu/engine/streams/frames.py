"""The frames that a monitor and the clients of its job exchange over one stream socket."""

import json
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from pgpu.structs import Struct, to_builtins

_HEADER = struct.Struct(">BI")
_MOST_PAYLOAD_BYTES = 1 << 20
_MOST_HELLO_BYTES = 512
_MOST_OFFSET = (1 << 63) - 1


class Kind(IntEnum):
    """Kinds of frames; the first three come from clients, the others from the monitor.

    Signals and sizes of terminals go another way (`wake`): here they would stand behind input that the job does not read.
    """

    HELLO = 1
    """A `Hello`, once, first."""

    STDIN = 2
    STDIN_END = 3
    OUTPUT = 4
    """Bytes of the log as they lie there, from where the last frame ended; records may be cut anywhere."""

    GAP = 5
    """The next `OUTPUT` begins at this 64-bit offset: what was between is lost."""

    END = 6
    """The job is final in the ledger, and everything it wrote was sent."""


class Hello(Struct, frozen=True):
    """What a client wants."""

    offset: int
    """Where in the log to begin."""

    holds_back: bool
    """Whether the job is held back rather than that this client loses output."""

    owns_stdin: bool
    """Whether the job's standard input ends when this client goes."""


class Frame(Struct, frozen=True):
    """One thing said."""

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
        ValueError: It is none.
    """
    if len(payload) > _MOST_HELLO_BYTES:  # Deeper JSON than this has room for ends Python's own reader.
        raise ValueError("this is no greeting")
    fields: Any = json.loads(payload)
    offset, holds_back, owns_stdin = _values_of(fields, "offset", "holds_back", "owns_stdin")
    if type(offset) is not int or not 0 <= offset <= _MOST_OFFSET:
        raise ValueError("this is no offset")
    return Hello(offset, bool(holds_back), bool(owns_stdin))


def _values_of(fields: Any, *names: str) -> list[Any]:
    if not isinstance(fields, dict) or any(name not in fields for name in names):
        raise ValueError("this is no greeting")
    return [fields[name] for name in names]


def encode_gap(offset: int) -> bytes:
    """Return a frame that says where output goes on."""
    return encode_frame(Kind.GAP, struct.pack(">Q", offset))


def decode_gap(payload: bytes) -> int:
    """Return the offset where output goes on."""
    offset: int = struct.unpack(">Q", payload)[0]
    return offset


class FrameDecoder:
    """Turns bytes, cut anywhere, back into frames."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield every frame that these bytes complete.

        Raises:
            ValueError: These are no frames.
        """
        self._pending += data
        while len(self._pending) >= _HEADER.size:
            number, payload_bytes = _HEADER.unpack_from(self._pending)
            if payload_bytes > _MOST_PAYLOAD_BYTES:
                raise ValueError("this is no frame")
            end = _HEADER.size + payload_bytes
            if len(self._pending) < end:
                return
            payload = bytes(self._pending[_HEADER.size : end])
            del self._pending[:end]
            yield Frame(Kind(number), payload)
