"""The agent of a queue: there is exactly one, and another one replaces it after its end."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.agent_storm import CAPACITY_GIB, Storm
from tests.system.engine_worlds import World, another, world
from tests.system.lock_storm import LockStorm
from tests.waiting import until

from pgpu.engine.agent.agents import TAKE_LOCK
from pgpu.engine.settings import agent_paths
from pgpu.host.process_identity import is_alive, read_status
from pgpu.libraries import MONITOR, library_path
from pgpu.model import JobState, ProcessHolder
from pgpu.units import GIB


@pytest.fixture
def machine() -> Iterator[World]:
    with world() as made:
        yield made


def agents(machine: World) -> list[int]:
    """Return the processes that are an agent of this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words[0] != str(library_path(MONITOR)).encode() and str(machine.root).encode() in words:
            found.append(int(path.parent.name))
    return found


def fill(machine: World) -> None:
    """Let outsiders hold all memory, so that submitted jobs wait."""
    machine.gpus.set_outsiders("GPU-0", 10 * GIB)


def test_of_many_clients_that_find_no_agent_one_starts_it(machine: World) -> None:
    fill(machine)
    clients = [another(machine) for _ in range(8)]
    threads = [threading.Thread(target=lambda c=client: c.jobs(include_final=False)) for client in clients]
    job = machine.submit(("true",), gib=1)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    machine.until_looked_at(job)
    assert len(agents(machine)) == 1


def test_a_second_agent_exits_at_once_and_the_first_continues(machine: World) -> None:
    fill(machine)
    job = machine.submit(("true",), gib=1)
    agent = machine.until_kept()
    script = Path(__file__).parents[1] / "fakes" / "agent.py"
    second = subprocess.run(
        [sys.executable, script, str(machine.root), "fake", str(TAKE_LOCK)], check=False, timeout=60
    )
    assert second.returncode == 0
    assert machine.until_kept() == agent
    machine.gpus.set_outsiders("GPU-0", 0)
    assert machine.until_state(job, JobState.EXITED).exit_code == 0


def test_an_agent_of_another_version_is_replaced(machine: World) -> None:
    fill(machine)
    job = machine.submit(("true",), gib=1)
    old = machine.until_kept()
    lock = agent_paths(machine.engine.settings, "fake").lock
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "version": 0}))
    machine.submit(("true",), gib=1)
    until(lambda: not is_alive(old))
    until(lambda: machine.engine.agents.process("fake") != old)
    machine.gpus.set_outsiders("GPU-0", 0)
    machine.until_state(job, JobState.EXITED)


def test_the_guard_of_a_killed_agent_starts_another_one_without_a_client(machine: World) -> None:
    fill(machine)
    machine.submit(("true",), gib=1)
    old = machine.kill_agent()
    until(lambda: machine.engine.agents.process("fake") != old)


def test_an_agent_with_a_killed_guard_becomes_the_guard_of_another_agent_that_starts_jobs(machine: World) -> None:
    fill(machine)
    job = machine.submit(("true",), gib=1)
    agent = machine.until_kept()
    status = read_status(agent.pid)
    assert status is not None
    os.kill(status.parent_pid, signal.SIGKILL)
    until(lambda: machine.engine.agents.process("fake") != agent)
    # The agent became the guard of another one.
    assert Path(f"/proc/{agent.pid}/exe").readlink().name == MONITOR
    machine.gpus.set_outsiders("GPU-0", 0)
    assert machine.until_state(job, JobState.EXITED).exit_code == 0


def test_a_job_that_runs_while_its_agent_becomes_a_guard_ends_under_the_next_agent(machine: World) -> None:
    job = machine.submit(("sh", "-c", f"while [ ! -e {machine.root}/go ]; do sleep 0.01; done; echo out; exit 3"))
    machine.until_running(job)
    old = machine.until_kept()
    status = read_status(old.pid)
    assert status is not None
    os.kill(status.parent_pid, signal.SIGKILL)
    until(lambda: machine.entry(job).supervisor != old)
    (machine.root / "go").touch()
    ended, stdout, _ = machine.attach(job)
    assert (ended.exit_code, stdout) == (3, b"out\n")


def test_a_stopped_agent_is_replaced_and_costs_no_job_output_or_exit_code(machine: World) -> None:
    script = f"echo begin; while [ ! -e {machine.root}/go ]; do sleep 0.01; done; echo end; exit 3"
    jobs = [machine.submit(("sh", "-c", script), gib=4) for _ in range(4)]
    machine.until_running(jobs[1])
    machine.until_looked_at(jobs[3])
    stopped = machine.until_kept()
    os.kill(stopped.pid, signal.SIGSTOP)
    (machine.root / "go").touch()  # the first two end while no agent looks
    until(lambda: not is_alive(stopped))
    for job in jobs:
        ended, stdout, _ = machine.attach(job)
        assert (ended.exit_code, stdout) == (3, b"begin\nend\n")
    assert [machine.entry(job).is_live for job in jobs] == [False] * 4


