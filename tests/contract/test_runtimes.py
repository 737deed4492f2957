"""What every runtime promises, run over each of them.

A new runtime joins by a world of its own in `_WORLDS`.
"""

import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.contract.runtime_worlds import RuntimeWorld, Started, opened, pipes, terminal
from tests.waiting import until

from pgpu.errors import CommandNotExecutableError, CommandNotFoundError
from pgpu.model import ClaimHolder, ContainerHolder, Holder
from pgpu.runtimes import RunningJob
from pgpu.runtimes.docker.docker_runtime import DockerRuntime
from pgpu.runtimes.process_runtime import ProcessRuntime, can_make_private_views
from pgpu.structs import replace


def _process_in_view(directory: Path) -> RuntimeWorld:
    if not can_make_private_views():
        pytest.skip("this user may not make the namespaces of a private view here")
    return RuntimeWorld(ProcessRuntime(), directory)


def _process_with_preload(directory: Path) -> RuntimeWorld:
    return RuntimeWorld(ProcessRuntime(can_make_views=lambda: False), directory, is_advisory=True)


def _container(directory: Path) -> RuntimeWorld:
    facts = directory.parent / "images"  # of the whole run: to look into an image takes seconds
    return RuntimeWorld(DockerRuntime(facts), directory, kind="docker", image="pgpu-test:tiny")


_WORLDS: dict[str, Callable[[Path], RuntimeWorld]] = {
    "process-view": _process_in_view,
    "process-preload": _process_with_preload,
    "docker": _container,
    "podman": _container,
}


@pytest.fixture(
    params=[
        "process-view",
        "process-preload",
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("podman", marks=pytest.mark.podman),
    ]
)
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RuntimeWorld]:
    if request.param == "podman":
        monkeypatch.setenv("DOCKER_HOST", os.environ["PGPU_PODMAN_HOST"])
    with opened(_WORLDS[request.param](tmp_path)) as made:
        yield made


def test_a_job_ends_with_the_code_of_its_command(world: RuntimeWorld) -> None:
    assert world.shell("exit 7").wait() == 7
    assert world.shell("exit 0").wait() == 0


def test_a_job_that_a_signal_ended_has_128_and_its_number(world: RuntimeWorld) -> None:
    started = world.shell("echo ready; read line", wants_stdin=True)
    started.streams.read_until(b"ready")
    started.running.signal(signal.SIGKILL)
    assert started.wait() == 137


def test_a_command_that_does_not_exist_is_told_apart_from_one_that_cannot_run(world: RuntimeWorld) -> None:
    with pytest.raises(CommandNotFoundError):
        world.start(["/no/such/command"])
    with pytest.raises(CommandNotFoundError):
        world.start(["no-such-command"])
    with pytest.raises(CommandNotExecutableError):
        world.start(["/etc/passwd"])


def test_output_goes_to_the_streams_that_were_given(world: RuntimeWorld) -> None:
    started = world.shell("echo to stdout; echo to stderr >&2")
    assert started.streams.read_to_end() == b"to stdout\n"
    assert started.streams.read_to_end(started.streams.stderr).endswith(b"to stderr\n")


def test_input_reaches_the_job_and_its_end_too(world: RuntimeWorld) -> None:
    started = world.start(["cat"], wants_stdin=True)
    os.write(started.streams.stdin, b"a line\n")
    started.streams.read_until(b"a line\n")
    os.close(started.streams.stdin)
    assert started.wait() == 0


def test_a_job_has_the_words_of_its_environment(world: RuntimeWorld) -> None:
    started = world.shell('echo "$ODD"', environment=(("ODD", "two words = one\ttab"),))
    assert started.streams.read_to_end() == b"two words = one\ttab\n"


def test_a_job_starts_in_its_working_directory(world: RuntimeWorld) -> None:
    assert world.shell("pwd", working_directory="/usr/bin").streams.read_to_end() == b"/usr/bin\n"


def test_the_holder_is_announced_before_the_first_instruction(world: RuntimeWorld) -> None:
    streams = pipes()
    seen: list[Holder] = []

    def announce(holder: Holder) -> None:
        assert not select.select([streams.stdout], [], [], 0.3)[0], "the command ran before its holder was known"
        seen.append(holder)

    started = world.shell("echo here", streams=streams, announce=announce)
    assert started.streams.read_to_end() == b"here\n"
    assert seen == [started.running.holder]


def test_a_holder_that_cannot_be_recorded_is_gone(world: RuntimeWorld) -> None:
    streams = pipes()
    os.set_inheritable(streams.stdout, False)
    reading = os.dup(streams.stdout)

    def refuse(_: Holder) -> None:
        raise OSError("the ledger is full")

    with pytest.raises(OSError, match="the ledger is full"):
        world.shell("echo here", streams=streams, announce=refuse)
    assert os.read(reading, 100) == b"", "the command ran although nobody knows it"
    os.close(reading)


