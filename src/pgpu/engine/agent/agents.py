"""Sends messages to the agent of a queue, and starts an agent if there is none.

A process that starts an agent locks its file first and passes the lock on, so that of a hundred processes that miss it one
starts it. A message to an agent is only a hint: what it acts on is in the ledger before it is called.
"""

import os
import string
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pgpu.engine.settings import EngineSettings, agent_paths
from pgpu.engine.unix_sockets import connect, send_datagram
from pgpu.errors import NodeError
from pgpu.host.file_lock import try_flock
from pgpu.host.process_identity import is_alive
from pgpu.ledger import LEDGER_VERSION
from pgpu.model import Gpu, ProcessHolder
from pgpu.structs import DecodeError, JsonDecoder, Struct, encode_json

if TYPE_CHECKING:
    import socket

LOOK = b"look"
GO = b"go"
START = b"start"
"""Begins a message with the id of a granted job to be supervised: `start 0123456789ab`."""

MONITOR = b"monitor "
"""Begins the message on a connection that offers a monitor for a job; then the job's id. Socket and pidfd come with it."""

TAKE_LOCK = -1
"""Stands for the lock's descriptor where a new agent must open and lock the file itself, or end."""

AWAIT_LOCK = -2
"""Likewise, where the process that asked for the agent, or an agent that is about to end, may still hold it."""

REAL_GPUS = "gpus"
"""Instance of an agent's unit for the queue of real GPUs: an instance has a name."""

_PACKAGE = Path(__file__).parents[2] / "__init__.py"
_LOCK_PATIENCE_SECONDS = 30.0
_LOCK_PAUSE_SECONDS = 0.01
_DIRECTORY_MODE = 0o700
_GPUS = JsonDecoder(tuple[Gpu, ...])
_FILE_MODE = 0o600


class AgentIdentity(Struct, frozen=True):
    """Which process is the agent of a queue, and with which code."""

    process: ProcessHolder
    version: int
    """Ledger version of its code."""

    package: str = ""
    """Where its code was loaded from; empty in the release before this one, like what follows."""

    package_inode: int = 0
    package_time_ns: int = 0
    """Of the package's first file: another inode or time means that it was upgraded in place."""

    @classmethod
    def of_this_code(cls, process: ProcessHolder) -> Self:
        """Return the identity of a process that loaded its code now."""
        found = _PACKAGE.stat()
        return cls(process, LEDGER_VERSION, str(_PACKAGE), found.st_ino, found.st_mtime_ns)

    @property
    def is_outdated(self) -> bool:
        """Whether this process's code must replace it; of two installations of one version neither replaces the other."""
        own = self.of_this_code(self.process)
        return self != own and (self.version != own.version or self.package in {"", own.package})


_IDENTITY = JsonDecoder(AgentIdentity)


