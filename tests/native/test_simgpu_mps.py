"""The simulated MPS as its clients meet it: limits, errors, faults, and the death of anybody."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest
from tests.mps_world import (
    CLIENT_TERMINATED,
    CONTEXT_BYTES,
    ILLEGAL_ADDRESS,
    MAX_CLIENTS_REACHED,
    MEMORY_BYTES,
    MIB,
    RPC_FAILURE,
    SERVER_NOT_READY,
    MpsWorld,
    mps_world,
    until_gone,
)
from tests.waiting import until

from pgpu.enforcement.mps import ServerStatus

NOBODY = 65534
NOT_PERMITTED, CONNECTION_FAILED = 800, 805
OUT_OF_MEMORY = 2
FAULTY = {"PGPU_SIMGPU_FAULT_AT_LAUNCH": "1"}


@pytest.fixture
def world() -> Iterator[MpsWorld]:
    with mps_world() as made:
        yield made


def test_a_program_is_a_client_where_a_daemon_listens(world: MpsWorld) -> None:
    program = world.client()
    assert program.ask("attribute(133)") == 1
    assert world.clients == [program.pid]


@pytest.mark.parametrize("place", ["missing", ""])
def test_a_wrong_pipe_directory_runs_silently_without_mps(world: MpsWorld, place: str) -> None:
    program = world.client({"CUDA_MPS_PIPE_DIRECTORY": str(world.directory / place)})
    assert program.ask("attribute(133)") == 0
    assert world.control.servers() == []


def test_sockets_that_a_dead_daemon_left_run_silently_without_mps(world: MpsWorld) -> None:
    pid = world.daemon_pid
    os.kill(pid, signal.SIGKILL)
    until_gone(pid)
    assert world.client().ask("attribute(133)") == 0


def test_a_client_sees_the_daemons_gpus_alone(world: MpsWorld) -> None:
    assert world.client().ask("cu.number('cuDeviceGetCount')") == 1
    assert world.client({"CUDA_VISIBLE_DEVICES": "0"}).ask("cu.number('cuDeviceGetCount')") == 1
    other = world.program({"CUDA_VISIBLE_DEVICES": "GPU-22222222-2222-3333-4444-555555555555"})
    assert other.refusal("cu.begin()") == 100


@pytest.mark.parametrize(
    ("percentage", "seen"), [("50", 4), ("25", 2), ("75", 6), ("100", 10), ("1", 2), ("nonsense", 10)]
)
def test_a_percentage_is_rounded_down_to_pairs_of_multiprocessors(world: MpsWorld, percentage: str, seen: int) -> None:
    program = world.client({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percentage})
    assert program.ask("attribute(16)") == seen


def test_a_client_lowers_the_daemons_percentage_and_never_raises_it(world: MpsWorld) -> None:
    world.control.set_percentage(40)
    assert world.client({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "80"}).ask("attribute(16)") == 4
    assert world.client({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20"}).ask("attribute(16)") == 2


def test_a_new_percentage_holds_for_clients_to_come(world: MpsWorld) -> None:
    before = world.client()
    world.control.set_percentage(40)
    assert (before.ask("attribute(16)"), world.client().ask("attribute(16)")) == (10, 4)


def test_a_pinned_memory_limit_binds_with_the_context_in_it(world: MpsWorld) -> None:
    program = world.client({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=256M"})
    assert program.refusal(f"cu.alloc({256 * MIB - CONTEXT_BYTES + 1})") == OUT_OF_MEMORY
    assert program.ask("cu.memory()") == [256 * MIB - CONTEXT_BYTES, MEMORY_BYTES]
    assert program.refusal(f"cu.alloc({256 * MIB - CONTEXT_BYTES})") == 0


def test_memory_that_was_freed_can_be_taken_again_below_a_pinned_limit(world: MpsWorld) -> None:
    program = world.client({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=256M"})
    for _ in range(3):
        assert program.refusal(f"cu.free(cu.alloc({192 * MIB}))") == 0


def test_the_daemons_memory_limit_holds_for_clients_to_come_and_may_only_be_lowered(world: MpsWorld) -> None:
    before = world.client()
    world.control.set_memory_limit(256 * MIB)
    wanted = f"cu.free(cu.alloc({300 * MIB}))"
    assert before.refusal(wanted) == 0
    assert world.client().refusal(wanted) == OUT_OF_MEMORY
    assert world.client({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=512M"}).refusal(wanted) == OUT_OF_MEMORY


def test_an_entry_for_a_gpu_that_a_process_cannot_see_takes_every_limit_away(world: MpsWorld) -> None:
    world.control.set_memory_limit(256 * MIB)
    program = world.client({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=128M,1=128M"})
    assert program.refusal(f"cu.alloc({800 * MIB})") == 0


def test_contexts_count_and_not_programs() -> None:
    with mps_world(compute_major=6) as world:
        program = world.client()
        assert [program.refusal("context()") for _ in range(16)] == [0] * 15 + [MAX_CLIENTS_REACHED]


@pytest.mark.parametrize(("compute_major", "most"), [(6, 16), (8, 48), (10, 60)])
def test_as_many_programs_are_clients_as_the_hardware_takes(compute_major: int, most: int) -> None:
    with mps_world(compute_major=compute_major) as world:
        holders = [world.holder() for _ in range(most)]
        until(lambda: len(world.clients) == most)
        late = world.program()
        assert late.refusal("cu.call('cuInit', 0)") == MAX_CLIENTS_REACHED
        holders[0].kill()
        until(lambda: len(world.clients) == most - 1)
        assert world.program().refusal("cu.call('cuInit', 0)") == 0


def test_after_its_server_died_every_call_of_a_client_fails_and_new_clients_get_a_new_server(world: MpsWorld) -> None:
    program = world.client()
    server = world.server
    os.kill(server, signal.SIGKILL)
    until(lambda: program.refusal("cu.alloc(1)") == RPC_FAILURE)
    assert program.refusal("cu.call('cuCtxSynchronize')") == RPC_FAILURE
    assert world.client().ask("attribute(133)") == 1
    assert world.server != server


@pytest.mark.parametrize("waiting", ["cu.code('cuCtxSynchronize')", "cu.code('cuStreamSynchronize', None)"])
def test_a_program_that_waits_for_a_kernel_hears_of_its_servers_death(world: MpsWorld, waiting: str) -> None:
    program = world.client()
    program.ask("launch(seconds=3600)")
    program.say(waiting)
    os.kill(world.server, signal.SIGKILL)
    assert program.hear() == RPC_FAILURE
    assert program.refusal("cu.alloc(1)") == RPC_FAILURE


def test_after_the_daemon_died_its_clients_go_on(world: MpsWorld) -> None:
    program, pid = world.client(), world.daemon_pid
    os.kill(pid, signal.SIGKILL)
    until_gone(pid)
    assert program.refusal("cu.free(cu.alloc(1))") == 0


def test_a_server_without_a_daemon_ends_with_its_last_client(world: MpsWorld) -> None:
    program, server = world.client(), world.server
    os.kill(world.daemon_pid, signal.SIGKILL)
    program.kill()
    until_gone(server)


def test_a_fault_of_one_client_hits_all_and_the_server_takes_nobody_until_they_are_gone(world: MpsWorld) -> None:
    neighbour, faulty = world.client(), world.client(FAULTY)
    faulty.ask("launch()")
    assert faulty.refusal("cu.call('cuCtxSynchronize')") == ILLEGAL_ADDRESS
    until(lambda: neighbour.refusal("cu.alloc(1)") == ILLEGAL_ADDRESS)
    assert world.status() is ServerStatus.FAULT
    assert world.program().refusal("cu.call('cuInit', 0)") == SERVER_NOT_READY
    faulty.kill()
    assert world.program().refusal("cu.call('cuInit', 0)") == SERVER_NOT_READY
    neighbour.kill()
    until(lambda: world.status() is ServerStatus.ACTIVE)
    assert world.client().refusal("cu.alloc(1)") == 0


def test_a_fault_without_mps_hurts_nobody_else(world: MpsWorld) -> None:
    away = {"CUDA_MPS_PIPE_DIRECTORY": str(world.directory)}
    neighbour, faulty = world.client(away), world.client(FAULTY | away)
    faulty.ask("launch()")
    assert faulty.refusal("cu.alloc(1)") == ILLEGAL_ADDRESS
    assert neighbour.refusal("cu.alloc(1)") == 0


def test_a_client_that_was_terminated_is_told_and_the_others_go_on(world: MpsWorld) -> None:
    stays, goes = world.client(), world.client()
    world.control.terminate(world.server, goes.pid)
    until(lambda: goes.refusal("cu.alloc(1)") == CLIENT_TERMINATED)
    assert stays.refusal("cu.alloc(1)") == 0
    assert world.status() is ServerStatus.ACTIVE


def test_a_forked_child_that_keeps_the_socket_keeps_no_dead_client(world: MpsWorld) -> None:
    program = world.client()
    child = program.ask("__import__('os').fork() or __import__('time').sleep(600)")
    try:
        program.kill()
        until(lambda: world.clients == [])
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_server_that_is_shut_down_waits_for_its_clients_unless_it_is_forced(world: MpsWorld) -> None:
    program, server = world.client(), world.server
    world.control.ask(f"shutdown_server {server}")
    assert program.refusal("cu.alloc(1)") == 0
    world.control.ask(f"shutdown_server {server} -f")
    until(lambda: program.refusal("cu.alloc(1)") == RPC_FAILURE)
    until_gone(server)


def test_a_daemon_that_quits_waits_for_clients_until_its_timeout(world: MpsWorld) -> None:
    program, pid = world.client(), world.daemon_pid
    world.control.quit(0)
    until_gone(pid)
    until(lambda: program.refusal("cu.alloc(1)") == RPC_FAILURE)
    assert not (world.control.pipe_directory / "control").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
def test_another_user_waits_until_the_clients_of_the_first_have_gone(world: MpsWorld) -> None:
    first, server = world.client(), world.server
    second = world.holder(user=NOBODY)
    log = world.control.log_directory / "control.log"
    until(lambda: f"NEW CLIENT {second.pid} from user {NOBODY}" in log.read_text())
    assert world.clients == [first.pid]
    first.kill()
    assert second.stdout is not None
    assert "ready\n" in iter(second.stdout.readline, "")
    assert world.server != server
    assert world.clients == [second.pid]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
def test_a_daemon_of_an_ordinary_user_takes_no_client_of_another() -> None:
    with mps_world(is_started=False) as world:
        for path in (world.directory, *world.directory.iterdir()):
            os.chown(path, NOBODY, NOBODY)
        words = {**world.environment(), "CUDA_MPS_LOG_DIRECTORY": str(world.control.log_directory)}
        for program in world.control.program.parent.glob("nvidia-cuda-mps-*"):
            shutil.copy(program, world.directory)  # where that user may execute it
        daemon = world.directory / world.control.program.name
        subprocess.run([daemon, "-d"], env=words, user=NOBODY, cwd="/", check=True)
        own = world.holder(user=NOBODY)
        assert own.stdout is not None
        assert "ready\n" in iter(own.stdout.readline, "")
        assert world.program().refusal("cu.call('cuInit', 0)") == NOT_PERMITTED


def test_where_no_server_can_be_started_a_client_cannot_connect(world: MpsWorld) -> None:
    hog = world.client({"CUDA_MPS_PIPE_DIRECTORY": str(world.directory)})
    assert hog.refusal(f"cu.alloc({MEMORY_BYTES - CONTEXT_BYTES})") == 0
    assert world.program().refusal("cu.call('cuInit', 0)") == CONNECTION_FAILED
    hog.kill()
    assert world.client().ask("attribute(133)") == 1


def test_the_logs_tell_of_servers_clients_and_commands(world: MpsWorld) -> None:
    program = world.client()
    told = (world.control.log_directory / "control.log").read_text()
    assert f"NEW CLIENT {program.pid} from user {os.geteuid()}" in told
    assert f"NEW SERVER {world.server}: Ready" in told
    assert f"New client {program.pid} connected" in (world.control.log_directory / "server.log").read_text()


def test_ps_names_each_client_its_server_and_its_program(world: MpsWorld) -> None:
    program = world.client()
    header, line = (world.control.ask("ps") or "").splitlines()
    assert header.split()[:3] == ["PID", "ID", "SERVER"]
    assert line.split()[0] == str(program.pid)
    assert line.split()[2] == str(world.server)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("set_default_active_thread_percentage 0", "Invalid percentage 0"),
        ("set_default_active_thread_percentage 101", "Invalid percentage 101"),
        ("set_default_device_pinned_mem_limit 3 1G", "Invalid device 3"),
        ("set_default_device_pinned_mem_limit 0 much", "Invalid limit much"),
        ("get_client_list", "Usage: get_client_list PID"),
        ("get_server_status 4711", "Server 4711 not found"),
        ("dance", "Unknown command: dance"),
    ],
)
def test_wrong_commands_are_answered_and_change_nothing(world: MpsWorld, line: str, answer: str) -> None:
    assert (world.control.ask(line) or "").strip() == answer
    assert world.control.percentage() == 100


def test_a_daemon_keeps_no_descriptor_of_who_started_it(world: MpsWorld) -> None:
    world.control.quit(0)
    until(lambda: world.control.servers() is None)
    reader, writer = os.pipe()
    words = {**world.environment(), "CUDA_MPS_LOG_DIRECTORY": str(world.control.log_directory)}
    subprocess.run([world.control.program, "-d"], env=words, pass_fds=[writer], check=True)
    os.close(writer)
    with os.fdopen(reader, "rb") as end:
        assert end.read() == b""


def test_a_stranger_who_connects_and_says_nothing_keeps_nobody_waiting(world: MpsWorld) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(str(world.control.pipe_directory / "control"))
        assert world.client().ask("attribute(133)") == 1
        stranger.send(b"nonsense")
        assert world.client().ask("attribute(133)") == 1
