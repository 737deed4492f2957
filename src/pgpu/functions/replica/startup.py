"""The first steps of a replica's process, before it loads the HTTP server: fork the zygote, block slice signals, prefetch files.

The first zygote is a fork of a process that has one thread and has loaded almost nothing: it imports the function while the
replica loads, and a cold start needs no second interpreter. Later zygotes are spawned anew: by then the replica has
sockets and an event loop, which a zygote must not inherit.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Protocol

from pgpu.functions.api import SecretUse
from pgpu.functions.worker.zygote import ZygoteArguments, main
from pgpu.structs import Struct
from pgpu.units import MIB

SLICE_SIGNALS = frozenset({signal.SIGTSTP, signal.SIGCONT})
"""SIGTSTP: the slice was taken; SIGCONT: there is one again."""

LARGE_BYTES = MIB
MOST_FILES = 5000
"""Files to check below a function's source; a larger tree must not delay the start."""


class ServedFunction(Struct, frozen=True):
    """The function that a replica serves."""

    name: str
    app: str
    """`module:attribute` or `file.py:attribute`."""

    source: Path
    """Directory of the module."""

    declaration: dict[str, object]
    """What the declaration adds to the decorator, as `api.parse_declaration` reads it."""


class Child(Protocol):
    """A child process."""

    pid: int

    def kill(self) -> None:
        """Kill the process, if it is alive."""

    def wait(self) -> int:
        """Wait for the process to end, and reap it."""


class Fork:
    """A forked child. Only `wait` reaps it, so its process id is not reused before."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def kill(self) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status


class ZygoteProcess(Struct, frozen=True):
    """A new zygote, not connected yet."""

    process: Child
    end: socket.socket
    """The replica's end of the control socket."""


def fork_zygote(function: ServedFunction) -> ZygoteProcess:
    """Fork a zygote, which runs inside this call and ends by SystemExit; for a process with one thread and no sockets."""
    ours, theirs = socket.socketpair()
    # Before the fork: the child compares it with getppid() to detect that the replica died meanwhile.
    replica_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        arguments = ZygoteArguments(function.name, function.app, function.source, function.declaration, replica_pid)
        sys.exit(main(arguments, theirs))
    theirs.close()
    return ZygoteProcess(Fork(pid), ours)


def spawn_zygote(function: ServedFunction) -> ZygoteProcess:
    """Start a zygote in an interpreter of its own."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [
            sys.executable, "-P", "-m", "pgpu.functions.worker", "--name", function.name, "--app", function.app,
            "--source", str(function.source), "--declaration", json.dumps(function.declaration),
            "--control", str(theirs.fileno()), "--front", str(os.getpid()),
        ]  # fmt: skip
        return ZygoteProcess(subprocess.Popen(command, pass_fds=[theirs.fileno()]), ours)


def export_secrets(uses: Iterable[SecretUse], directory: Path) -> None:
    """Set the variables of secrets for processes that start later: they are not in this one's `/proc/PID/environ`.

    The last line break of a file is not part of the variable.
    """
    for use in uses:
        if use.variable is None:
            continue
        try:
            os.environb[use.variable.encode()] = (directory / use.name).read_bytes().removesuffix(b"\n")
        except (OSError, ValueError) as error:  # ValueError: a zero byte, which no variable can have
            sys.exit(f"pgpu: the secret {use.name} cannot be a variable: {getattr(error, 'strerror', None) or error}")


def block_slice_signals() -> None:
    """Block the slice signals in this thread, and in all threads and processes that it starts later, for `sigwait`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SLICE_SIGNALS)


def read_ahead(source: Path) -> list[Path]:
    """Have the kernel read the large files below a directory into the page cache, weights above all, and return them.

    The disk then works while the processor imports the module. Files that cannot be read are skipped.
    """
    large = []
    files = (Path(folder, name) for folder, _, names in os.walk(source) for name in names)
    for path in islice(files, MOST_FILES):
        with suppress(OSError):
            if path.is_file() and path.stat().st_size >= LARGE_BYTES:
                with path.open("rb") as file:
                    # Returns at once: the kernel reads in the background.
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
                large.append(path)
    return large
