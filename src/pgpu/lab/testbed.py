"""Where an experiment runs: which GPU, as processes or containers, with pgpu and without.

The room's callers make one; nothing here chooses between real and simulated parts. It refuses to start anything.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pgpu.client import Client
from pgpu.libraries import SIMULATED_CUDA, library_path

RuntimeName = Literal["process", "docker"]

STATE_IN_CONTAINER = "/simulated/state"
DRIVER_IN_CONTAINER = "/simulated/driver"

TEST_IMAGE = "pgpu-test:latest"
"""What `tools/test-image` makes."""

PYTHON_IN_IMAGE = "python3"


@dataclass(frozen=True, slots=True)
class Testbed:
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

    environment: Mapping[str, str] = field(default_factory=dict)
    """What the command line needs to meet the same engine as `client`, beside this process's own environment."""

    gpu_uuid: str = ""
    """The bare jobs' device, as NVML writes it."""

    bare_additions: Mapping[str, str] = field(default_factory=dict)
    """What programs without pgpu find in their environment beside the usual, such as the way to an MPS daemon."""

    tell: Callable[[str], None] = field(default=lambda _line: None)
    """Hears of progress, a line at a time."""

    @property
    def is_simulated(self) -> bool:
        """Whether kernels compute nothing here."""
        return self.simulated_directory is not None

    def workload(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command of a workload."""
        return (self.python, "-m", "pgpu.workloads", *words)

    def pgpu_command(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command of pgpu's own command line; it meets the same engine as `client` in `pgpu_environment`."""
        return (sys.executable, "-c", "import sys; from pgpu.cli.main import main; sys.exit(main())", *words)

    def pgpu_environment(self) -> Mapping[str, str]:
        """Return the environment for `pgpu_command`."""
        return {**os.environ, **self.environment}

    def bare_command(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command that starts a workload without pgpu, waiting for its start line."""
        return self.plain_command((*words, "--start-line"))

    def plain_command(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command that runs a workload without pgpu."""
        command = self.workload(words)
        return command if self.runtime == "process" else self.container_command(command)

    def container_command(self, command: tuple[str, ...], *, detached: bool = False) -> tuple[str, ...]:
        """Return the command that runs another in a container without pgpu, in the foreground unless `detached`."""
        return (*self._docker_words("--detach" if detached else "--interactive"), *command)

    @property
    def container_image(self) -> str:
        """The image for containers, whether jobs run in them or not."""
        return self.image or TEST_IMAGE

    def in_containers(self) -> "Testbed":
        """Return this stage with containers in the place of processes."""
        return replace(self, runtime="docker", image=self.container_image, python=PYTHON_IN_IMAGE)

    def bare_environment(self) -> Mapping[str, str]:
        """Return the environment of a process without pgpu: nothing but the simulated driver and `bare_additions`."""
        if self.simulated_directory is None or self.runtime == "docker":
            return {**os.environ, **self.bare_additions}
        driver_directory = str(library_path(SIMULATED_CUDA).parent)
        simulated = {"LD_LIBRARY_PATH": driver_directory, "PGPU_SIMGPU_DIR": str(self.simulated_directory)}
        return {**os.environ, **simulated, **self.bare_additions}

    def _docker_words(self, how: str) -> tuple[str, ...]:
        words = ["docker", "run", "--rm", how, "--network", "none"]
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
