"""A place of its own for each test that runs the real `pgpu`: state directory, runtime directory, simulated GPU."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.clearing import clear
from tests.forked_commands import PGPU, run_command
from tests.served import serving
from tests.waiting import DEADLINE_SECONDS, until

_STALE_SECONDS = 0.5
"""What `ps` shows beside the ledger, such as memory in use, may have changed after so long."""


@dataclass(frozen=True)
class Seen:
    """What `ps` said."""

    jobs: Any
    stamp: list[tuple[int, int]]
    """Of the ledger, before it was asked."""

    at_seconds: float


@dataclass
class Place:
    """Where one test's jobs live, and the `pgpu` that runs them."""

    path: Path
    environment: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    _seen: "Seen | None" = None

    def run(self, *words: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        """Run one verb to its end."""
        return run_command(words, {**self.environment, **variables}, self.path, stdin)

    def run_python(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python itself."""
        return subprocess.run(
            [sys.executable, *words],
            env=self.environment,
            cwd=self.path,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    def start(self, *words: str, **streams: Any) -> subprocess.Popen[str]:
        """Start one verb and leave it running."""
        chosen = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        process = subprocess.Popen([PGPU, *words], env=self.environment, cwd=self.path, text=True, **chosen)
        self.started.append(process)
        return process

    def json(self, *words: str) -> Any:
        """Run one verb with --json and read what it printed."""
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def job(self, name: str) -> Any:
        """Return what `ps` knows of one job; who asks again and again does not start `ps` each time for the same answer."""
        stamp, now_seconds = self._ledger_stamp(), time.monotonic()
        if self._seen is None or self._seen.stamp != stamp or now_seconds - self._seen.at_seconds > _STALE_SECONDS:
            self._seen = Seen(self.json("ps", "--all")["jobs"], stamp, now_seconds)
        return next((job for job in self._seen.jobs if name in {job["id"], job["name"]}), None)

    @property
    def _ledger(self) -> Path:
        return Path(self.environment["PGPU_STATE_DIR"]) / "ledger.db"

    def _ledger_stamp(self) -> list[tuple[int, int]]:
        """What differs once somebody wrote into the ledger."""
        files = [self._ledger, self._ledger.with_name("ledger.db-wal")]
        return [(found.st_mtime_ns, found.st_size) for file in files if file.exists() and (found := file.stat())]

    def _may_have_live_jobs(self) -> bool:
        """Ask the ledger itself; what cannot be read may have."""
        if not self._ledger.exists():
            return False
        try:
            with contextlib.closing(sqlite3.connect(self._ledger)) as ledger:
                question = "SELECT count(*) FROM jobs WHERE state NOT IN ('exited', 'failed', 'cancelled')"
                return bool(ledger.execute(question).fetchone()[0])
        except sqlite3.Error:
            return True

    def detach(self, name: str, memory: str, command: Sequence[str]) -> str:
        """Submit a job, leave it to itself, and return its id."""
        done = self.run("run", "--detach", "--name", name, "--memory", memory, "--", *command)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def close(self) -> None:
        """End everything that a failed test left."""
        if self._may_have_live_jobs() and (live := self.run("ps", "--quiet").stdout.split()):
            self.run("stop", "--time", "0", *live)
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()


@contextlib.contextmanager
def opened_place() -> Iterator[Place]:
    """Make a place and end what a test left in it."""
    path = Path(tempfile.mkdtemp(prefix="pgpu-test-", dir="/dev/shm"))
    (path / "run").mkdir(mode=0o700)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PGPU_", "COLUMNS", "LINES"))}
    environment = {
        **kept,
        "PATH": f"{PGPU.parent}:{kept['PATH']}",
        "PGPU_STATE_DIR": str(path / "state"),
        "PGPU_RUNTIME_DIR": str(path / "run"),
        "PGPU_SIMULATE": "RTX 3090",
        "PGPU_HOST": "embedded",
        "XDG_CONFIG_HOME": str(path / "config"),
    }
    made = Place(path, environment)
    try:
        yield made
    finally:
        made.close()
        clear(path)


@contextlib.contextmanager
def served_place() -> Iterator[Place]:
    """Make a place whose commands ask a server."""
    with opened_place() as made, contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(made.path / "run", state_dir=made.path / "state"))
        made.environment["PGPU_HOST"] = server.host
        stack.callback(made.close)
        yield made


@pytest.fixture
def place() -> Iterator[Place]:
    with opened_place() as made:
        yield made


@pytest.fixture(params=[opened_place, pytest.param(served_place, marks=pytest.mark.soak)], ids=["embedded", "served"])
def either_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Return a place of each form, for what must not differ between them; the contract of clients asks both in a moment."""
    with request.param() as made:
        yield made


@pytest.fixture
def eventually() -> Callable[[Callable[[], Any]], Any]:
    """Ask again and again until the answer is true, and return it."""
    return until