class Agents:
    """The agents of one ledger's queues."""

    def __init__(self, settings: EngineSettings, command: Sequence[str]) -> None:
        """Store the arguments; no agent is started yet.

        Args:
            settings: With the directories of the agents' files.
            command: argv of an agent; the queue's GPU model (empty for real GPUs) and the numbers of the descriptor that
                holds its lock and of a socket to its guard are appended.
        """
        self._settings = settings
        self._command = tuple(command)

    def call(self, gpu_model: str | None, *, must_exist: bool = True) -> None:
        """Have the agent of a queue run a round; start an agent if there is none and `must_exist`.

        Raises:
            NodeError: None can be started.
        """
        self._deliver(gpu_model, LOOK, must_exist=must_exist)

    def attend(self, gpu_model: str | None, job_id: str) -> None:
        """Have the agent of a queue supervise a granted job; start one if there is none: it supervises all of its queue.

        Raises:
            NodeError: None can be started.
        """
        self._deliver(gpu_model, b"%s %s" % (START, job_id.encode()), must_exist=True)

    def renew(self, gpu_model: str | None) -> None:
        """Replace the agent of a queue, if it has one, by one with the environment of this process; its jobs continue.

        Raises:
            NodeError: None can be started.
        """
        found = self.identity(gpu_model)
        if found is not None and is_alive(found.process):
            self._replace(gpu_model, found)

    def _deliver(self, gpu_model: str | None, message: bytes, *, must_exist: bool) -> None:
        found = self.identity(gpu_model)
        if found is not None and found.is_outdated and is_alive(found.process):
            self._replace(gpu_model, found)
        if not self.send(gpu_model, message) and must_exist:
            self.ensure(gpu_model)

    def send(self, gpu_model: str | None, message: bytes) -> bool:
        """Send an agent one message; False if none listens."""
        return send_datagram(agent_paths(self._settings, gpu_model).wake_socket, message)

    def connect(self, gpu_model: str | None) -> "socket.socket":
        """Return a connection on which an agent reports about one job.

        Raises:
            OSError: No agent listens.
        """
        return connect(agent_paths(self._settings, gpu_model).door_socket)

    def ensure(self, gpu_model: str | None) -> None:
        """Start an agent unless there is one, or one that is starting.

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

    def identity(self, gpu_model: str | None) -> AgentIdentity | None:
        """Return which process last was the agent of a queue, alive or dead; None if there was none."""
        try:
            return _IDENTITY.decode(agent_paths(self._settings, gpu_model).lock.read_bytes())
        except (OSError, DecodeError):
            return None

    def gpus(self, gpu_model: str | None) -> Sequence[Gpu]:
        """Return the GPUs of a queue as its agent read them in its last round; empty without a living agent of this code."""
        found = self.identity(gpu_model)
        if found is None or found.is_outdated or not is_alive(found.process):
            return ()
        try:
            return _GPUS.decode(agent_paths(self._settings, gpu_model).gpus.read_bytes())
        except (OSError, DecodeError):
            return ()

    def process(self, gpu_model: str | None) -> ProcessHolder | None:
        """Return the process of `identity`."""
        found = self.identity(gpu_model)
        return None if found is None else found.process

    def _replace(self, gpu_model: str | None, found: AgentIdentity) -> None:
        """Ask an agent of another version to end, and start one that waits for its lock."""
        with agent_paths(self._settings, gpu_model).lock.open("r+b") as file:
            # From here on no other process finds it outdated.
            write_identity(file.fileno(), found.process)
            self.send(gpu_model, GO)
            self._start(gpu_model, file.fileno())

    def _start(self, gpu_model: str | None, lock: int) -> None:
        """Start an agent under its guard; it waits for a lock that this descriptor does not hold yet."""
        if self._settings.agent_unit is not None:
            _start_unit(self._settings.agent_unit, gpu_model)
            return
        from pgpu.runtimes.job_monitor import start_guard  # noqa: PLC0415 - most commands find an agent

        command = (*self._command, gpu_model or "")
        try:
            with (self._settings.state_directory / "agent.log").open("ab") as errors:
                pid = start_guard(lock, self._settings.spool, command, errors.fileno())
        except OSError as exc:
            raise NodeError(f"no agent of the queue can be started: {exc}") from exc
        threading.Thread(target=os.waitpid, args=(pid, 0), daemon=True).start()


def _start_unit(unit: str, gpu_model: str | None) -> None:
    """Have systemd start an instance of a template unit, unless it runs: process 1 is its parent, so it has nothing of this process."""
    import subprocess  # noqa: PLC0415 - servers alone

    # As systemd-escape(1) writes it, and `%I` reads it.
    kept = {*":_.", *string.ascii_letters, *string.digits}
    instance = "".join(each if each in kept else f"\\x{ord(each):02x}" for each in gpu_model or REAL_GPUS)
    words = ["systemctl", "start", "--no-block", f"{unit}@{instance}.service"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_LOCK_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired as exc:
        raise NodeError("no agent of the queue can be started: systemctl does not end") from exc
    except OSError as exc:
        raise NodeError(f"no agent of the queue can be started: systemctl: {exc.strerror}") from exc
    if done.returncode:
        raise NodeError(
            f"no agent of the queue can be started: {done.stderr.strip()}",
            hint="install deploy/systemd/pgpu-agent@.service, or unset agent_unit",
        )


def try_lock(settings: EngineSettings, gpu_model: str | None) -> int | None:
    """Return a descriptor that holds the lock of a queue's agent; None if another one holds it.

    Raises:
        NodeError: The lock cannot be opened.
    """
    path = agent_paths(settings, gpu_model).lock
    try:
        path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    except OSError as exc:
        raise NodeError(f"the lock {path} of the queue's agent cannot be opened: {exc.strerror}") from exc
    if not try_flock(descriptor):
        os.close(descriptor)
        return None
    return descriptor


def take_lock(settings: EngineSettings, gpu_model: str | None, given: int) -> int | None:
    """Return the descriptor of the lock that a new agent holds, which no program that it starts inherits.

    Args:
        settings: With the directory of its file.
        gpu_model: Of which queue.
        given: As on the agent's command line: a descriptor, which is locked already unless another agent was asked to end,
            `TAKE_LOCK` or `AWAIT_LOCK`.

    Returns:
        None if another agent has it.

    Raises:
        NodeError: The lock cannot be opened.
    """
    if given >= 0:
        os.set_inheritable(given, False)  # noqa: FBT003 - its only form
    deadline = time.monotonic() + _LOCK_PATIENCE_SECONDS
    while True:
        found = try_lock(settings, gpu_model) if given < 0 else given if try_flock(given) else None
        if found is not None or given == TAKE_LOCK or time.monotonic() > deadline:
            return found
        threading.Event().wait(_LOCK_PAUSE_SECONDS)


def write_identity(descriptor: int, process: ProcessHolder) -> None:
    """Write into an agent's lock which process holds it."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, encode_json(AgentIdentity.of_this_code(process)), 0)


def is_locked_file(path: Path, descriptor: int) -> bool:
    """Whether the lock still has its name: a process that finds another file there finds no agent."""
    with suppress(OSError):
        named, held = path.stat(), os.fstat(descriptor)
        return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)
    return False
