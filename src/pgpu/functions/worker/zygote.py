"""The zygote process: imports the handler's module once, before any CUDA call, and forks a worker on each `spawn` command.

A worker that died is thus replaced in milliseconds, however long the imports take. The zygote exits when its replica does,
and kills its workers and their children then. It does not construct the handler: a CUDA context does not survive a fork.
"""

import contextlib
import gc
import importlib
import io
import os
import select
import signal
import socket
import sys
import time
import warnings
from pathlib import Path

from pgpu.functions.api import dump_declaration, parse_declaration
from pgpu.functions.handler import load
from pgpu.functions.ipc.blocking_channel import BlockingChannel, GoneError
from pgpu.functions.ipc.call_messages import FrameKind, Notification, encode_frame
from pgpu.functions.protocols import Interpreter, pages
from pgpu.functions.worker.call_codec import describe_failed_start, log
from pgpu.functions.worker.child_processes import (
    adopt_orphans,
    children,
    die_with_parent,
    end_children,
    live_without_parent,
    prefer_oom_kill,
)
from pgpu.functions.worker.worker_main import PreparedFunction, run_worker
from pgpu.structs import Struct


class ZygoteArguments(Struct, frozen=True):
    """Arguments of a zygote process."""

    name: str
    """The function's."""

    app: str
    """`module:attribute` or `file.py:attribute`."""

    source: Path
    """Directory of the module."""

    declaration: dict[str, object]
    """What the declaration adds to the decorator, as `api.parse_declaration` reads it."""

    replica_pid: int


class Zygote:
    """Forks workers on command."""

    def __init__(self, control: socket.socket, prepared: PreparedFunction) -> None:
        self._control, self._channel, self._prepared = control, BlockingChannel(control), prepared
        self._module_children = children()
        """Processes that the module started when it was imported; they are not a worker's."""

        self._workers: set[int] = set()

    def run(self) -> int:
        """Fork and reap until the replica closes the connection.

        Returns:
            The exit status; in a forked worker, that of the worker.
        """
        # SIGCHLD writes to this pipe, so one select() waits for commands and for dead workers.
        wakeup, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        try:
            while not self._channel.is_ended:
                select.select([self._control.fileno(), wakeup], [], [])
                # Drained before waitpid(): a child that dies after this read writes to the pipe again.
                with contextlib.suppress(BlockingIOError):
                    os.read(wakeup, 4096)
                self._reap()
                for frame in self._channel.receive(is_waiting=False):
                    status = self._fork_worker(frame.number) if frame.kind == FrameKind.COMMAND else None
                    if status is not None:
                        return status
        except GoneError:
            log("the replica's process has ended")
        end_children()
        return 0

    def _fork_worker(self, number: int) -> int | None:
        """Fork a worker for the received socket; None in the zygote, the exit status in the worker."""
        end = socket.socket(fileno=self._channel.next_file())
        sys.stdout.flush()  # or each worker would print the module's unfinished line again
        with warnings.catch_warnings():
            # A module that starts threads during its import makes fork() unsafe; that is the user's risk.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            # Read before prctl(): if the zygote dies in between, die_with_parent() sees another parent.
            zygote_pid = os.getppid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # The worker must not hold the control socket: its end shows the zygote's death.
            self._channel.close()
            die_with_parent(zygote_pid)
            prefer_oom_kill()
            return run_worker(end, self._prepared)
        # The socket ends with the worker only if the zygote keeps no copy of it.
        end.close()
        self._workers.add(pid)
        born = Notification("born", {"pid": pid})
        frame = encode_frame(FrameKind.NOTIFICATION, number, born, has_file=True)
        # Only _reap() waits for workers, in this same thread: even if it is dead, its PID is not reused yet.
        self._channel.send(frame, os.pidfd_open(pid))
        return None

    def _reap(self) -> None:
        # Signals coalesce: one SIGCHLD may stand for several dead children.
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._workers:
                self._workers.remove(pid)
                # Orphans of the dead worker are now children of the zygote, and may hold GPU memory.
                end_children(self._module_children | self._workers)
                ended = {"pid": pid, "status": os.waitstatus_to_exitcode(status)}
                self._channel.send(encode_frame(FrameKind.NOTIFICATION, 0, Notification("ended", ended)))


def main(arguments: ZygoteArguments, control: socket.socket) -> int:
    """Import the function's module, notify the replica, and fork workers.

    Returns:
        The exit status.
    """
    die_with_parent(arguments.replica_pid)
    # Children of workers that die become children of the zygote.
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # `pgpu logs -f` sees each line, also of a worker that is killed
    began = time.monotonic()
    try:
        prepared, facts = _prepare(arguments)
    except BaseException as error:  # noqa: BLE001 - any exception of the user's module, SystemExit too, is reported
        reason = describe_failed_start(f"{arguments.app} could not be imported", error)
        control.sendall(encode_frame(FrameKind.NOTIFICATION, 0, Notification("failed", {"error": reason})))
        return 1
    imported = Notification("imported", {**facts, "import_seconds": time.monotonic() - began})
    control.sendall(encode_frame(FrameKind.NOTIFICATION, 0, imported))
    if prepared.signature.is_async:
        executor = "asgi_executor" if prepared.declaration.is_asgi else "async_executor"
        importlib.import_module(f"pgpu.functions.worker.{executor}")  # once for all workers
    gc.freeze()  # pages that no garbage collection writes stay shared with the workers
    # From here on the end of the control socket shows the replica's end, and the zygote kills its workers itself.
    live_without_parent()
    return Zygote(control, prepared).run()


def _prepare(arguments: ZygoteArguments) -> tuple[PreparedFunction, dict[str, object]]:
    """Load everything that workers share, and the facts that the replica needs."""
    loaded = load(arguments.app, arguments.source)
    declaration = parse_declaration(arguments.declaration, loaded.declaration)
    signature = loaded.signature(declaration)
    interpreter = Interpreter(signature, arguments.name)
    prepared = PreparedFunction(arguments.name, loaded, declaration, signature, interpreter)
    public = pages(arguments.name, signature, declaration)
    return prepared, {"declaration": dump_declaration(declaration), "pages": public}