def test_a_signal_goes_to_the_main_process(world: RuntimeWorld) -> None:
    started = world.shell("trap 'exit 42' TERM; echo ready; while :; do read line; done")
    started.streams.read_until(b"ready")
    started.running.signal(signal.SIGTERM)
    assert started.wait() == 42


def test_a_signal_to_a_job_that_ended_does_nothing(world: RuntimeWorld) -> None:
    started = world.shell("exit 0")
    started.wait()
    started.running.signal(signal.SIGTERM)


def test_kill_ends_everything_that_the_job_started(world: RuntimeWorld) -> None:
    started = world.shell(
        "setsid sh -c 'echo daemon; exec sleep 1000' & sleep 1000 & echo main; read line", wants_stdin=True
    )
    started.streams.read_until(b"daemon")
    started.streams.read_until(b"main")
    started.running.kill()
    started.streams.read_to_end()  # an end of file means that no process has the other end open
    assert started.wait() == 137
    assert not started.running.is_alive()


def test_a_job_that_was_killed_leaves_no_zombie(world: RuntimeWorld) -> None:
    before = set(psutil.Process().children())
    started = world.shell("echo ready; exec sleep 1000")
    started.streams.read_until(b"ready")
    started.running.kill()
    world.close()
    assert set(psutil.Process().children()) <= before


def test_a_job_is_alive_until_it_ended(world: RuntimeWorld) -> None:
    started = world.shell("read line; exit 3", wants_stdin=True)
    assert started.running.is_alive()
    assert started.running.exit_code() is None
    os.close(started.streams.stdin)
    assert started.wait() == 3
    assert not started.running.is_alive()


def test_a_job_can_be_adopted_by_another_supervisor(world: RuntimeWorld) -> None:
    started = world.shell("echo ready; read line", wants_stdin=True)
    started.streams.read_until(b"ready")
    adopted = _adopt(world, started)
    assert adopted is not None
    assert adopted.is_alive()
    assert adopted.holder == started.running.holder
    adopted.kill()
    assert select.select([adopted.fileno()], [], [], 30.0)[0]
    assert not adopted.is_alive()
    adopted.close()


def test_a_holder_that_is_gone_or_another_is_not_adopted(world: RuntimeWorld) -> None:
    started = world.shell("echo ready; read line", wants_stdin=True)
    started.streams.read_until(b"ready")
    holder = started.running.holder
    assert not isinstance(holder, ClaimHolder)
    other = (
        replace(holder, container_id="0" * 64)
        if isinstance(holder, ContainerHolder)
        else replace(holder, start_time_ticks=holder.start_time_ticks + 1)
    )
    streams = pipes()
    assert world.runtime.adopt(replace(started.job, holder=other), streams.job_side) is None
    streams.close()
    streams.close_job_side()


def test_a_job_with_a_terminal_has_a_controlling_one_of_the_size_it_is_told(world: RuntimeWorld) -> None:
    # Podman's monitor sets the size some time after the engine has answered, and on a busy machine not each time.
    script = (
        "test -t 0 && test -t 1 && : >/dev/tty && echo ready; read line;"
        " until [ \"$(stty size)\" = '33 77' ]; do :; done; stty size"
    )
    started = world.shell(script, streams=terminal(), wants_tty=True, wants_stdin=True)
    started.streams.read_until(b"ready")
    os.write(started.streams.stdin, b"\n")

    def is_resized() -> bool:
        started.running.resize_terminal(os.terminal_size((77, 33)))
        has_more = bool(select.select([started.streams.stdout], [], [], 0.1)[0])
        return has_more and b"33 77" in started.streams.read_more()

    until(is_resized)
    assert started.wait() == 0


def test_a_slice_is_read_only_except_for_its_usage(world: RuntimeWorld) -> None:
    if world.is_advisory:
        pytest.skip("a preloaded job sees its slice where it lies")
    script = "touch /.pgpu/limit || echo limit kept; echo 1 > /.pgpu/usage && echo usage written; ls -d /.pgpu/simgpu"
    assert world.shell(script).streams.read_to_end() == b"limit kept\nusage written\n/.pgpu/simgpu\n"


def _adopt(world: RuntimeWorld, started: Started) -> RunningJob | None:
    streams = pipes()
    try:
        return world.runtime.adopt(replace(started.job, holder=started.running.holder), streams.job_side)
    finally:
        streams.close()
        streams.close_job_side()
