"""Where an experiment runs: which GPU, as processes or in containers, with pgpu and without.

A simulated experiment gets state and runtime directories of its own, so it meets no other jobs and leaves nothing behind. On a
real GPU it uses the user's own ledger, since a GPU has only one.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pgpu.app.client_factory import open_client
from pgpu.app.settings import Settings
from pgpu.client import Client
from pgpu.distribution import require_modules
from pgpu.errors import NodeError, RequestError
from pgpu.gpu.catalog import parse_model
from pgpu.gpu.nvml import NvmlSource
from pgpu.gpu.simulated import start_simulated
from pgpu.libraries import SIMULATED_CUDA, library_path
from pgpu.scheduling.capacity import Headroom
from pgpu.structs import Struct, field, replace

RuntimeName = Literal["process", "docker"]

# Slices may sum to the whole of a GPU, as the paper's containers did.
NO_HEADROOM = Headroom(0, 0.0)

_STATE_IN_CONTAINER = "/simulated/state"
_DRIVER_IN_CONTAINER = "/simulated/driver"
# Made by `tools/test-image`.
_TEST_IMAGE = "pgpu-test:latest"

_PYTHON_IN_IMAGE = "python3"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp makes a private directory in it


class Testbed(Struct, frozen=True):
    """The surroundings of an experiment."""

    client: Client
    """Runs jobs with pgpu."""

    read_used_bytes: Callable[[], int]
    """Returns the memory in use on the bare jobs' device, in bytes."""

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
    """Variables with which `pgpu` uses the same engine as `client`, in addition to this process's environment."""

    gpu_uuid: str = ""
    """NVML's UUID of the bare jobs' device."""

    bare_additions: Mapping[str, str] = field(default_factory=dict)
    """Additional environment of programs without pgpu, such as the pipe directory of an MPS daemon."""

    stable_seconds: float = 0.0
    """How long the memory outside of slices must be stable before headroom yields; 0 where it is fixed."""

    progress: Callable[[str], None] = field(default=lambda _line: None)
    """Called with each line of progress."""

    @property
    def is_simulated(self) -> bool:
        """Whether kernels compute nothing here."""
        return self.simulated_directory is not None

    @property
    def container_image(self) -> str:
        """The image for containers, whether or not jobs run in them."""
        return self.image or _TEST_IMAGE

    def in_containers(self) -> "Testbed":
        """Return the same testbed with containers instead of processes."""
        return replace(self, runtime="docker", image=self.container_image, python=_PYTHON_IN_IMAGE)

    def workload(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command of a workload."""
        return (self.python, "-m", "pgpu.workloads", *words)

    def pgpu_command(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return a command of `pgpu`, which in `pgpu_environment` uses the same engine as `client`."""
        return (sys.executable, "-c", "import sys; from pgpu.cli.main import main; sys.exit(main())", *words)

    def pgpu_environment(self) -> Mapping[str, str]:
        """Return the environment for `pgpu_command`."""
        return {**os.environ, **self.environment}

    def bare_command(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command of a workload without pgpu that waits for its start line."""
        return self.plain_command((*words, "--start-line"))

    def plain_command(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command of a workload without pgpu."""
        command = self.workload(words)
        return command if self.runtime == "process" else self.container_command(command)

    def bare_environment(self) -> Mapping[str, str]:
        """Return the environment of a process without pgpu: with the simulated driver and `bare_additions`."""
        if self.simulated_directory is None or self.runtime == "docker":
            return {**os.environ, **self.bare_additions}
        # The loader finds the simulated libcuda.so.1 before the real one.
        driver_directory = str(library_path(SIMULATED_CUDA).parent)
        simulated = {"LD_LIBRARY_PATH": driver_directory, "PGPU_SIMGPU_DIR": str(self.simulated_directory)}
        return {**os.environ, **simulated, **self.bare_additions}

    def container_command(self, command: tuple[str, ...], *, detached: bool = False) -> tuple[str, ...]:
        """Return the command that runs another one in a container without pgpu, in the foreground unless `detached`."""
        run = ("docker", "run", "--rm", "--detach" if detached else "--interactive", "--network", "none")
        if self.simulated_directory is None:
            gpu: tuple[str, ...] = ("--gpus", "all")
        else:
            gpu = (
                *("--volume", f"{library_path(SIMULATED_CUDA).parent}:{_DRIVER_IN_CONTAINER}:ro"),
                *("--volume", f"{self.simulated_directory}:{_STATE_IN_CONTAINER}"),
                *("--env", f"LD_LIBRARY_PATH={_DRIVER_IN_CONTAINER}"),
                *("--env", f"PGPU_SIMGPU_DIR={_STATE_IN_CONTAINER}"),
            )
        return (*run, *gpu, str(self.image), *command)


@contextmanager
def open_testbed(
    settings: Settings,
    runtime: RuntimeName,
    image: str | None,
    progress: Callable[[str], None],
    *,
    headroom: Headroom | None = None,
) -> Iterator[Testbed]:
    """Make a testbed; its jobs are stopped and its directories removed when the block ends.

    Args:
        settings: `simulate` names the simulated GPU; None for the machine's own.
        runtime: How jobs run, with pgpu and without.
        image: Only with `docker`; None for the test image.
        progress: Called with each line of progress.
        headroom: Memory of a simulated GPU that slices leave free; None for the settings' value.

    Raises:
        RequestError: The model is unknown, or several GPUs are named.
        NodeError: There is no GPU, its state cannot be made, or the workloads cannot run here.
    """
    if runtime == "process":
        require_modules("the jobs of an experiment need", ("cuda.bindings",), "lab")
    private = Path(tempfile.mkdtemp(prefix="pgpu-experiment-", dir=_SHARED_MEMORY)) if settings.simulate else None
    try:
        if private is not None:
            settings = replace(
                settings,
                state_dir=private / "state",
                runtime_dir=private,
                headroom=headroom or settings.headroom,
            )
        client = open_client(settings)
        try:
            bed = _make_testbed(client, _start_bare_device(settings, private), image, progress)
            bed = bed.in_containers() if runtime == "docker" else bed
            stable_seconds = settings.stable_time if settings.headroom.yields else 0.0
            yield replace(bed, environment=_environment_of(settings), stable_seconds=stable_seconds)
        finally:
            # The agent outlives this process.
            for report in client.jobs(include_final=False):
                client.stop(report.job.id, grace_seconds=0)
    finally:
        if private is not None:
            shutil.rmtree(private, ignore_errors=True)


def _start_bare_device(settings: Settings, private: Path | None) -> Path | None:
    """Start the simulated device of the jobs without pgpu; those with pgpu have another one of the same model."""
    if settings.simulate is None or private is None:
        return None
    model, count = parse_model(settings.simulate)
    if count != 1:
        raise RequestError("experiments run on one GPU", hint="leave the number out of --simulate")
    directory = private / "bare"
    start_simulated(directory, model, count)
    return directory


def _make_testbed(
    client: Client, simulated_directory: Path | None, image: str | None, progress: Callable[[str], None]
) -> Testbed:
    source = NvmlSource(simulated_directory)
    gpus = source.gpus()
    if not gpus:
        raise NodeError("there is no GPU here", hint="add --simulate 'RTX 3090' before the verb")
    gpu = gpus[0]
    return Testbed(
        client=client,
        read_used_bytes=lambda: source.memory(gpu.uuid).used_bytes,
        device_name=gpu.name,
        device_memory_bytes=gpu.memory_bytes,
        simulated_directory=simulated_directory,
        gpu_uuid=gpu.uuid,
        image=image,
        progress=progress,
    )


def _environment_of(settings: Settings) -> Mapping[str, str]:
    """Return the variables with which `pgpu` has these settings."""
    if settings.simulate is None or settings.runtime_dir is None:
        return {}
    return {
        "PGPU_SIMULATE": settings.simulate,
        "PGPU_STATE_DIR": str(settings.state_dir),
        "PGPU_RUNTIME_DIR": str(settings.runtime_dir),
        **({"PGPU_HEADROOM": "0"} if settings.headroom == NO_HEADROOM else {}),
    }
