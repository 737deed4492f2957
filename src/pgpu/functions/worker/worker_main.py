"""One worker from its birth to its end: construct, warm up, serve, close.

It refuses to start itself: the zygote forks it, with a socket to the front and a mark.
"""

import contextlib
import gc
import inspect
import os
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from pgpu.functions.api import Declaration
from pgpu.functions.handler import Handler, Loaded, Signature
from pgpu.functions.ipc.blocking_channel import BlockingChannel, GoneError
from pgpu.functions.ipc.call_frames import MalformedFrameError, encode_frame
from pgpu.functions.ipc.messages import FrameKind, Notification
from pgpu.functions.ipc.started_mark import StartedMark
from pgpu.functions.protocols import Interpreter
from pgpu.functions.worker.call_codec import CallCodec, describe_failed_start, log_failure
from pgpu.functions.worker.executors.batch_executor import BatchExecutor
from pgpu.functions.worker.executors.single_executor import SingleExecutor
from pgpu.functions.worker.executors.threaded_executor import ThreadedExecutor
from pgpu.functions.worker.shutdown import ShutdownSignal

FAILED = 1
"""Exit status of a worker whose handler could not be constructed."""


@dataclass(frozen=True, slots=True)
class PreparedFunction:
    """What the zygote has ready for each worker."""

    name: str
    """Of the function."""

    loaded: Loaded
    declaration: Declaration
    signature: Signature
    interpreter: Interpreter


def run_worker(end: socket.socket, prepared: PreparedFunction) -> int:
    """Be a worker.

    Returns:
        The exit status.
    """
    leave = ShutdownSignal()
    leave.listen()
    os.register_at_fork(after_in_child=end.close)  # a child of the handler's that comes back must answer nobody
    mark_fd = StartedMark.create()
    mark = StartedMark(mark_fd)
    with contextlib.closing(BlockingChannel(end)) as port, _loop(prepared) as finish:
        try:
            handler = _construct(port, prepared, mark_fd, finish)
            if handler is None:
                return FAILED
            finish(_serving(port, mark, CallCodec(handler, prepared.interpreter), prepared.declaration, leave))
            _close(handler, finish)
        except (GoneError, MalformedFrameError):
            return 0
    return 0


Finish = Callable[[Any], Any]
"""Waits for what an asynchronous function gave; gives anything else back as it is."""


@contextlib.contextmanager
def _loop(prepared: PreparedFunction) -> Iterator[Finish]:
    """Hold one event loop for everything asynchronous that the handler has, if its calls are."""
    if not prepared.signature.is_async:
        yield lambda given: _run(given) if inspect.iscoroutine(given) else given
        return
    import asyncio  # noqa: PLC0415 - a fifth of a start, and few handlers need it

    from pgpu.functions.ipc.coalescing_loop import CoalescingLoop  # noqa: PLC0415 - likewise

    with asyncio.Runner(loop_factory=CoalescingLoop) as runner:
        yield lambda given: runner.run(given) if inspect.iscoroutine(given) else given


def _run(given: Coroutine[Any, Any, Any]) -> Any:
    import asyncio  # noqa: PLC0415 - a fifth of a start, and few handlers need it

    return asyncio.run(given)


def _construct(port: BlockingChannel, prepared: PreparedFunction, mark_fd: int, finish: Finish) -> Handler | None:
    began = time.monotonic()
    try:
        handler = prepared.loaded.construct(prepared.declaration)
        if prepared.declaration.is_asgi:
            from pgpu.functions.worker.asgi_application import mount_application  # noqa: PLC0415 - loads uvicorn

            handler = mount_application(handler, prepared.name)
        if handler.warmup is not None:
            finish(handler.warmup())
    except BaseException as error:  # noqa: BLE001 - whatever the user's code raises, SystemExit too, is told
        told = describe_failed_start("the handler could not be constructed", error)
        port.send(encode_frame(FrameKind.TELL, 0, Notification("failed", {"error": told})))
        return None
    gc.freeze()  # weights and modules are there to stay: no collection looks at them again
    ready = Notification("ready", {"load_seconds": time.monotonic() - began})
    port.send(encode_frame(FrameKind.TELL, 0, ready, has_file=True), mark_fd)
    return handler


def _serving(
    port: BlockingChannel, mark: StartedMark, answerer: CallCodec, declaration: Declaration, leave: ShutdownSignal
) -> Coroutine[Any, Any, None] | None:
    """Serve in the lane that the handler needs; that of coroutines is given back to be run."""
    if declaration.is_asgi:
        from pgpu.functions.worker.executors.asgi_executor import AsgiExecutor  # noqa: PLC0415 - loads uvicorn

        return AsgiExecutor(port, mark, answerer, leave, declaration).serve()
    if answerer.handler.signature.is_async:
        from pgpu.functions.worker.executors.async_executor import AsyncExecutor  # noqa: PLC0415 - loads asyncio

        return AsyncExecutor(port, mark, answerer, leave, declaration).serve()
    if declaration.batch is not None:
        BatchExecutor(port, mark, answerer, leave, declaration.batch).serve()
    elif declaration.concurrency > 1:
        ThreadedExecutor(port, mark, answerer, leave, declaration.concurrency).serve()
    else:
        SingleExecutor(port, mark, answerer, leave).serve()
    return None


def _close(handler: Handler, finish: Finish) -> None:
    if handler.close is not None:
        try:
            finish(handler.close())
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything; the worker leaves anyway
            log_failure("close() failed", error)
    sys.stdout.flush()
