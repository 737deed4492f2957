"""Where an experiment runs: which GPU, as processes or containers, with pgpu and without.

The room's callers make one; nothing here chooses between real and simulated parts. It refuses to start anything.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pgpu.client import Client
from pgpu.libraries import SIMULATED_CUDA, library_path

RuntimeName = Literal["process", "docker"]

STATE_IN_CONTAINER = "/simulated/state"
DRIVER_IN_CONTAINER = "/simulated/driver"


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything an experiment is told about its surroundings."""

    client: Client
    """Runs jobs with pgpu."""

    read_used_bytes: Callable[[], int]
    """What is in use on the bare jobs' device, in bytes."""

    device_name: str
    device_memory_bytes: int
    simulated_directory: Path | None
    """State of the simulated GPU that jobs without pgpu share; None on a real one."""

    runtime: RuntimeName = "process"
    image: str | None = None
    """Only with `docker`: an image in which `python -m pgpu.workloads` runs."""

    python: str = sys.executable
    """The interpreter that runs workloads; a path inside the image with `docker`."""

    tell: Callable[[str], None] = field(default=lambda _line: None)
    """Hears of progress, a line at a time."""

    @property
    def is_simulated(self) -> bool:
        """Whether kernels compute nothing here."""
        return self.simulated_directory is not None

    def workload(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command of a workload."""
        return (self.python, "-m", "pgpu.workloads", *words)

    def bare_command(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command that starts a workload without pgpu, waiting for its start line."""
        command = self.workload((*words, "--start-line"))
        return command if self.runtime == "process" else (*self._docker_words(), *command)

    def bare_environment(self) -> Mapping[str, str]:
        """Return the environment of a process without pgpu: nothing but the simulated driver is added."""
        if self.simulated_directory is None or self.runtime == "docker":
            return os.environ
        driver_directory = str(library_path(SIMULATED_CUDA).parent)
        return {**os.environ, "LD_LIBRARY_PATH": driver_directory, "PGPU_SIMGPU_DIR": str(self.simulated_directory)}

    def _docker_words(self) -> tuple[str, ...]:
        words = ["docker", "run", "--rm", "--interactive", "--network", "none"]
        if self.simulated_directory is None:
            words += ["--gpus", "all"]
        else:
            words += ["--volume", f"{library_path(SIMULATED_CUDA).parent}:{DRIVER_IN_CONTAINER}:ro"]
            words += ["--volume", f"{self.simulated_directory}:{STATE_IN_CONTAINER}"]
            words += [
                "--env",
                f"LD_LIBRARY_PATH={DRIVER_IN_CONTAINER}",
                "--env",
                f"PGPU_SIMGPU_DIR={STATE_IN_CONTAINER}",
            ]
        return (*words, str(self.image))
