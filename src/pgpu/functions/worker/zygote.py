"""The zygote: imports the handler's module once, before any CUDA call, and forks a worker each time it is asked.

So a worker that died is replaced in milliseconds, however heavy its imports. It ends with its front, and with it its workers and
what those started: nothing is left over by a front that was killed. It refuses to construct the handler, since a GPU context
does not survive a fork.
"""

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
from dataclasses import dataclass
from pathlib import Path

from pgpu.functions.api import dump_declaration, parse_declaration
from pgpu.functions.handler import load
from pgpu.functions.ipc.blocking_channel import BlockingChannel, GoneError
from pgpu.functions.ipc.call_frames import encode_frame
from pgpu.functions.ipc.messages import FrameKind, Notification
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


@dataclass(frozen=True, slots=True)
class ZygoteArguments:
    """What a zygote is told when it starts."""

    name: str
    app: str
    """`module:attribute` or `file.py:attribute`."""

    source: Path
    """The directory that the module is in."""

    words: dict[str, object]
    """What the declaration says beyond the decorator, as `api.parse_declaration` reads it."""

    front_pid: int


class Zygote:
    """Forks workers on demand."""

    def __init__(self, control: socket.socket, prepared: PreparedFunction) -> None:
        self._control, self._port, self._prepared = control, BlockingChannel(control), prepared
        self._relatives = children()
        """What the module started when it was imported."""

        self._workers: set[int] = set()

    def serve(self) -> int:
        """Fork and reap until the front leaves.

        Returns:
            The exit status; in a worker, that of the worker.
        """
        wakeup, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        try:
            while not self._port.is_ended:
                select.select([self._control.fileno(), wakeup], [], [])
                _empty(wakeup)
                self._reap()
                for each in self._port.receive(is_waiting=False):
                    status = self._fork_worker(each.number) if each.kind == FrameKind.ASK else None
                    if status is not None:
                        return status
        except GoneError:
            log("the front is gone")
        end_children()
        return 0

    def _fork_worker(self, number: int) -> int | None:
        end = socket.socket(fileno=self._port.next_file())
        pid = _fork()
        if pid == 0:
            return self._be_worker(end)
        end.close()
        self._workers.add(pid)
        self._port.send(
            encode_frame(FrameKind.TELL, number, Notification("born", {"pid": pid}), has_file=True), os.pidfd_open(pid)
        )
        return None

    def _be_worker(self, end: socket.socket) -> int:
        zygote_pid = os.getppid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._port.close()
        die_with_parent(zygote_pid)
        prefer_oom_kill()
        return run_worker(end, self._prepared)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._workers:
                self._workers.remove(pid)
                end_children(self._relatives | self._workers)
                ended = {"pid": pid, "status": os.waitstatus_to_exitcode(status)}
                self._port.send(encode_frame(FrameKind.TELL, 0, Notification("ended", ended)))


def main(birth: ZygoteArguments, control: socket.socket) -> int:
    """Import, tell, serve.

    Returns:
        The exit status.
    """
    die_with_parent(birth.front_pid)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _write_lines_at_once()
    began = time.monotonic()
    try:
        prepared, described = _prepare(birth)
    except BaseException as error:  # noqa: BLE001 - whatever importing the user's module raises, SystemExit too, is told
        told = describe_failed_start(f"{birth.app} could not be imported", error)
        control.sendall(encode_frame(FrameKind.TELL, 0, Notification("failed", {"error": told})))
        return 1
    control.sendall(
        encode_frame(
            FrameKind.TELL, 0, Notification("imported", {**described, "import_seconds": time.monotonic() - began})
        )
    )
    if prepared.signature.is_async:
        executor = "asgi_executor" if prepared.declaration.is_asgi else "async_executor"
        importlib.import_module(f"pgpu.functions.worker.executors.{executor}")  # for every worker once
    gc.freeze()  # pages that no collection touches stay shared with the workers
    live_without_parent()  # its socket tells when the front dies, and then there is something to do
    return Zygote(control, prepared).serve()


def _prepare(birth: ZygoteArguments) -> tuple[PreparedFunction, dict[str, object]]:
    """Import and read everything that workers have in common; and what the front is told of it."""
    loaded = load(birth.app, birth.source)
    declaration = parse_declaration(birth.words, loaded.declaration)
    signature = loaded.signature(declaration)
    prepared = PreparedFunction(birth.name, loaded, declaration, signature, Interpreter(signature, birth.name))
    return prepared, {"declaration": dump_declaration(declaration), "pages": pages(birth.name, signature, declaration)}


def _write_lines_at_once() -> None:
    """The log is followed while the handler runs, and a worker that is killed has said all that it printed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def _fork() -> int:
    sys.stdout.flush()  # or what the module printed without a line's end would be every worker's too
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # a module that starts threads when imported is the user's risk
        return os.fork()


def _empty(wakeup: int) -> None:
    try:
        os.read(wakeup, 4096)
    except BlockingIOError:
        return
