"""Each cell of SECURITY.md's table: is an allocation past the slice refused, whichever way a client reaches the driver?

The simulated GPU's driver stands where a real one would: in a private view and in a container at the linker's standard
path, under the shim; for a preload in a public directory on LD_LIBRARY_PATH, which stands for that path.
"""

import os
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.contract.runtime_worlds import pipes
from tests.native_clients import client_path
from tests.system.slice_stage import MIB, SLICE_BYTES, Stage, install_driver, opened_stage
from tests.waiting import DEADLINE_SECONDS

from pgpu.host.process_identity import identify_unreaped
from pgpu.model import ContainerHolder, Job, Mount
from pgpu.runtimes import Runtime
from pgpu.runtimes.docker.docker_runtime import DockerRuntime
from pgpu.runtimes.process_runtime import ProcessRuntime, can_make_private_views

_TABLE = Path(__file__).parent.parent.parent / "docs" / "interception.toml"
_PAST_THE_SLICE = str(SLICE_BYTES + 256 * MIB)
_ANSWERS = {"allocate 0": "missed", "allocate 2": "held"}
_OTHER_USER = "65534"
_IMAGE = f"{os.environ.get('PGPU_TEST_IMAGE', 'pgpu-test')}:tiny"

_CELLS = [
    pytest.param(
        row["name"],
        delivery,
        row[delivery],
        id=f"{row['name']}-{delivery}",
        marks=[pytest.mark.docker] if delivery == "container" else [],
    )
    for row in tomllib.loads(_TABLE.read_text(encoding="utf-8"))["client"]
    for delivery in ("view", "preload", "container")
    if row[delivery] != "none"
]


@dataclass(frozen=True)
class Place:
    """One way of delivery: where a client finds things, and how it is run."""

    driver: Path
    """Directory in which programs of this place find the driver."""

    own_copy: Path
    """A copy of the driver that no shim lies over."""

    is_on_standard_path: bool

    def command(self, name: str) -> list[str]:
        """Return the words of a client."""
        return _COMMANDS.get(name, _opening(name))(self)


def _opening(way: str, *words: str) -> Callable[[Place], list[str]]:
    return lambda _: [str(client_path("interception", "interception-opening")), way, _PAST_THE_SLICE, *words]


def _absolute(path: Path) -> list[str]:
    return [str(client_path("interception", "interception-opening")), "absolute", _PAST_THE_SLICE, str(path)]


def _empty_environment(place: Place) -> list[str]:
    words = [] if place.is_on_standard_path else [f"LD_LIBRARY_PATH={place.driver}"]
    return ["env", "-i", *words, *_opening("dlsym")(place)]


def _other_user(place: Place) -> list[str]:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user inside a job")
    return ["setpriv", f"--reuid={_OTHER_USER}", f"--regid={_OTHER_USER}", "--clear-groups", *_opening("dlsym")(place)]


def _plugin(place: Place) -> list[str]:
    return _opening("deepbind-plugin", str(client_path("interception", "interception-plugin.so")))(place)


def _cudart(place: Place) -> list[str]:
    return _opening("cudart", str(client_path("cudart", "libcudart.so.13")))(place)


def _covering(place: Place) -> list[str]:
    sizes = [str(SLICE_BYTES), str(4 * SLICE_BYTES)]
    return [str(client_path("interception", "interception-covering")), *sizes, *_opening("dlsym")(place)]


_COMMANDS: dict[str, Callable[[Place], list[str]]] = {
    "linked": lambda _: [str(client_path("interception", "interception-linked")), _PAST_THE_SLICE],
    "absolute": lambda place: _absolute(place.driver / "libcuda.so.1"),
    "own-copy": lambda place: _absolute(place.own_copy),
    "deepbind-plugin": _plugin,
    "static": lambda _: [str(client_path("interception", "interception-static")), "dlsym", _PAST_THE_SLICE],
    "empty-environment": _empty_environment,
    "other-user": _other_user,
    "cudart": _cudart,
    "covering": _covering,
}


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with opened_stage() as made:
        install_driver(made)
        yield made


def _verdict(output: str) -> str:
    """Read what a client wrote; anything but a clear answer is shown as it is."""
    return next((verdict for line in output.splitlines() if (verdict := _ANSWERS.get(line))), output or "silence")


