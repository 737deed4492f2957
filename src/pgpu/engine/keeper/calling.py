"""How everybody reaches the keeper of a queue, and starts one where there is none.

Who starts a keeper locks its file first and hands the lock on, so that of a hundred who miss it one starts it. Words to a
keeper are only ever words to look: all it must know is in the ledger before it is called.
"""

import fcntl
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from pgpu.engine.settings import EngineSettings, keeper_paths
from pgpu.engine.unix_sockets import connect, send_datagram
from pgpu.errors import NodeError
from pgpu.host.process_identity import is_alive
from pgpu.ledger import LEDGER_VERSION
from pgpu.model import ProcessHolder
from pgpu.structs import Struct, to_builtins

LOOK = b"look"
GO = b"go"
START = b"start"
"""Begins a message that names a granted job to be looked after: `start 0123456789ab`."""

TAKE_LOCK = -1
"""Stands for the lock's descriptor where a new keeper must take the lock itself, or go."""

WAIT_FOR_LOCK = -2
"""The same where another keeper was told to go."""

_LOCK_PATIENCE_SECONDS = 30.0
_LOCK_PAUSE_SECONDS = 0.01
_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600


class KeeperIdentity(Struct, frozen=True):
    """Which process keeps a queue."""

    process: ProcessHolder
    version: int
    """Of the ledger that it understands."""


class Keepers:
    """The keepers of one ledger's queues."""

    def __init__(self, settings: EngineSettings, command: Sequence[str]) -> None:
        """Reach for nobody yet.

        Args:
            settings: Say where keepers lie.
            command: argv that becomes a keeper; the queue's GPU model (empty for real GPUs) and the number of the
                descriptor that holds its lock are appended.
        """
        self._settings = settings
        self._command = tuple(command)

    def call(self, gpu_model: str | None, *, must_exist: bool = True) -> None:
        """Have the keeper of a queue look at it; start one if there must be one.

        Raises:
            NodeError: None can be started.
        """
        found = self.identity(gpu_model)
        if found is not None and found.version != LEDGER_VERSION and is_alive(found.process):
            self._replace(gpu_model, found)
        if not self.tell(gpu_model, LOOK) and must_exist:
            self.ensure(gpu_model)

    def tell(self, gpu_model: str | None, message: bytes) -> bool:
        """Send a keeper one message; False if there is none that listens."""
        return send_datagram(keeper_paths(self._settings, gpu_model).wake_socket, message)

    def connect(self, gpu_model: str | None) -> socket.socket:
        """Return a connection on which a keeper is asked about one job.

        Raises:
            OSError: Nobody listens.
        """
        return connect(keeper_paths(self._settings, gpu_model).door_socket)

    def ensure(self, gpu_model: str | None) -> None:
        """Start a keeper unless there is one, be it on its way.

        Raises:
            NodeError: None can be started.
        """
        descriptor = try_lock(self._settings, gpu_model)
        if descriptor is None:
            return
        try:
            self._start(gpu_model, descriptor)
        finally:
            os.close(descriptor)  # The new process has the lock: of the two descriptors of one file, its own is left.

    def identity(self, gpu_model: str | None) -> KeeperIdentity | None:
        """Return who wrote last that they keep a queue, alive or not; None if nobody did."""
        try:
            text = keeper_paths(self._settings, gpu_model).lock.read_text(encoding="utf-8")
            fields = json.loads(text)
            return KeeperIdentity(ProcessHolder(**fields["process"]), fields["version"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def process(self, gpu_model: str | None) -> ProcessHolder | None:
        """Return the process of `identity`."""
        found = self.identity(gpu_model)
        return None if found is None else found.process

    def _replace(self, gpu_model: str | None, found: KeeperIdentity) -> None:
        """Let a keeper of another version go, and start one that waits for its lock; who comes next finds it replaced."""
        with keeper_paths(self._settings, gpu_model).lock.open("r+b") as file:
            write_identity(file.fileno(), found.process)
        self.tell(gpu_model, GO)
        self._start(gpu_model, WAIT_FOR_LOCK)

    def _start(self, gpu_model: str | None, descriptor: int) -> None:
        command = (*self._command, gpu_model or "", str(descriptor))
        try:
            with (self._settings.state_directory / "keeper.log").open("ab") as errors:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    cwd="/",
                    start_new_session=True,
                    pass_fds=(descriptor,) if descriptor >= 0 else (),
                )
        except OSError as exc:
            raise NodeError(f"no keeper of the queue can be started: {exc}") from exc
        threading.Thread(target=process.wait, daemon=True).start()


def try_lock(settings: EngineSettings, gpu_model: str | None) -> int | None:
    """Return a descriptor that holds the lock of a queue's keeper; None if another one holds it.

    Raises:
        NodeError: The lock cannot be opened.
    """
    path = keeper_paths(settings, gpu_model).lock
    try:
        path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    except OSError as exc:
        raise NodeError(f"the lock {path} of the queue's keeper cannot be opened: {exc.strerror}") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def take_lock(settings: EngineSettings, gpu_model: str | None, given: int) -> int | None:
    """Return the descriptor of the lock that a new keeper holds, which no program that it starts inherits.

    Args:
        settings: Say where it lies.
        gpu_model: Of which queue.
        given: As on the keeper's command line: a descriptor, `TAKE_LOCK` or `WAIT_FOR_LOCK`.

    Returns:
        None if another keeper has it.

    Raises:
        NodeError: The lock cannot be opened.
    """
    taken = given if given >= 0 else try_lock(settings, gpu_model)
    deadline = time.monotonic() + (_LOCK_PATIENCE_SECONDS if given == WAIT_FOR_LOCK else 0.0)
    while taken is None and time.monotonic() < deadline:
        threading.Event().wait(_LOCK_PAUSE_SECONDS)
        taken = try_lock(settings, gpu_model)
    if taken is not None:
        os.set_inheritable(taken, False)  # noqa: FBT003 - its only form
    return taken


def write_identity(descriptor: int, process: ProcessHolder) -> None:
    """Write into a keeper's lock who holds it."""
    text = json.dumps({"process": to_builtins(process), "version": LEDGER_VERSION}).encode()
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text, 0)


def is_locked_file(path: Path, descriptor: int) -> bool:
    """Whether the lock still has its name: who finds another file there finds no keeper."""
    with suppress(OSError):
        named, held = path.stat(), os.fstat(descriptor)
        return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)
    return False


def begin_anew(command: Sequence[str], lock: int) -> NoReturn:
    """Become another keeper that holds the same lock; nobody finds it free meanwhile."""
    os.set_inheritable(lock, True)  # noqa: FBT003 - its only form
    os.execv(command[0], [*command, str(lock)])  # noqa: S606 - ourselves again, through no shell
