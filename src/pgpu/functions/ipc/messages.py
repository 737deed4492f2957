"""Messages of the call protocol: frozen structs that msgspec writes as msgpack arrays.

Compatibility: fields are only added at the end and have defaults, so a gateway and a replica of neighbouring versions
understand each other.
"""

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    Body = bytes | bytearray | memoryview
else:
    Body = memoryview  # the type that msgspec decodes to: a view of the received buffer, without a copy
"""A body in memory. Senders pass any of the three types; receivers get a view of the received buffer."""

BODILESS = frozenset({204, 304})
"""Statuses whose responses end after the headers; a client would read a body as the start of the next response."""


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
