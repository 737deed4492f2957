"""The main function of a worker process: construct, warm up, serve, close. The zygote forks the process."""

import contextlib
import gc
import inspect
import os
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from pgpu.functions.api import Declaration
from pgpu.functions.handler import Handler, Loaded, Signature
from pgpu.functions.ipc.blocking_channel import BlockingChannel, GoneError
from pgpu.functions.ipc.call_messages import FrameKind, MalformedFrameError, Notification, encode_frame
from pgpu.functions.ipc.memory_files import StartedMark
from pgpu.functions.protocols import Interpreter
from pgpu.functions.worker.call_codec import CallCodec, describe_failed_start, log_failure
from pgpu.functions.worker.call_inbox import ShutdownSignal
from pgpu.functions.worker.sync_executors import BatchExecutor, SingleExecutor, ThreadedExecutor
from pgpu.structs import Struct

FAILED = 1
"""Exit status of a worker that could not construct its handler."""


class PreparedFunction(Struct, frozen=True):
    """What the zygote has loaded for all workers."""

    name: str
    loaded: Loaded
    declaration: Declaration
    signature: Signature
    interpreter: Interpreter


def run_worker(end: socket.socket, prepared: PreparedFunction) -> int:
    """Run a worker until its replica closes the socket or requests a shutdown.

    Returns:
        The exit status.
    """
    shutdown = ShutdownSignal()
    shutdown.install()
    os.register_at_fork(after_in_child=end.close)  # a process that the handler forks must not answer calls
    mark_fd = StartedMark.create()
    mark = StartedMark(mark_fd)
    with contextlib.closing(BlockingChannel(end)) as channel, _event_loop(prepared) as complete:
        try:
            handler = _construct(channel, prepared, mark_fd, complete)
            if handler is None:
                return FAILED
            codec = CallCodec(handler, prepared.interpreter)
            # An asynchronous executor is a coroutine; a synchronous one has run to its end already.
            complete(_run_executor(channel, mark, codec, prepared.declaration, shutdown))
            if handler.close is not None:
                try:
                    complete(handler.close())
                except BaseException as error:  # noqa: BLE001 - any exception of the user's code; the worker exits anyway
                    log_failure("close() failed", error)
            sys.stdout.flush()
        except (GoneError, MalformedFrameError):
            return 0
    return 0


Complete = Callable[[Any], Any]
"""Runs a coroutine to its end; returns any other value as it is."""


@contextlib.contextmanager
def _event_loop(prepared: PreparedFunction) -> Iterator[Complete]:
    """Provide one event loop for the whole life of an asynchronous handler; a synchronous one gets a loop per coroutine."""
    if not prepared.signature.is_async:
        yield lambda value: _run(value) if inspect.iscoroutine(value) else value
        return
    import asyncio  # noqa: PLC0415 - a fifth of a start's duration, and few handlers need it

    from pgpu.functions.ipc.async_channel import CoalescingLoop  # noqa: PLC0415 - loads asyncio

    with asyncio.Runner(loop_factory=CoalescingLoop) as runner:
        yield lambda value: runner.run(value) if inspect.iscoroutine(value) else value


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    import asyncio  # noqa: PLC0415 - as above

    return asyncio.run(coroutine)


def _construct(
    channel: BlockingChannel, prepared: PreparedFunction, mark_fd: int, complete: Complete
) -> Handler | None:
    """Construct and warm up the handler, and notify the replica; None if that failed."""
    began = time.monotonic()
    try:
        handler = prepared.loaded.construct(prepared.declaration)
        if prepared.declaration.is_asgi:
            from pgpu.functions.worker.asgi_executor import mount_application  # noqa: PLC0415 - loads uvicorn

            handler = mount_application(handler, prepared.name)
        if handler.warmup is not None:
            complete(handler.warmup())
    except BaseException as error:  # noqa: BLE001 - any exception of the user's code, SystemExit too, is reported
        reason = describe_failed_start("the handler could not be constructed", error)
        channel.send(encode_frame(FrameKind.NOTIFICATION, 0, Notification("failed", {"error": reason})))
        return None
    gc.freeze()  # weights and modules stay for the process's life: garbage collection need not visit them
    # send() closes `mark_fd`; the worker's own mapping of the file stays valid.
    ready = Notification("ready", {"load_seconds": time.monotonic() - began})
    channel.send(encode_frame(FrameKind.NOTIFICATION, 0, ready, has_file=True), mark_fd)
    return handler


def _run_executor(
    channel: BlockingChannel, mark: StartedMark, codec: CallCodec, declaration: Declaration, shutdown: ShutdownSignal
) -> Coroutine[Any, Any, None] | None:
    """Run the handler's executor; an asynchronous one is returned as a coroutine."""
    if declaration.is_asgi:
        from pgpu.functions.worker.asgi_executor import AsgiExecutor  # noqa: PLC0415 - loads uvicorn

        return AsgiExecutor(channel, mark, codec, shutdown, declaration).run()
    if codec.handler.signature.is_async:
        from pgpu.functions.worker.async_executor import AsyncExecutor  # noqa: PLC0415 - loads asyncio

        return AsyncExecutor(channel, mark, codec, shutdown, declaration).run()
    if declaration.batch is not None:
        BatchExecutor(channel, mark, codec, shutdown, declaration).run()
    elif declaration.concurrency > 1:
        ThreadedExecutor(channel, mark, codec, shutdown, declaration.concurrency).run()
    else:
        SingleExecutor(channel, mark, codec, shutdown).run()
    return None
