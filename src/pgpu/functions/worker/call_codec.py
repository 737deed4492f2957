"""Calls and replies in the worker: arguments from a call, a reply from a result or an exception, frames from a reply.

An exception of the handler is logged with its traceback and the request's id. The caller gets only the exception's type,
since its text may contain another caller's data.
"""

import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from pgpu.errors import RequestError
from pgpu.functions.api import Context
from pgpu.functions.handler import Handler
from pgpu.functions.ipc.blocking_channel import BlockingChannel
from pgpu.functions.ipc.call_messages import INLINE_BYTES, Body, Call, Chunk, FrameKind, Reply, encode_frame
from pgpu.functions.ipc.memory_files import write_body
from pgpu.functions.protocols import Interpreter, ParsedCall, Refusal, RefusedError, handler_error, handler_refusal
from pgpu.structs import Struct

_EMPTY_CONTEXT = Context()
_CANCELLED = Refusal(499, "cancelled", "the caller has left")


class WorkItem(Struct):
    """One call that this worker has received."""

    number: int
    call: Call
    deadline_seconds: float
    """On the monotonic clock."""

    body: Body
    is_cancelled: bool = False
    credit: int = 0
    """Pieces of the call's stream that may be sent now."""


class CallCodec:
    """Decodes calls and encodes replies of one handler."""

    def __init__(self, handler: Handler, interpreter: Interpreter) -> None:
        self.handler, self._interpreter = handler, interpreter
        signature = handler.signature
        self._needs_context = signature.context_index is not None or signature.context_name is not None

    def read(self, work: WorkItem) -> ParsedCall | Reply:
        """Decode a call's arguments; return a reply where they are invalid or the call was cancelled."""
        found: ParsedCall | Refusal = _CANCELLED if work.is_cancelled else self._interpreter.read(work.call, work.body)
        if not isinstance(found, Refusal):
            return found
        if found.detail:
            log(f"request {work.call.id}: {found.detail}")
        return found.reply(work.call.id)

    def context(self, work: WorkItem, asked: ParsedCall, is_cancelled: Callable[[], bool]) -> Context:
        """Return the handler's `Context`; an empty one for a handler without such a parameter."""
        if not self._needs_context:
            return _EMPTY_CONTEXT
        return Context(work.call.id, asked.headers, work.deadline_seconds, is_cancelled)

    def reply(self, work: WorkItem, asked: ParsedCall, result: Any) -> Reply:
        """Encode a result. In a batch a single result may be an exception, which fails that request alone."""
        if isinstance(result, Exception):
            return self.failure_replies([work], result)[0]
        written = asked.form.write(result)
        if isinstance(written, Refusal):
            log(f"request {work.call.id}: {written.error}: {written.detail}")
            return written.reply(work.call.id)
        return written

    def batch_replies(self, read: Sequence[tuple[WorkItem, ParsedCall]], results: Sequence[Any]) -> list[Reply]:
        """Encode the results of one batch.

        Raises:
            ValueError: The handler returned more or fewer results than it got requests.
        """
        if len(results) != len(read):
            raise ValueError(f"the handler answered {len(read)} requests with {len(results)} results")
        return [self.reply(work, asked, result) for (work, asked), result in zip(read, results, strict=True)]

    def cancelled_reply(self, work: WorkItem) -> Reply:
        """Return the reply that ends a cancelled call."""
        return _CANCELLED.reply(work.call.id)

    def failure_replies(self, works: Sequence[WorkItem], error: BaseException) -> list[Reply]:
        """Log an exception of the handler and return the callers' replies."""
        refusal = describe_failure(f"request {', '.join(work.call.id for work in works)}", error)
        return [refusal.reply(work.call.id) for work in works]


def describe_failure(subject: str, error: BaseException) -> Refusal:
    """Log an exception of the user's code, and return the part of it that a caller may see."""
    if isinstance(error, RefusedError):
        log(f"{subject}: {error.refusal.error}: {error.refusal.detail}")
        return error.refusal
    if (refusal := handler_refusal(error)) is not None:
        log(f"{subject}: {type(error).__name__}: {refusal.error}")
        return refusal
    log_failure(f"{subject} failed", error)
    return handler_error(error)


def describe_failed_start(subject: str, error: BaseException) -> str:
    """Log why a function does not start, and return the public part: pgpu's own message, or the exception's type."""
    if isinstance(error, RequestError):
        log(f"{subject}: {error}{f' ({error.hint})' if error.hint else ''}")
        return str(error)
    log_failure(subject, error)
    return type(error).__name__


def log_failure(subject: str, error: BaseException) -> None:
    log(f"{subject}\n{''.join(traceback.format_exception(error))}".rstrip("\n"))


def log(line: str) -> None:
    """Write a line to the job's log.

    Not through `logging`: that belongs to the user's code in this process, and its configuration may disable other loggers.
    """
    sys.stderr.write(f"pgpu: {line}\n")
    sys.stderr.flush()


def queue_reply(channel: BlockingChannel, number: int, reply: Reply, began_seconds: float) -> float:
    """Queue a complete reply for the next flush; one that needs a memory file is sent at once.

    Returns:
        The monotonic clock, as read for the reply's own duration.
    """
    now = time.monotonic()
    times = (True, began_seconds, now - began_seconds)
    if len(reply.body) <= INLINE_BYTES:
        channel.queue(encode_frame(FrameKind.REPLY, number, (reply.status, reply.headers, reply.body, *times)))
    else:
        head = encode_frame(FrameKind.REPLY, number, (reply.status, reply.headers, b"", *times), has_file=True)
        channel.send(head, write_body(reply.body))
    return now


def send_head(channel: BlockingChannel, number: int, head: Reply, began_seconds: float) -> None:
    times = (False, began_seconds, time.monotonic() - began_seconds)
    channel.send(encode_frame(FrameKind.REPLY, number, (head.status, head.headers, b"", *times)))


def send_piece(channel: BlockingChannel, number: int, piece: Any) -> None:
    """Send one piece of a stream; a large one as a memory file."""
    if len(piece) <= INLINE_BYTES:
        channel.send(encode_frame(FrameKind.CHUNK, number, (piece,)))
    else:
        channel.send(encode_frame(FrameKind.CHUNK, number, Chunk(b""), has_file=True), write_body(piece))


def send_end(channel: BlockingChannel, number: int, *, is_broken: bool) -> None:
    channel.send(encode_frame(FrameKind.CHUNK, number, Chunk(b"", is_last=True, is_broken=is_broken)))
