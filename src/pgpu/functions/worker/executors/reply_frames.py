"""Replies on their way to the front: small ones in line, large ones as memory files, streams piece by piece.

It refuses to decide when: lanes put off what is small while more calls wait, and flush before they do.
"""

import time
from typing import Any

from pgpu.functions.ipc.blocking_channel import BlockingChannel
from pgpu.functions.ipc.call_frames import INLINE_BYTES, encode_frame
from pgpu.functions.ipc.memory_files import write_body
from pgpu.functions.ipc.messages import Chunk, FrameKind, Reply

STREAM_WINDOW = 16
"""Pieces of a stream that may be on their way: a slow caller stops its handler, and fills nobody's memory."""


def queue_reply(port: BlockingChannel, number: int, reply: Reply, began_seconds: float) -> float:
    """Write a whole reply, to be sent with the next flush; a large one leaves at once.

    Returns:
        The monotonic clock, read for the reply's own times.
    """
    now = time.monotonic()
    times = (True, began_seconds, now - began_seconds)
    if len(reply.body) <= INLINE_BYTES:
        port.put_off(encode_frame(FrameKind.REPLY, number, (reply.status, reply.headers, reply.body, *times)))
    else:
        written = encode_frame(FrameKind.REPLY, number, (reply.status, reply.headers, b"", *times), has_file=True)
        port.send(written, write_body(reply.body))
    return now


def send_head(port: BlockingChannel, number: int, head: Reply, began_seconds: float) -> None:
    """Begin a stream."""
    times = (False, began_seconds, time.monotonic() - began_seconds)
    port.send(encode_frame(FrameKind.REPLY, number, (head.status, head.headers, b"", *times)))


def send_piece(port: BlockingChannel, number: int, piece: Any) -> None:
    """Send one piece of a stream; a large one as a file."""
    if len(piece) <= INLINE_BYTES:
        port.send(encode_frame(FrameKind.CHUNK, number, (piece,)))
    else:
        port.send(encode_frame(FrameKind.CHUNK, number, Chunk(b""), has_file=True), write_body(piece))


def send_end(port: BlockingChannel, number: int, *, is_broken: bool) -> None:
    """End a stream."""
    port.send(encode_frame(FrameKind.CHUNK, number, Chunk(b"", is_last=True, is_broken=is_broken)))
