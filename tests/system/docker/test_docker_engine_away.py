"""The engine goes away while a container is waited for, and comes back: an engine of its own, which may be killed."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.runtime_worlds import Started, pipes
from tests.system.docker.conftest import docker
from tests.system.slice_stage import Stage, opened_stage

from pgpu.errors import RuntimeUnavailableError
from pgpu.model import Job
from pgpu.runtimes.docker.runtime import DockerRuntime

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a second Docker engine"),
]

_TOOL = Path(__file__).parent.parent.parent.parent / "tools" / "docker-engine"

Eventually = Callable[[Callable[[], Any]], Any]


class OwnEngine:
    """A Docker engine that only this test uses."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._environment = {**os.environ, "PGPU_ENGINE_DIR": str(directory)}

    def tell(self, verb: str) -> str:
        """Start, stop or purge it; what it printed."""
        done = subprocess.run(
            [_TOOL, verb], env=self._environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def crash(self) -> None:
        """Kill the engine; its containers live on until it comes back."""
        os.kill(int((self.directory / "dockerd.pid").read_text()), signal.SIGKILL)


@pytest.fixture
def engine(images: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnEngine]:
    """Start it with the tiny image."""
    image = subprocess.run(["docker", "save", f"{images}:tiny"], capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="pgpu-engine-", dir="/var/tmp") as directory:
        own = OwnEngine(Path(directory))
        monkeypatch.setenv("DOCKER_HOST", own.tell("start").removeprefix("DOCKER_HOST="))
        try:
            docker("load", stdin=image)
            yield own
        finally:
            own.tell("purge")
            Path(directory).mkdir(exist_ok=True)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with opened_stage() as made:
        yield made


def _start(stage: Stage, runtime: DockerRuntime, job: Job) -> Started:
    streams = pipes()
    delivery = stage.enforcer.prepare(job, stage.gpus)
    running = runtime.start(job, delivery, streams.job_side, lambda _: None)
    streams.close_job_side()
    return Started(job, running, streams)


def test_an_engine_that_stops_ends_its_containers_and_their_exit_codes_are_told_when_it_is_back(
    stage: Stage, engine: OwnEngine, images: str, eventually: Eventually
) -> None:
    runtime = DockerRuntime(stage.directory / "images")
    job = stage.job(
        ["sh", "-c", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done"],
        runtime="docker",
        image=f"{images}:tiny",
    )
    started = _start(stage, runtime, job)
    started.streams.read_until(b"ready")
    engine.tell("stop")
    with pytest.raises(RuntimeUnavailableError):
        started.running.signal(signal.SIGTERM)
    engine.tell("start")
    eventually(lambda: not started.running.is_alive())
    assert started.running.exit_code() == 5
    started.running.close()
    started.streams.close()
    assert stage.enforcer.is_held(_lease(job)) is False
    stage.enforcer.release(_lease(job))


def test_a_container_that_outlives_a_crashed_engine_is_not_called_ended(
    stage: Stage, engine: OwnEngine, images: str, eventually: Eventually
) -> None:
    runtime = DockerRuntime(stage.directory / "images")
    job = stage.job(["sh", "-c", "echo ready; exec sleep 1000"], runtime="docker", image=f"{images}:tiny")
    started = _start(stage, runtime, job)
    started.streams.read_until(b"ready")
    engine.crash()
    started.streams.read_to_end()  # the engine's end of the streams is gone
    assert started.running.is_alive()
    assert started.running.exit_code() is None
    engine.tell("start")
    eventually(lambda: not started.running.is_alive())  # an engine without live restore ends what it finds
    assert started.running.exit_code() in {137, None}
    started.running.close()
    started.streams.close()
    stage.enforcer.release(_lease(job))


def _lease(job: Job) -> Any:
    assert job.lease is not None
    return job.lease
