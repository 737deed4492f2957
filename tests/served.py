"""A real `pgpu serve` for tests: started, waited for, and ended."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.forked_commands import Process, start_command
from tests.waiting import DEADLINE_SECONDS, until


@dataclass
class ServerProcess:
    """One server, which may be killed and started again."""

    environment: Mapping[str, str]
    socket: Path
    words: tuple[str, ...] = ()
    process: Process = field(init=False)

    def start(self) -> None:
        """Start it and wait until it takes requests."""
        self.begin()
        until(lambda: "listening at" in self.said() or self.process.poll() is not None)
        assert "listening at" in self.said(), self.said()

    def begin(self) -> None:
        """Start it, and leave it to itself."""
        gateway = () if "--gateway" in self.words else ("--gateway", "none")  # most tests call no function
        with self.log.open("w") as errors:
            self.process = start_command(
                ("serve", "--host", self.host, *gateway, *self.words),
                dict(self.environment),
                stdout=errors,
                stderr=errors,
            )

    @property
    def log(self) -> Path:
        """Where it speaks."""
        return self.socket.with_suffix(".log")

    def said(self) -> str:
        """Return everything that it said since it was started last."""
        return self.log.read_text()

    @property
    def host(self) -> str:
        """What PGPU_HOST is for its clients."""
        return f"unix://{self.socket}"

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signal it, wait for its end, and return its exit code."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        return self.process.wait(DEADLINE_SECONDS)


@contextmanager
def serving(
    directory: Path,
    *words: str,
    state_dir: Path | None = None,
    simulate: str = "RTX 3090",
    environment: Mapping[str, str] | None = None,
) -> Iterator[ServerProcess]:
    """Serve with sockets and runtime files in `directory`, which is on a tmpfs; the state is below it by default."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PGPU_")}
    settings = {
        "PGPU_STATE_DIR": str(state_dir or directory / "state"),
        "PGPU_RUNTIME_DIR": str(directory),
        "PGPU_SIMULATE": simulate,
        "XDG_CONFIG_HOME": str(directory / "config"),
    }
    server = ServerProcess({**kept, **settings, **(environment or {})}, directory / "pgpu.sock", words)
    server.start()
    try:
        yield server
    finally:
        server.end()
