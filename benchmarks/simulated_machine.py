"""A state directory with simulated GPUs, and the commands on it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self


class SimulatedMachine:
    """One directory below /dev/shm with the ledger and the runtime files of one embedded engine."""

    def __init__(self, directory: Path, model: str) -> None:
        self.directory = directory
        self.environment = {
            **os.environ,
            "PGPU_HOST": "embedded",
            "PGPU_STATE_DIR": str(directory / "state"),
            "PGPU_RUNTIME_DIR": str(directory / "run"),
            "PGPU_SIMULATE": model,
        }

    @classmethod
    @contextmanager
    def running(cls, model: str) -> Iterator[Self]:
        """Make a machine whose files are removed at the end."""
        with tempfile.TemporaryDirectory(prefix="pgpu-bench-", dir="/dev/shm", ignore_cleanup_errors=True) as directory:
            (Path(directory) / "run").mkdir(mode=0o700)
            yield cls(Path(directory), model)

    def output(self, *words: str) -> str:
        """Run one command and return what it prints."""
        return subprocess.run(
            self.command(words), env=self.environment, capture_output=True, check=True
        ).stdout.decode()

    @staticmethod
    def command(words: Sequence[str]) -> list[str]:
        """Return the argv of a command."""
        return [str(Path(sys.executable).parent / "pgpu"), *words]
