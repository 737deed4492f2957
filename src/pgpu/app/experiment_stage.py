"""Where experiments run: on simulated GPUs of their own, or on the machine's real one.

A simulated experiment gets a private state and runtime directory, so that it meets no job but its own and leaves
nothing behind. On a real GPU it uses this user's own ledger, since a real GPU has one. It refuses to print.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pgpu.app.settings import Settings
from pgpu.app.wiring import open_client
from pgpu.client import Client
from pgpu.errors import NodeError, RequestError
from pgpu.experiments.stage import RuntimeName, Stage
from pgpu.gpu.catalog import parse_model
from pgpu.gpu.nvml import NvmlSource
from pgpu.gpu.simulated import start_simulated

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp makes a directory of our own in it
_IMAGE = "pgpu-test:latest"
"""What `tools/test-image` makes."""

_PYTHON_IN_IMAGE = "python3"


@contextmanager
def open_stage(
    settings: Settings, runtime: RuntimeName, image: str | None, tell: Callable[[str], None]
) -> Iterator[Stage]:
    """Make a stage, and clear it when the block ends, however it ends.

    Args:
        settings: `simulate` says which GPU is simulated; None for the machine's own.
        runtime: How jobs run, with pgpu and without.
        image: Only with `docker`; None for the test image.
        tell: Hears of progress.

    Raises:
        RequestError: The model is not known, or names several GPUs.
        NodeError: There is no GPU, or its state cannot be made.
    """
    private = Path(tempfile.mkdtemp(prefix="pgpu-experiment-", dir=_SHARED_MEMORY)) if settings.simulate else None
    try:
        client = open_client(_own_settings(settings, private))
        try:
            yield _stage(client, _simulated_directory(settings, private), runtime, image, tell)
        finally:
            _stop_all(client)
    finally:
        if private is not None:
            shutil.rmtree(private, ignore_errors=True)


def _own_settings(settings: Settings, private: Path | None) -> Settings:
    return settings if private is None else replace(settings, state_dir=private / "state", runtime_dir=private)


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
) -> Stage:
    source = NvmlSource(simulated_directory)
    gpus = source.gpus()
    if not gpus:
        raise NodeError("there is no GPU here", hint="add --simulate 'RTX 3090' before the verb")
    gpu = gpus[0]
    return Stage(
        client=client,
        read_used_bytes=lambda: source.memory(gpu.uuid).used_bytes,
        device_name=gpu.name,
        device_memory_bytes=gpu.memory_bytes,
        simulated_directory=simulated_directory,
        runtime=runtime,
        image=(image or _IMAGE) if runtime == "docker" else None,
        python=_PYTHON_IN_IMAGE if runtime == "docker" else sys.executable,
        tell=tell,
    )


def _stop_all(client: Client) -> None:
    for report in client.jobs(include_final=False):
        client.stop(report.job.id, grace_seconds=0)
