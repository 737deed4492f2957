"""The messages themselves: frozen values that msgspec writes as msgpack arrays.

Fields are only ever added at the end, with a default: a gateway and a front of neighbouring versions understand each
other. It refuses to interpret a body.
"""

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    Body = bytes | bytearray | memoryview
else:
    Body = memoryview  # what msgspec reads it as: nothing is copied
"""A body in memory. Whoever writes one gives any of the three; who reads one gets a view of what was received."""

BODILESS = frozenset({204, 304})
"""Statuses whose answers end with their head: what follows it is the next answer to whoever reads."""


class FrameKind(IntEnum):
    """What a frame holds."""

    CALL = 1
    """A `Call`: front to worker, or gateway to front."""

    REPLY = 2
    """A `Reply` to the call of the same number; the whole of it, unless chunks follow."""

    CHUNK = 3
    """A `Chunk`: one more piece of the reply's body."""

    CANCEL = 4
    """Nobody waits for this number any more. Empty; never answered by itself."""

    CREDIT = 5
    """One chunk of this number has left for its caller; another one may come. Empty."""

    ASK = 6
    """A `Command`: a question beside the calls."""

    TELL = 7
    """A `Notification`: an answer to a `Command` of the same number, or, with number 0, news."""


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request, as the worker gets it."""

    id: str
    """The request's id, in `X-Request-Id` and in the log."""

    method: str
    """In capitals."""

    path: str
    """Decoded, with the leading slash and without the query."""

    query: str
    """What stands after `?`, still encoded."""

    headers: dict[str, str]
    """Names in lower case; several of one name are joined by `, `."""

    timeout_seconds: float
    """How much longer the caller waits, from when the frame was sent."""

    body: Body = b""
    """The whole body, or empty where it travels as a memory file."""


class Reply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer to a call, or the head of one whose body comes in chunks."""

    status: int
    """HTTP's."""

    headers: dict[str, str]
    """Names in lower case; no Content-Length. Of several Set-Cookie, which cannot be joined, each has letters in another case."""

    body: Body = b""
    """The whole body, or empty where it travels as a memory file or in chunks."""

    is_last: bool = True
    """False: chunks follow."""

    started_seconds: float = 0.0
    """When the handler's call began, on the monotonic clock; 0: it never did."""

    exec_seconds: float = 0.0
    """How long binding, calling and writing took, up to this message."""


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece of a streamed body."""

    body: Body
    is_last: bool = False
    is_broken: bool = False
    """The handler failed after it had begun to answer: the connection must end without a proper end."""


class Command(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A question beside the calls: `health`, `drain`, `describe`, `state`."""

    what: str


class Notification(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An answer, or news: `ready`, `failed`, `health`, `state`, `description`."""

    what: str
    data: dict[str, Any] = {}
