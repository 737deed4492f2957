"""One worker from its birth to its end: construct, warm up, serve, close.

It refuses to start itself: the zygote forks it, with a socket to the front and a mark.
"""

import socket
import sys
import time
from dataclasses import dataclass

from pgpu.functions.calls.blocking import GoneError, Port
from pgpu.functions.calls.frames import frame
from pgpu.functions.calls.marks import StartedMark
from pgpu.functions.calls.messages import Kind, Tell
from pgpu.functions.declaring import Declaration
from pgpu.functions.handler import Handler, Loaded
from pgpu.functions.protocols import Interpreter
from pgpu.functions.worker.answering import Answerer, log_failure
from pgpu.functions.worker.batched import BatchedLane
from pgpu.functions.worker.leaving import Leave
from pgpu.functions.worker.single import SingleLane

FAILED = 1
"""Exit status of a worker whose handler could not be constructed."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the zygote has ready for each worker."""

    loaded: Loaded
    declaration: Declaration
    interpreter: Interpreter


def live(end: socket.socket, prepared: Prepared) -> int:
    """Be a worker.

    Returns:
        The exit status.
    """
    leave = Leave()
    leave.listen()
    port = Port(end)
    mark_fd = StartedMark.create()
    mark = StartedMark(mark_fd)
    try:
        handler = _construct(port, prepared, mark_fd)
        if handler is None:
            return FAILED
        _lane(port, mark, handler, prepared, leave).serve()
        _close(handler)
    except GoneError:
        return 0
    finally:
        port.close()
    return 0


def _construct(port: Port, prepared: Prepared, mark_fd: int) -> Handler | None:
    began = time.monotonic()
    try:
        handler = prepared.loaded.construct(prepared.declaration)
        if handler.warmup is not None:
            handler.warmup()
    except BaseException as error:  # noqa: BLE001 - whatever the user's code raises, SystemExit too, is told
        log_failure("the handler could not be constructed", error)
        port.send(frame(Kind.TELL, 0, Tell("failed", {"error": type(error).__name__})))
        return None
    ready = Tell("ready", {"load_seconds": time.monotonic() - began})
    port.send(frame(Kind.TELL, 0, ready, has_file=True), mark_fd)
    return handler


def _lane(port: Port, mark: StartedMark, handler: Handler, prepared: Prepared, leave: Leave) -> SingleLane:
    answerer, batch = Answerer(handler, prepared.interpreter), prepared.declaration.batch
    if batch is not None:
        return BatchedLane(port, mark, answerer, leave, batch)
    return SingleLane(port, mark, answerer, leave)


def _close(handler: Handler) -> None:
    if handler.close is not None:
        try:
            handler.close()
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything; the worker leaves anyway
            log_failure("close() failed", error)
    sys.stdout.flush()
