"""Where experiments run: on simulated GPUs of their own, or on the machine's real one.

A simulated experiment gets a private state and runtime directory, so that it meets no job but its own and leaves
nothing behind. On a real GPU it uses this user's own ledger, since a real GPU has one. It refuses to print.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pgpu.app.clients import open_client
from pgpu.app.settings import Settings
from pgpu.client import Client
from pgpu.distribution import require_modules
from pgpu.errors import NodeError, RequestError
from pgpu.gpu.catalog import parse_model
from pgpu.gpu.nvml import NvmlSource
from pgpu.gpu.simulated import start_simulated
from pgpu.lab.testbed import RuntimeName, Testbed
from pgpu.scheduling.capacity import Headroom

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp makes a directory of our own in it
NO_HEADROOM = Headroom(0, 0.0)
"""Slices may sum to the whole of a GPU, as the paper's containers did."""


@contextmanager
def open_testbed(
    settings: Settings,
    runtime: RuntimeName,
    image: str | None,
    tell: Callable[[str], None],
    *,
    headroom: Headroom | None = None,
) -> Iterator[Testbed]:
    """Make a stage, and clear it when the block ends, however it ends.

    Args:
        settings: `simulate` says which GPU is simulated; None for the machine's own.
        runtime: How jobs run, with pgpu and without.
        image: Only with `docker`; None for the test image.
        tell: Hears of progress.
        headroom: What slices leave free of a simulated GPU; None for what the settings say.

    Raises:
        RequestError: The model is not known, or names several GPUs.
        NodeError: There is no GPU, its state cannot be made, or the workloads cannot run here.
    """
    if runtime == "process":
        require_modules("the jobs of an experiment need", ("cuda.bindings",), "lab")
    private = Path(tempfile.mkdtemp(prefix="pgpu-experiment-", dir=_SHARED_MEMORY)) if settings.simulate else None
    try:
        own = _own_settings(settings, private, headroom)
        client = open_client(own)
        try:
            yield replace(
                _stage(client, _simulated_directory(settings, private), runtime, image, tell),
                environment=_environment(own),
            )
        finally:
            _stop_all(client)
    finally:
        if private is not None:
            shutil.rmtree(private, ignore_errors=True)


def _own_settings(settings: Settings, private: Path | None, headroom: Headroom | None) -> Settings:
    if private is None:
        return settings
    left = headroom or settings.headroom
    return replace(settings, state_dir=private / "state", runtime_dir=private, headroom=left)


def _environment(settings: Settings) -> Mapping[str, str]:
    """Return variables under which `pgpu` has the settings that differ from the user's."""
    if settings.simulate is None or settings.runtime_dir is None:
        return {}
    return {
        "PGPU_SIMULATE": settings.simulate,
        "PGPU_STATE_DIR": str(settings.state_dir),
        "PGPU_RUNTIME_DIR": str(settings.runtime_dir),
        **({"PGPU_HEADROOM": "0"} if settings.headroom == NO_HEADROOM else {}),
    }


def _simulated_directory(settings: Settings, private: Path | None) -> Path | None:
    """Make the device that jobs without pgpu share; those with pgpu have one of the same model."""
    if settings.simulate is None or private is None:
        return None
    model, count = parse_model(settings.simulate)
    if count != 1:
        raise RequestError("experiments run on one GPU", hint="leave the number out of --simulate")
    directory = private / "bare"
    start_simulated(directory, model, count)
    return directory


def _stage(
    client: Client,
    simulated_directory: Path | None,
    runtime: RuntimeName,
    image: str | None,
    tell: Callable[[str], None],
) -> Testbed:
    source = NvmlSource(simulated_directory)
    gpus = source.gpus()
    if not gpus:
        raise NodeError("there is no GPU here", hint="add --simulate 'RTX 3090' before the verb")
    gpu = gpus[0]
    stage = Testbed(
        client=client,
        read_used_bytes=lambda: source.memory(gpu.uuid).used_bytes,
        device_name=gpu.name,
        device_memory_bytes=gpu.memory_bytes,
        simulated_directory=simulated_directory,
        gpu_uuid=gpu.uuid,
        image=image,
        tell=tell,
    )
    return stage.in_containers() if runtime == "docker" else stage


def _stop_all(client: Client) -> None:
    for report in client.jobs(include_final=False):
        client.stop(report.job.id, grace_seconds=0)
