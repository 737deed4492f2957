"""Starts a zygote's process, before anything else of a front is loaded.

The zygote imports the function while the front itself still loads: a cold start is shorter by whichever takes less. So this
module loads the standard library alone. It refuses to talk to the zygote: its link does.
"""

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Function:
    """What a front serves."""

    name: str
    app: str
    """`module:attribute` or `file.py:attribute`."""

    source: Path
    words: dict[str, object]
    """What its declaration says beyond the decorator."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """A zygote's process, to which nobody has talked yet."""

    process: "subprocess.Popen[bytes]"
    end: socket.socket
    """The front's of the pair on which it listens."""


def spawn(function: Function) -> Spawned:
    """Start a zygote."""
    ours, theirs = socket.socketpair()
    with theirs:
        return Spawned(subprocess.Popen(_command(function, theirs.fileno()), pass_fds=[theirs.fileno()]), ours)


def _command(function: Function, control: int) -> list[str]:
    return [
        sys.executable, "-P", "-m", "pgpu.functions.worker",
        "--name", function.name, "--app", function.app, "--source", str(function.source), "--declaration", json.dumps(function.words),
        "--control", str(control), "--front", str(os.getpid()),
    ]  # fmt: skip
