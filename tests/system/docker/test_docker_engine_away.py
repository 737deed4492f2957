"""The engine goes away while it has containers, and comes back: an engine of its own, which may be killed."""

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.clearing import clear, unmount_below
from tests.contract.runtime_worlds import Started, pipes
from tests.system.docker.compose_project import Project
from tests.system.docker.oci_place import OciPlace, docker, inspected, opened_oci_place
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


@pytest.fixture(scope="module")
def engine(images: str) -> Iterator[OwnEngine]:
    """Start it with the tiny image."""
    with pytest.MonkeyPatch.context() as patch, started_engine(f"{images}:tiny") as own:
        patch.setenv("DOCKER_HOST", own.host)
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


@pytest.fixture(scope="module")
def revenants(
    engine: OwnEngine,  # noqa: ARG001 - DOCKER_HOST names it
    images: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OciPlace]:
    """A service of Compose, a container beside it and one whose request is its image's own, all with `restart: always`."""
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is not installed")
    with opened_oci_place(images) as place:
        directory = tmp_path_factory.mktemp("project")
        (directory / "Dockerfile").write_text(f"FROM {images}:tiny\nENV PGPU_MEMORY=3GiB\n")
        docker("build", "--quiet", "--tag", f"{images}:asks", str(directory))
        service = {"image": f"{images}:tiny", "command": ["sleep", "600"], "environment": {"PGPU_MEMORY": "8GiB"}}
        project = Project(place, directory)
        project.write(train={**service, "restart": "always", "stop_grace_period": "0s"})
        up = project.compose("up", "--detach")
        assert up.returncode == 0, up.stderr
        words = ("--detach", "--restart", "always", "--stop-timeout", "0", "--name")
        place.run(*words, f"{place.runtime}-beside", "-e", "PGPU_MEMORY=12GiB", image="tiny", command=("sleep", "600"))
        place.run(*words, f"{place.runtime}-plain", image="asks", command=("sleep", "600"))
        yield place
        assert project.compose("down").returncode == 0


def _stop(engine: OwnEngine, _place: OciPlace) -> None:
    engine.tell("stop")


def _crash(engine: OwnEngine, _place: OciPlace) -> None:
    engine.crash()


def _reboot(engine: OwnEngine, place: OciPlace) -> None:
    """Leave nothing but the disk: no process, no mount, and empty runtime directories of the engine and of pgpu."""
    pids = [int(inspected(name, ".State.Pid")) for name in docker("ps", "--format", "{{.Names}}").stdout.split()]
    engine.crash()
    clear(engine.directory / "exec")
    for pid in filter(None, pids):  # 0 between two starts
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    unmount_below(engine.directory)
    clear(place.path / "run")


@pytest.mark.parametrize("leave", [_stop, _crash, _reboot])
def test_containers_that_always_restart_come_back_in_their_slices(
    engine: OwnEngine, revenants: OciPlace, eventually: Eventually, leave: Callable[[OwnEngine, OciPlace], None]
) -> None:
    beside, plain = f"{revenants.runtime}-beside", f"{revenants.runtime}-plain"
    train = f"{revenants.runtime}_train_1"

    def running() -> dict[str, str]:
        return {job["name"]: job["id"] for job in revenants.jobs() if job["state"] == "running"}

    eventually(lambda: running().keys() == {train, beside})
    before = running()
    leave(engine, revenants)
    engine.tell("start")
    eventually(lambda: running().keys() == {train, beside} and not running().items() & before.items())
    probe = docker("exec", beside, "/.pgpu/pgpu-probe", "allocate", str(12 << 30))
    assert probe.stdout.splitlines()[-1] == "allocate 2"
    # What the engine could not tell from a request at first is started once more, and again without a slice.
    eventually(lambda: inspected(plain, ".State.Running") == "true" and _has_no_slice(plain))


def _has_no_slice(name: str) -> bool:
    done = docker("exec", name, "cat", "/proc/mounts", check=False)  # it may be between two starts
    return done.returncode == 0 and "/.pgpu" not in done.stdout


def _lease(job: Job) -> Any:
    assert job.lease is not None
    return job.lease
