"""Makes a zygote's process: the first one as a fork of a front that has loaded nothing yet, later ones anew.

The zygote imports the function while the front itself still loads, and both come from one interpreter: a cold start starts
no second one. A front that serves has sockets and an event loop that no zygote is to have, so it forks none any more. This
module refuses to talk to the zygote: its link does.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pgpu.functions.worker.zygote import ZygoteArguments, main


@dataclass(frozen=True, slots=True)
class ServedFunction:
    """What a front serves."""

    name: str
    app: str
    """`module:attribute` or `file.py:attribute`."""

    source: Path
    words: dict[str, object]
    """What its declaration says beyond the decorator."""


class Child(Protocol):
    """A process of ours."""

    pid: int

    def kill(self) -> None:
        """Kill it, if it is not dead."""

    def wait(self) -> int:
        """Wait for its end, and have the kernel forget it."""


class Fork:
    """A child that only `wait` reaps: its number is nobody else's before."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def kill(self) -> None:
        """See `Child`."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """See `Child`."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status


@dataclass(frozen=True, slots=True)
class ZygoteProcess:
    """A zygote's process, to which nobody has talked yet."""

    process: Child
    end: socket.socket
    """The front's of the pair on which it listens."""


def fork_zygote(function: ServedFunction) -> ZygoteProcess:
    """Fork a zygote, which lives its life in here and ends by `SystemExit`; for a process with one thread and no sockets."""
    ours, theirs = socket.socketpair()
    front_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        sys.exit(main(ZygoteArguments(function.name, function.app, function.source, function.words, front_pid), theirs))
    theirs.close()
    return ZygoteProcess(Fork(pid), ours)


def spawn_zygote(function: ServedFunction) -> ZygoteProcess:
    """Start a zygote in an interpreter of its own."""
    ours, theirs = socket.socketpair()
    with theirs:
        return ZygoteProcess(subprocess.Popen(_command(function, theirs.fileno()), pass_fds=[theirs.fileno()]), ours)


def _command(function: ServedFunction, control: int) -> list[str]:
    return [
        sys.executable, "-P", "-m", "pgpu.functions.worker",
        "--name", function.name, "--app", function.app, "--source", str(function.source), "--declaration", json.dumps(function.words),
        "--control", str(control), "--front", str(os.getpid()),
    ]  # fmt: skip
