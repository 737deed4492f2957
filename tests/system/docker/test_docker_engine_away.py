"""The engine goes away while a container is waited for, and comes back: an engine of its own, which may be killed."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.contract.runtime_worlds import Started, pipes
from tests.system.docker.own_engine import OwnEngine, started_engine
from tests.system.slice_stage import Stage, opened_stage

from pgpu.errors import RuntimeUnavailableError
from pgpu.model import Job
from pgpu.runtimes.docker.docker_runtime import DockerRuntime

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a second Docker engine"),
]

Eventually = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def engine(images: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnEngine]:
    """Start it with the tiny image."""
    with started_engine(f"{images}:tiny") as own:
        monkeypatch.setenv("DOCKER_HOST", own.host)
        yield own


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
