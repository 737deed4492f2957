"""What every MPS control program does: the simulated one, and NVIDIA's where there is a GPU (`-m gpu`)."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.mps_world import mps_world, until_gone
from tests.waiting import until

from pgpu.enforcement.driver_library import find_driver
from pgpu.enforcement.mps import Health, MpsControl, ServerStatus, find_control
from pgpu.enforcement.mps.daemon import health_of
from pgpu.errors import EnforcementError
from pgpu.gpu.nvml import NvmlSource
from pgpu.libraries import PROBE, library_path
from pgpu.units import MIB


@dataclass
class World:
    """A daemon, and how to start the smallest client of it."""

    control: MpsControl
    hold: Callable[[], subprocess.Popen[str]]

    def client(self) -> subprocess.Popen[str]:
        """Start a client and wait until it has a context."""
        process = self.hold()
        assert process.stdout is not None
        said = iter(process.stdout.readline, "")
        assert "ready\n" in said, list(said)
        return process

    def server(self) -> int:
        servers = until(self.control.servers)
        assert servers is not None
        assert len(servers) == 1
        return servers[0]


@contextmanager
def simulated() -> Iterator[World]:
    with mps_world() as world:
        yield World(world.control, world.holder)


@contextmanager
def real() -> Iterator[World]:
    program = find_control(is_simulated=False)
    if program is None:
        pytest.skip("nvidia-cuda-mps-control is not installed")
    gpu = NvmlSource().gpus()[0]
    with tempfile.TemporaryDirectory(prefix="pgpu-test-", dir="/dev/shm") as directory, ExitStack() as stack:
        pipe, log = Path(directory) / "pipe", Path(directory) / "log"
        pipe.mkdir()
        log.mkdir()
        control = MpsControl(program, pipe, log, gpu.uuid)
        control.start()
        stack.callback(control.quit, 0)
        yield World(control, lambda: _real_holder(control, stack))


def _real_holder(control: MpsControl, stack: ExitStack) -> subprocess.Popen[str]:
    words = {"CUDA_MPS_PIPE_DIRECTORY": str(control.pipe_directory), "CUDA_VISIBLE_DEVICES": control.gpu_uuid}
    process = subprocess.Popen(
        [library_path(PROBE), "hold", str(find_driver().cuda)],
        env={**os.environ, **words},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.callback(process.communicate)  # and closes the pipes
    stack.callback(process.kill)
    return process


@pytest.fixture(params=[simulated, pytest.param(real, marks=pytest.mark.gpu)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with request.param() as made:
        yield made


def test_a_daemon_has_no_server_until_its_first_client_comes(world: World) -> None:
    assert world.control.servers() == []
    world.client()
    assert len(world.control.servers() or ()) == 1


def test_a_server_with_clients_is_active_and_names_them(world: World) -> None:
    clients = {world.client().pid, world.client().pid}
    until(lambda: set(world.control.clients(world.server()) or ()) == clients)
    assert world.control.status(world.server()) is ServerStatus.ACTIVE
    assert health_of(world.control) is Health.WELL


def test_a_client_that_was_killed_is_no_client_any_more(world: World) -> None:
    stays, goes = world.client(), world.client()
    goes.send_signal(signal.SIGKILL)
    until(lambda: world.control.clients(world.server()) == [stays.pid])


def test_the_default_percentage_is_the_whole_and_can_be_set(world: World) -> None:
    assert world.control.percentage() == 100
    world.control.set_percentage(30)
    assert world.control.percentage() == 30


def test_a_memory_limit_for_processes_to_come_can_be_set(world: World) -> None:
    world.control.set_memory_limit(512 * MIB)
    assert world.control.memory_limit() == "512M"


def test_a_second_daemon_in_the_same_place_does_not_start(world: World) -> None:
    with pytest.raises(EnforcementError, match="does not start"):
        world.control.start()
    assert world.control.servers() == []


def test_a_daemon_that_was_told_to_quit_does_not_answer_and_another_can_start_there(world: World) -> None:
    world.control.quit(0)
    until(lambda: health_of(world.control) is Health.GONE)
    world.control.start()
    assert world.control.servers() == []


def test_a_daemon_that_was_killed_does_not_answer_though_its_sockets_are_there(world: World) -> None:
    pid = int((world.control.pipe_directory / "nvidia-cuda-mps-control.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    until_gone(pid)
    assert (world.control.pipe_directory / "control").exists()
    assert world.control.servers() is None
    world.control.start()
    assert world.control.servers() == []


def test_what_a_server_that_is_not_there_is_asked_has_no_answer(world: World) -> None:
    assert world.control.status(1) is None
    assert world.control.clients(1) == []


def test_a_pipe_directory_whose_name_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    control = MpsControl(Path("/bin/false"), tmp_path / ("x" * 100), tmp_path, "GPU-1")
    with pytest.raises(EnforcementError, match="too long"):
        control.start()
