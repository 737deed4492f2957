"""Process jobs under other users' accounts, as a server of root starts them. The users are numbers that no one has."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.runtime_worlds import RuntimeWorld, opened, terminal

from pgpu.errors import CommandNotExecutableError, CommandNotFoundError, RequestError, RuntimeUnavailableError
from pgpu.model import Account, JobSpec, ProcessHolder
from pgpu.runtimes.process_runtime import ProcessRuntime, can_make_private_views
from pgpu.structs import replace

ALICE = Account(
    61001, 61001, (61050, 61051), 0o027, (("RLIMIT_NOFILE", 123, 456),), (("PATH", "/usr/bin:/bin"), ("WHO", "alice"))
)
BOB = replace(ALICE, uid=61002, gid=61002, groups=())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[RuntimeWorld]:
    if os.geteuid() != 0:
        pytest.skip("only root can start jobs under other accounts")
    if not can_make_private_views():
        pytest.skip("no private view can be made here")
    with opened(RuntimeWorld(ProcessRuntime(), tmp_path)) as made:
        yield made


def output(world: RuntimeWorld, script: str, account: Account = ALICE, **spec: object) -> list[str]:
    started = world.shell(script, account=account, **spec)
    text = started.streams.read_to_end().decode()
    assert started.wait() == 0, text + started.streams.read_to_end(started.streams.stderr).decode()
    return text.splitlines()


def fields(lines: list[str]) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_a_job_is_its_askers_user_with_the_askers_groups_alone(world: RuntimeWorld) -> None:
    status = fields(output(world, "cat /proc/self/status"))
    assert status["Uid"].split() == ["61001"] * 4
    assert status["Gid"].split() == ["61001"] * 4
    assert status["Groups"].split() == ["61050", "61051"]


def test_a_job_keeps_no_capability_and_gains_none_from_a_file(world: RuntimeWorld) -> None:
    status = fields(output(world, "cat /proc/self/status"))
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"


def test_a_job_has_its_askers_environment_umask_and_limits_and_none_of_the_servers(
    world: RuntimeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVERS_SECRET", "hidden")
    lines = output(world, "umask; ulimit -Sn; ulimit -Hn; env", environment=(("MORE", "said"),))
    assert lines[:3] == ["0027", "123", "456"]
    assert {"WHO=alice", "MORE=said"} <= set(lines)
    assert not [line for line in lines if "SERVERS_SECRET" in line]


def test_a_job_inherits_no_descriptor_but_its_standard_streams(world: RuntimeWorld) -> None:
    with open("/etc/shadow", "rb") as held:  # noqa: PTH123 - a descriptor is what it is about
        os.set_inheritable(held.fileno(), True)
        assert output(world, "exec ls /proc/self/fd") == ["0", "1", "2", "3"]  # the last is of `ls` itself


def test_a_jobs_slice_is_read_by_it_and_its_usage_file_written(world: RuntimeWorld) -> None:
    assert output(world, "cat /.pgpu/limit; true <>/.pgpu/usage && echo written; true >/.pgpu/limit || echo kept") == [
        "written",
        "kept",
    ]


def test_a_usage_file_is_its_users_alone(world: RuntimeWorld) -> None:
    job = world.job(["true"])
    made = world.delivery(job)
    started = world.start(["stat", "-c", "%u %g %a", "/.pgpu/usage"], account=ALICE)
    assert started.streams.read_to_end() == b"61001 61001 600\n"
    assert stat.S_IMODE(made.usage_path.stat().st_mode) == 0o666


def test_a_job_opens_its_own_standard_streams_again(world: RuntimeWorld) -> None:
    assert output(world, "echo again >/dev/stdout && true </dev/stdin && echo read") == ["again", "read"]


def test_a_job_owns_its_terminal(world: RuntimeWorld) -> None:
    streams = terminal()
    started = world.shell(
        "echo open >$(tty) && echo at /dev/tty >/dev/tty", account=ALICE, streams=streams, wants_tty=True
    )
    assert b"at /dev/tty" in started.streams.read_until(b"at /dev/tty")
    assert started.wait() == 0


def test_a_directory_is_entered_by_its_user_and_not_by_root(world: RuntimeWorld, tmp_path: Path) -> None:
    closed = tmp_path / "closed" / "open"
    closed.mkdir(parents=True)
    closed.parent.chmod(0o700)
    with pytest.raises(RequestError, match="Permission denied"):
        world.shell("pwd", account=ALICE, working_directory=str(closed))


def test_a_command_is_looked_up_by_its_user_and_not_by_root(world: RuntimeWorld, tmp_path: Path) -> None:
    hidden = tmp_path / "bin"
    hidden.mkdir(mode=0o700)
    (hidden / "tool").write_text("#!/bin/sh\n")
    (hidden / "tool").chmod(0o755)
    in_path = replace(ALICE, environment=(("PATH", str(hidden)),))
    with pytest.raises(CommandNotFoundError):
        world.start(["tool"], account=in_path)
    with pytest.raises(CommandNotExecutableError):
        world.start([str(hidden / "tool")], account=ALICE)


def test_a_set_user_id_program_gains_a_job_nothing(world: RuntimeWorld) -> None:
    shell = Path("/var/tmp") / f"pgpu-test-{os.getpid()}"
    shell.write_bytes(Path("/usr/bin/id").read_bytes())
    try:
        shell.chmod(0o4755)
        assert output(world, f"{shell} -u") == ["61001"]
    finally:
        shell.unlink()


@pytest.mark.parametrize("attempt", ["cat /etc/shadow", "umount /.pgpu", "ls /proc/1/root/", "cat /proc/1/environ"])
def test_what_only_root_may_a_job_may_not(world: RuntimeWorld, attempt: str) -> None:
    started = world.shell(attempt, account=ALICE)
    assert started.wait() != 0


def test_another_users_job_tells_neither_its_environment_nor_its_slice(world: RuntimeWorld) -> None:
    secret = replace(ALICE, environment=(*ALICE.environment, ("SECRET", "of alice")))
    alice = world.shell("echo up; sleep 600", account=secret)
    alice.streams.read_until(b"up")
    assert isinstance(alice.running.holder, ProcessHolder)
    pid = alice.running.holder.pid
    for path in ("environ", "root/.pgpu/usage", "root/.pgpu/limit", "fd/1", "mem", "cwd/"):
        assert world.shell(f"cat /proc/{pid}/{path} >/dev/null", account=BOB).wait() != 0, path
    assert world.shell(f"kill {pid}", account=BOB).wait() != 0
    assert alice.running.is_alive()


def test_a_job_of_root_stays_root_in_full(world: RuntimeWorld) -> None:
    root = Account(0, 0, (), 0o022, (), ALICE.environment)
    status = fields(output(world, "cat /proc/self/status", account=root))
    assert status["Uid"].split() == ["0"] * 4
    assert int(status["CapEff"], 16) != 0


def test_nobody_but_root_starts_jobs_of_others_and_none_without_a_private_view() -> None:
    without_views = ProcessRuntime(can_make_views=lambda: False)
    with pytest.raises(RuntimeUnavailableError):
        without_views.check(JobSpec(command=("true",), runtime="process"), replace(ALICE, uid=os.geteuid() + 61001))


def test_whether_a_directory_is_there_is_not_told_before_its_user_looks(world: RuntimeWorld, tmp_path: Path) -> None:
    for name in (tmp_path, tmp_path / "none"):
        world.runtime.check(JobSpec(command=("true",), runtime="process", working_directory=str(name)), ALICE)
