"""The control daemon of each GPU over its life: started once, known by its generation, ended whatever state it is in."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.mps_world import MpsWorld, is_dead, mps_world, until_gone
from tests.waiting import until

from pgpu.enforcement.mps import GpuDaemon, Health, MpsDaemons
from pgpu.enforcement.mps.daemon import Generation, health_of
from pgpu.errors import EnforcementError
from pgpu.structs import replace


@pytest.fixture
def world() -> Iterator[MpsWorld]:
    with mps_world(is_started=False) as made:
        yield made


@pytest.fixture
def daemons(world: MpsWorld) -> MpsDaemons:
    return MpsDaemons(world.directory / "run", world.control.program, world.directory)


@pytest.fixture
def daemon(world: MpsWorld, daemons: MpsDaemons) -> Iterator[GpuDaemon]:
    made = daemons.of(world.uuid)
    yield made
    with made.locked():
        made.end()


def generation_of(daemon: GpuDaemon) -> Generation:
    generation = daemon.generation()
    assert generation is not None
    return generation


def pid_of(daemon: GpuDaemon) -> int:
    pipe_directory = daemon.control(generation_of(daemon)).pipe_directory
    return int((pipe_directory / "nvidia-cuda-mps-control.pid").read_text())


def start(daemon: GpuDaemon) -> int:
    with daemon.locked():
        daemon.start("me")
    return pid_of(daemon)


def test_there_is_none_until_one_was_started(daemon: GpuDaemon) -> None:
    assert (daemon.health(), daemon.generation(), daemon.server_pids()) == (Health.ABSENT, None, [])
    start(daemon)
    assert daemon.health() is Health.WELL


def test_one_that_was_ended_leaves_neither_process_nor_directory(daemon: GpuDaemon, world: MpsWorld) -> None:
    pid = start(daemon)
    with daemon.locked():
        daemon.end()
    assert is_dead(pid)
    assert daemon.health() is Health.ABSENT
    assert not list(world.directory.glob("run/mps/*/*/pipe"))


def test_one_that_was_killed_is_gone_and_the_next_lies_elsewhere(daemon: GpuDaemon) -> None:
    os.kill(start(daemon), signal.SIGKILL)
    until(lambda: daemon.health() is Health.GONE)
    before = daemon.generation()
    start(daemon)
    after = daemon.generation()
    assert before is not None
    assert after is not None
    assert daemon.control(before).pipe_directory != daemon.control(after).pipe_directory
    assert daemon.health() is Health.WELL


@pytest.mark.parametrize("is_started_anew", [True, False])
def test_servers_of_one_that_was_killed_end_before_another_takes_the_gpu(
    daemon: GpuDaemon, world: MpsWorld, is_started_anew: bool
) -> None:
    pid = start(daemon)
    world.control = daemon.control(generation_of(daemon))
    program, server = world.client(), world.server
    os.kill(pid, signal.SIGKILL)
    until(lambda: daemon.health() is Health.GONE)
    assert program.refusal("cu.free(cu.alloc(1))") == 0, "its server is gone by itself"
    with daemon.locked():
        daemon.start("me") if is_started_anew else daemon.end()
    assert is_dead(server)


def test_servers_of_another_gpu_s_daemon_live_on(daemons: MpsDaemons, daemon: GpuDaemon, world: MpsWorld) -> None:
    other = daemons.of("GPU-22222222-2222-3333-4444-555555555555")
    pid = start(daemon)
    world.control = daemon.control(generation_of(daemon))
    program = world.client()
    os.kill(start(other), signal.SIGKILL)
    until(lambda: other.health() is Health.GONE)
    with other.locked():
        other.end()
    assert program.refusal("cu.free(cu.alloc(1))") == 0
    assert not is_dead(pid)


def test_one_that_comes_right_after_another_lies_elsewhere_so_that_neither_takes_the_others_sockets(
    daemon: GpuDaemon,
) -> None:
    first = start(daemon)
    with daemon.locked():
        daemon.end()
    start(daemon)
    until_gone(first)
    assert daemon.health() is Health.WELL


@pytest.mark.soak
def test_one_that_hangs_is_silent_and_is_ended_all_the_same(daemon: GpuDaemon, world: MpsWorld) -> None:
    pid = start(daemon)
    os.kill(pid, signal.SIGSTOP)
    assert daemon.health() is Health.SILENT
    with daemon.locked():
        daemon.end()
    assert is_dead(pid)
    assert not list(world.directory.glob("run/mps/*/*/pipe"))


def test_one_that_nobody_can_be_sent_to_ask_is_silent_and_not_gone(daemon: GpuDaemon) -> None:
    start(daemon)
    unasked = replace(daemon.control(generation_of(daemon)), program=Path("/nonexistent/control"))
    assert health_of(unasked) is Health.SILENT


def test_one_that_takes_long_to_quit_has_ended_before_its_directory_goes(daemon: GpuDaemon, world: MpsWorld) -> None:
    pid = start(daemon)
    world.control = daemon.control(generation_of(daemon))
    world.client()
    with daemon.locked():
        daemon.end()
    assert is_dead(pid)


def test_a_record_of_a_machine_that_crashed_is_no_obstacle(daemon: GpuDaemon, world: MpsWorld) -> None:
    (daemon_home(daemon, world) / "now").write_text('{"number": 7, "trust": "me"}')
    assert daemon.health() is Health.GONE
    start(daemon)
    assert daemon.health() is Health.WELL


def test_a_garbled_record_is_an_error_that_says_what_to_do(daemon: GpuDaemon, world: MpsWorld) -> None:
    start(daemon)
    record = daemon_home(daemon, world) / "now"
    kept = record.read_text()
    record.write_text("nonsense")
    with pytest.raises(EnforcementError, match="garbled"):
        daemon.health()
    record.write_text(kept)


def test_a_job_finds_the_daemon_that_it_was_started_under_as_long_as_that_is_there(daemon: GpuDaemon) -> None:
    start(daemon)
    generation = daemon.generation()
    assert generation is not None
    assert daemon.control_of("job") is None
    daemon.enter(generation, "job")
    assert daemon.control_of("job") == daemon.control(generation)
    start(daemon)
    assert daemon.control_of("job") is None


def test_what_was_proved_holds_for_one_daemon_alone(daemon: GpuDaemon) -> None:
    start(daemon)
    generation = daemon.generation()
    assert generation is not None
    daemon.remember_proof(generation, "view")
    assert daemon.is_proved(generation, "view")
    assert not daemon.is_proved(generation, "preload")
    start(daemon)
    after = daemon.generation()
    assert after is not None
    assert not daemon.is_proved(after, "view")


def test_two_gpus_have_two_daemons(daemons: MpsDaemons, daemon: GpuDaemon) -> None:
    other = daemons.of("GPU-22222222-2222-3333-4444-555555555555")
    pids = {start(daemon), start(other)}
    assert len(pids) == 2
    with other.locked():
        other.end()
    assert daemon.health() is Health.WELL


def test_of_many_who_start_one_at_once_all_find_the_same(daemon: GpuDaemon) -> None:
    def ensure(_number: int) -> int:
        with daemon.locked():
            if daemon.health() is not Health.WELL:
                daemon.start("me")
        return pid_of(daemon)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ensure, range(8)))) == 1


def test_the_lock_of_a_process_that_was_killed_keeps_nobody_waiting(daemon: GpuDaemon, world: MpsWorld) -> None:
    lock = daemon_home(daemon, world) / "lock"
    start(daemon)
    program = f"import fcntl, sys; f = open({str(lock)!r}); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.kill()
        with daemon.locked():
            assert daemon.health() is Health.WELL


def daemon_home(daemon: GpuDaemon, world: MpsWorld) -> Path:
    generation = daemon.generation()
    if generation is None:
        with daemon.locked():
            pass
        return next((world.directory / "run" / "mps").iterdir())
    return daemon.control(generation).pipe_directory.parents[1]