def test_an_agent_whose_main_loop_is_blocked_is_replaced_under_its_jobs(machine: World) -> None:
    job = machine.submit(("sh", "-c", f"while [ ! -e {machine.root}/go ]; do sleep 0.01; done; echo out; exit 3"))
    machine.until_running(job)
    waiting = machine.submit(("true",), gib=10)
    machine.until_looked_at(waiting)
    blocked = machine.until_kept()
    outsiders = machine.root / "outsiders-GPU-0"
    os.mkfifo(outsiders)  # a GPU that does not answer: opening it waits for a writer
    until(lambda: not is_alive(blocked))
    outsiders.unlink()
    (machine.root / "go").touch()
    ended, stdout, _ = machine.attach(job)
    assert (ended.exit_code, stdout) == (3, b"out\n")
    assert machine.attach(waiting)[0].exit_code == 0


def test_an_agent_of_code_that_was_upgraded_in_place_is_replaced_under_its_jobs(machine: World) -> None:
    job = machine.submit(("sh", "-c", f"while [ ! -e {machine.root}/go ]; do sleep 0.01; done; echo out; exit 3"))
    machine.until_running(job)
    old = machine.until_kept()
    lock = agent_paths(machine.engine.settings, "fake").lock
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "package_time_ns": 0}))
    machine.client.stop(machine.submit(("true",), gib=1).id, grace_seconds=0)
    until(lambda: not is_alive(old))
    until(lambda: machine.entry(job).supervisor != old)
    (machine.root / "go").touch()
    ended, stdout, _ = machine.attach(job)
    assert (ended.exit_code, stdout) == (3, b"out\n")


def test_a_waiting_client_finds_the_next_agent_and_gets_the_grant(machine: World) -> None:
    fill(machine)
    job = machine.submit(("echo", "hi"), gib=1)
    machine.until_looked_at(job)
    machine.kill_agent()
    assert machine.client.still_waits(job.id, timeout_seconds=0.0) is not None
    machine.gpus.set_outsiders("GPU-0", 0)
    assert machine.attach(job)[1] == b"hi\n"


def test_a_wait_that_expires_is_ended_by_the_next_agent(machine: World) -> None:
    fill(machine)
    job = machine.submit(("true",), gib=1, timeout=6)
    # On a slow machine it may expire before the agent's first round.
    until(lambda: machine.client.still_waits(job.id, timeout_seconds=0.1) or machine.state(job) is JobState.CANCELLED)
    machine.kill_agent()
    assert machine.until_state(job, JobState.CANCELLED).wait_timed_out


def test_an_agent_ends_once_its_directory_is_removed(machine: World) -> None:
    fill(machine)
    machine.submit(("true",), gib=1)
    agent = machine.until_kept()
    agent_paths(machine.engine.settings, "fake").lock.unlink()
    until(lambda: not is_alive(agent))


def test_an_agent_ends_once_its_state_directory_is_removed_and_creates_no_file(machine: World) -> None:
    fill(machine)
    machine.submit(("true",), gib=1)
    agent = machine.until_kept()
    with (machine.root / "state" / "agent.log").open() as words:
        shutil.rmtree(machine.root / "state")
        until(lambda: not is_alive(agent))
        assert "is gone" in words.read()
    assert not (machine.root / "state").exists()


@pytest.mark.soak
def test_a_storm_of_kills_loses_no_job_starts_none_twice_and_kills_none() -> None:
    with world((CAPACITY_GIB,)) as machine:
        Storm(machine, random.Random(7)).rage(kills=16)


@pytest.mark.soak
def test_while_agents_and_guards_are_killed_another_ledger_never_gets_the_gpu() -> None:
    with world((CAPACITY_GIB,)) as machine:
        storm = LockStorm(machine, random.Random(7))
        storm.rage(kills=10)
        assert storm.refused > 10


def test_jobs_that_need_nothing_have_no_thread_and_the_main_one_measures_them(machine: World) -> None:
    jobs = [machine.submit(("sleep", "600"), gib=1) for _ in range(5)]
    for job in jobs:
        machine.until_running(job)
    keeper = machine.until_supervised(jobs[0])

    def waits() -> int:
        """Return how often the main thread has waited."""
        text = Path(f"/proc/{keeper.pid}/status").read_text()
        return int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0])

    def has_measured_alone_three_times() -> bool:
        before = waits()
        until(lambda: waits() >= before + 3)
        return has_no_thread_of_a_job(keeper)

    until(has_measured_alone_three_times)
    machine.engine.ask_to_stop(jobs[0].id, 0.0)
    machine.until_free(jobs[0])
    assert all(machine.until_running(job) for job in jobs[1:])
    assert machine.until_kept() == keeper


def test_a_job_without_a_thread_is_taken_over_by_the_next_agent(machine: World) -> None:
    job = machine.submit(("sleep", "600"), gib=1)
    machine.until_running(job)
    until(lambda: has_no_thread_of_a_job(machine.until_supervised(job)))
    old = machine.kill_agent()
    machine.until_supervised_by_another(job, old)
    until(lambda: has_no_thread_of_a_job(machine.until_supervised(job)))
    machine.engine.ask_to_stop(job.id, 0.0)
    machine.until_free(job)


def has_no_thread_of_a_job(process: ProcessHolder) -> bool:
    """Whether only the main thread and the spare one are left."""
    return len(os.listdir(f"/proc/{process.pid}/task")) == 2  # noqa: PTH208 - names, not paths
