"""Replies on their way to the front: small ones in line, large ones as memory files, streams piece by piece.

It refuses to decide when: lanes put off what is small while more calls wait, and flush before they do.
"""

import time
from typing import Any

from pgpu.functions.calls.blocking import Port
from pgpu.functions.calls.files import file_of
from pgpu.functions.calls.frames import INLINE_BYTES, frame
from pgpu.functions.calls.messages import Chunk, Kind, Reply

STREAM_WINDOW = 16
"""Pieces of a stream that may be on their way: a slow caller stops its handler, and fills nobody's memory."""


def put_off_reply(port: Port, number: int, reply: Reply, began_seconds: float) -> float:
    """Write a whole reply, to be sent with the next flush; a large one leaves at once.

    Returns:
        The monotonic clock, read for the reply's own times.
    """
    now = time.monotonic()
    times = (True, began_seconds, now - began_seconds)
    if len(reply.body) <= INLINE_BYTES:
        port.put_off(frame(Kind.REPLY, number, (reply.status, reply.headers, reply.body, *times)))
    else:
        written = frame(Kind.REPLY, number, (reply.status, reply.headers, b"", *times), has_file=True)
        port.send(written, file_of(reply.body))
    return now


def send_head(port: Port, number: int, head: Reply, began_seconds: float) -> None:
    """Begin a stream."""
    times = (False, began_seconds, time.monotonic() - began_seconds)
    port.send(frame(Kind.REPLY, number, (head.status, head.headers, b"", *times)))


def send_piece(port: Port, number: int, piece: Any) -> None:
    """Send one piece of a stream; a large one as a file."""
    if len(piece) <= INLINE_BYTES:
        port.send(frame(Kind.CHUNK, number, (piece,)))
    else:
        port.send(frame(Kind.CHUNK, number, Chunk(b""), has_file=True), file_of(piece))


def send_end(port: Port, number: int, *, is_broken: bool) -> None:
    """End a stream."""
    port.send(frame(Kind.CHUNK, number, Chunk(b"", is_last=True, is_broken=is_broken)))
