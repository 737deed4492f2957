"""A server of root with four simulated GPUs, its five users, and a day of history."""

import grp
import json
import math
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

from benchmarks.five_users.jobs import ENTRIES, PROGRAM, USERS
from tests.waiting import until

from pgpu.engine.history.gpu_recorder import READING_SECONDS, GpuRecorder
from pgpu.ledger import GpuMinute
from pgpu.units import GIB

MODEL = "RTX 3090x4"
SUBMITTERS = grp.getgrgid(100).gr_name
"""A group of every machine, in which the users are."""

PYTHON = "/usr/bin/python3"
"""Of the users, with the packages of this one, whose version it must have: this one may be root's alone."""

DIRECTORY = Path("/run/pgpu")
"""On a tmpfs of this process's mount namespace."""

DAY_SECONDS = 86_400


class Machine:
    """A server of root with simulated GPUs, and its five users."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self.directory, self.home = directory, directory / "home"
        self.log = directory / "server.log"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PGPU_")}
        self.environment = {
            **kept,
            "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
            "PGPU_HOST": f"unix://{directory / 'pgpu.sock'}",
            "PGPU_STATE_DIR": str(directory / "state"),
            "PGPU_RUNTIME_DIR": str(directory / "run"),
            "PGPU_SIMULATE": MODEL,
            "PGPU_SUBMITTERS": SUBMITTERS,
            "XDG_CONFIG_HOME": str(directory / "config"),
        }

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Self]:
        """Make a machine, whose files go with the mount namespace; its jobs are stopped at the end."""
        with ExitStack() as stack:
            machine = cls()
            directory = machine.directory
            directory.mkdir()
            for private in ("run", "tmux"):
                (directory / private).mkdir(mode=0o700)
            machine.home.mkdir()
            command = directory / "bin" / "pgpu"
            command.parent.mkdir()
            command.write_text(f"#!{PYTHON}\nfrom pgpu.cli.main import main\n\nraise SystemExit(main())\n", "utf-8")
            command.chmod(0o755)
            (directory / "bin" / "python").symlink_to(PYTHON)
            for entry in ENTRIES:
                if entry.command[0] == "python":
                    (machine.home / entry.command[1]).write_text(PROGRAM, "utf-8")
            with machine.log.open("w") as log:
                serve = ("pgpu", "serve", "--tcp", f"127.0.0.1:{machine.port}", "--gateway", "none")
                server = subprocess.Popen(
                    (*serve, "--host", machine.environment["PGPU_HOST"]), env=machine.environment, stderr=log
                )
            stack.callback(server.wait)
            stack.callback(server.terminate)
            until(lambda: "listening at" in machine.log.read_text("utf-8"), lambda: machine.log.read_text("utf-8"))
            words = ("pgpu", "admin", "stop", "--all", "--time", "0s")
            stack.callback(subprocess.run, words, env=machine.environment, check=False, capture_output=True)
            yield machine

    def root(self, *words: str) -> str:
        """Run a command as root, and return what it prints."""
        return subprocess.run(("pgpu", *words), env=self.environment, check=True, capture_output=True, text=True).stdout

    def user(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a user."""
        return subprocess.run(
            ("pgpu", *words),
            user=USERS[name],
            group=USERS[name],
            extra_groups=[SUBMITTERS],
            cwd=self.home,
            env={
                "HOME": "/",
                "LC_ALL": "C.UTF-8",
                "PATH": f"{self.directory}/bin:/usr/bin:/bin",
                "PGPU_HOST": self.environment["PGPU_HOST"],
                "PYTHONPATH": ":".join(each for each in sys.path if not each.startswith(sys.base_prefix)),
            },
            check=False,
            capture_output=True,
            text=True,
        )

    def listing(self, *words: str) -> Any:
        """Return what a listing prints as JSON."""
        return json.loads(self.root(*words, "-o", "json"))

    def jobs(self) -> dict[str, Any]:
        """Return what `ps` has of each job, by name."""
        return {job["name"]: job for job in self.listing("ps", "--all")["jobs"]}


def write_day(machine: Machine) -> None:
    """Record a day that ends a few minutes ago, with an hour in which nothing ran."""
    uuids = [gpu["uuid"] for gpu in machine.listing("gpus")["gpus"]]
    begin_seconds, chance = time.time() - DAY_SECONDS, random.Random(17)
    clock = [begin_seconds]

    class Day(GpuRecorder):
        def _read(self) -> Sequence[GpuMinute]:
            turn = 2 * math.pi * (clock[0] - begin_seconds) / DAY_SECONDS
            levels = [0.45 - 0.3 * math.cos(turn + number) + chance.gauss(0, 0.03) for number in range(len(uuids))]
            return [
                GpuMinute(uuid, int(level * 23 * GIB), int((level - 0.1) * 18 * GIB), int(100 * level))
                for uuid, level in zip(uuids, levels, strict=True)
            ]

    settings = SimpleNamespace(state_directory=Path(machine.environment["PGPU_STATE_DIR"]))
    recorder = Day(cast("Any", SimpleNamespace(settings=settings)), lambda: clock[0])
    while clock[0] < begin_seconds + DAY_SECONDS - 300:
        recorder.tick(is_used=not 13 < (clock[0] - begin_seconds) / 3600 < 14)
        clock[0] += READING_SECONDS
    recorder.flush()
