"""From a call to its reply: read the arguments, call the handler, write the result.

What the handler raises goes to the log with its traceback and the request's id; the caller learns the exception's type and
nothing else, since its text may hold somebody's data. It refuses to send anything: lanes do.
"""

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from pgpu.errors import RequestError
from pgpu.functions.api import Context
from pgpu.functions.handler import Handler
from pgpu.functions.ipc.messages import Reply
from pgpu.functions.protocols import Interpreter, ParsedCall, Refusal, RefusedError, handler_error, handler_refusal
from pgpu.functions.worker.executors.call_inbox import WorkItem

_NOBODY = Context()
_CANCELLED = Refusal(499, "cancelled", "nobody waits for it any more")


class CallCodec:
    """Serves calls with one handler."""

    def __init__(self, handler: Handler, interpreter: Interpreter) -> None:
        self.handler, self._interpreter = handler, interpreter
        signature = handler.signature
        self._wants_context = signature.context_index is not None or signature.context_name is not None

    def read(self, work: WorkItem) -> ParsedCall | Reply:
        """Read a call's arguments; a reply where it has none, or where nobody waits for it."""
        found: ParsedCall | Refusal = _CANCELLED if work.is_cancelled else self._interpreter.read(work.call, work.body)
        if not isinstance(found, Refusal):
            return found
        if found.detail:
            log(f"request {work.call.id}: {found.detail}")
        return found.reply(work.call.id)

    def context(self, work: WorkItem, asked: ParsedCall, ask_cancelled: Callable[[], bool]) -> Context:
        """Make what the handler may know of the request, if it asks for that."""
        if not self._wants_context:
            return _NOBODY
        return Context(work.call.id, asked.headers, work.deadline_seconds, ask_cancelled)

    def reply(self, work: WorkItem, asked: ParsedCall, result: Any) -> Reply:
        """Write a result; of a batch, one request's may be an exception, which fails that request alone."""
        if isinstance(result, Exception):
            return self.failures([work], result)[0]
        written = asked.form.write(result)
        if isinstance(written, Refusal):
            log(f"request {work.call.id}: {written.error}: {written.detail}")
            return written.reply(work.call.id)
        return written

    def cancelled(self, work: WorkItem) -> Reply:
        """Write what ends a call for which nobody waits."""
        return _CANCELLED.reply(work.call.id)

    def failures(self, works: Sequence[WorkItem], error: BaseException) -> list[Reply]:
        """Log what the handler raised, and write what the callers get."""
        refused = describe_failure(f"request {', '.join(work.call.id for work in works)}", error)
        return [refused.reply(work.call.id) for work in works]


def describe_failure(what: str, error: BaseException) -> Refusal:
    """Log what the user's code raised, and say what a caller may know of it."""
    if isinstance(error, RefusedError):
        log(f"{what}: {error.refusal.error}: {error.refusal.detail}")
        return error.refusal
    if (said := handler_refusal(error)) is not None:
        log(f"{what}: {type(error).__name__}: {said.error}")
        return said
    log_failure(f"{what} failed", error)
    return handler_error(error)


def describe_failed_start(what: str, error: BaseException) -> str:
    """Log why a function does not start, and return what may be told of it: its type, or what pgpu says of the code."""
    if isinstance(error, RequestError):
        log(f"{what}: {error}{f' ({error.hint})' if error.hint else ''}")
        return str(error)
    log_failure(what, error)
    return type(error).__name__


def log_failure(what: str, error: BaseException) -> None:
    """Write a traceback to the job's log."""
    log(f"{what}\n{''.join(traceback.format_exception(error))}".rstrip("\n"))


def log(line: str) -> None:
    """Write to the job's log."""
    sys.stderr.write(f"pgpu: {line}\n")
    sys.stderr.flush()