@pytest.mark.parametrize(("client", "delivery", "expected"), _CELLS)
def test_a_client_is_held_or_missed_as_security_md_says(
    stage: Stage, client: str, delivery: str, expected: str
) -> None:
    ways: dict[str, Callable[[Stage, str], str]] = {
        "view": _in_view,
        "preload": _preloaded,
        "container": _in_container,
    }
    assert _verdict(ways[delivery](stage, client)) == expected


def _preloaded(stage: Stage, client: str) -> str:
    driver = stage.directory / "driver"
    place = Place(driver, driver / "libcuda.so.1", is_on_standard_path=False)
    runtime = ProcessRuntime(can_make_views=lambda: False)
    job = stage.job(place.command(client), is_advisory=True, environment=(("LD_LIBRARY_PATH", str(driver)),))
    return stage.output(runtime, job)


def _in_view(stage: Stage, client: str) -> str:
    if not can_make_private_views():
        pytest.skip("this user may not make the namespaces of a private view here")
    place = Place(_standard_directory(), Path("/.pgpu/driver/libcuda.so.1"), is_on_standard_path=True)
    if client == "entering":
        return _entering_view(stage, place.command("dlsym"))
    return stage.output(ProcessRuntime(), stage.job(place.command(client)))


def _in_container(stage: Stage, client: str) -> str:
    if subprocess.run(["docker", "image", "inspect", _IMAGE], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"the test image {_IMAGE} is missing (tools/test-image makes it)")
    directory = f"/usr/lib/{os.uname().machine}-linux-gnu"
    place = Place(Path(directory), Path("/.pgpu/driver/libcuda.so.1"), is_on_standard_path=True)
    runtime = DockerRuntime(stage.directory / "images")
    if client == "entering":
        return _entering_container(stage, runtime, place.command("dlsym"))
    is_other = client == "other-user"
    command = place.command("dlsym" if is_other else client)
    return stage.output(runtime, _container_job(stage, command, user=_OTHER_USER if is_other else None))


def _container_job(stage: Stage, command: Sequence[str], **spec: Any) -> Job:
    """Return a job in a container of this host's own C library, with the clients where they lie on the host."""
    clients = str(client_path("interception", "interception-opening").parent.parent)
    volumes = (Mount(clients, clients, "ro"),)
    return stage.job(command, runtime="docker", image=_IMAGE, volumes=volumes, **spec)


def _entering_container(stage: Stage, runtime: Runtime, command: Sequence[str]) -> str:
    streams, job = pipes(), _container_job(stage, ["cat"], wants_stdin=True)
    with stage.prepared(job) as delivery:
        running = runtime.start(job, delivery, streams.job_side, lambda _: None)
        streams.close_job_side()
        assert isinstance(running.holder, ContainerHolder)
        words = ["docker", "exec", running.holder.container_id, "env", "-i", *command]
        try:
            return subprocess.run(words, capture_output=True, text=True, check=False, timeout=DEADLINE_SECONDS).stdout
        finally:
            running.kill()
            running.close()
            streams.close()


def _entering_view(stage: Stage, command: Sequence[str]) -> str:
    """Start a process from outside in the namespaces of a job that runs, without a word of its environment."""
    if shutil.which("nsenter") is None:
        pytest.skip("nsenter is not installed")
    streams, job = pipes(), stage.job(["cat"])
    with stage.prepared(job) as delivery:
        running = ProcessRuntime().start(job, delivery, streams.job_side, lambda _: None)
        assert identify_unreaped(running.holder.pid) == running.holder
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        words = ["nsenter", f"--target={running.holder.pid}", "--mount", *user, "env", "-i", *command]
        try:
            return subprocess.run(words, capture_output=True, text=True, check=False, timeout=DEADLINE_SECONDS).stdout
        finally:
            running.kill()
            running.close()
            streams.close()
            streams.close_job_side()


def _standard_directory() -> Path:
    machine = os.uname().machine
    multiarch = Path(f"/usr/lib/{machine}-linux-gnu")
    return multiarch if multiarch.is_dir() else Path("/usr/lib64")
