"""No accepted job and no memory is lost, whichever processes are killed, at whatever time."""

import itertools
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fakes.agent import DIE_AT_COMMIT
from tests.fakes.machine import KILL_ANNOUNCED
from tests.system.engine_worlds import WITHOUT_MAIN_THREAD, World, another, kill, main_thread_has_ended, world
from tests.system.storm_victims import children_of, monitor_of
from tests.waiting import until

from pgpu.engine.leases.recovery import LOST, recover
from pgpu.engine.streams.frames import Hello, encode_hello
from pgpu.engine.unix_sockets import connect
from pgpu.host.process_identity import identify_running, is_alive, read_status
from pgpu.ledger import Ledger
from pgpu.model import Job, JobState, ProcessHolder
from pgpu.structs import replace


@pytest.fixture
def machine() -> Iterator[World]:
    with world() as made:
        yield made


def state_of(pid: int) -> str:
    """Return the letter of a process's state: T for stopped, Z for not reaped."""
    return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]


def kill_job(machine: World, job_id: str) -> None:
    holder = machine.engine.ledger.job(job_id).holder
    assert isinstance(holder, ProcessHolder)
    kill(holder)


def test_a_killed_job_gives_its_memory_to_the_next(machine: World) -> None:
    first, second = machine.submit(gib=6), machine.submit(gib=6)
    machine.until_running(first)
    kill_job(machine, first.id)
    machine.until_running(second)
    assert machine.entry(first).job.exit_code == 137


def test_a_job_killed_before_its_command_was_executed_has_the_code_of_its_signal(machine: World) -> None:
    (machine.root / KILL_ANNOUNCED).touch()
    assert machine.until_state(machine.submit(), JobState.EXITED, JobState.FAILED).exit_code == 137


def test_a_job_killed_together_with_its_agent_frees_its_memory_for_the_next_job(machine: World) -> None:
    first, second = machine.submit(gib=6), machine.submit(gib=6)
    machine.until_running(first)
    machine.until_kept()
    supervisor = machine.until_supervised(first)
    os.kill(supervisor.pid, signal.SIGKILL)
    kill_job(machine, first.id)
    machine.until_running(second)
    ended = machine.until_free(first)
    assert (ended.state, ended.exit_code) == (JobState.EXITED, 137)  # its monitor has recorded it


def test_a_job_continues_after_its_agent_died_and_the_next_agent_detects_its_end(machine: World) -> None:
    first, second = machine.submit(gib=6), machine.submit(gib=6)
    holder = machine.until_running(first).holder
    machine.until_kept()
    dead = machine.kill_supervisor(first)
    until(lambda: machine.entry(first).supervisor not in {dead, None})
    assert machine.entry(first).job.holder == holder
    assert machine.state(first) is JobState.RUNNING
    kill_job(machine, first.id)
    machine.until_running(second)
    assert machine.entry(first).job.exit_code == 137


def test_a_job_with_an_ended_main_thread_runs_on_and_keeps_its_lease(machine: World) -> None:
    job = machine.submit(WITHOUT_MAIN_THREAD)
    holder = machine.until_running(job).holder
    assert isinstance(holder, ProcessHolder)
    until(lambda: main_thread_has_ended(holder.pid))
    dead = machine.kill_supervisor(job)
    assert [found.job.id for found in another(machine).jobs(include_final=False)] == [job.id]
    until(lambda: machine.entry(job).supervisor not in {dead, None})
    assert machine.state(job) is JobState.RUNNING
    another(machine).stop(job.id, grace_seconds=0)
    assert not is_alive(holder)


def test_an_adopted_jobs_output_goes_on_without_a_gap(machine: World) -> None:
    job = machine.submit(("sh", "-c", "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo $i; done; sleep 600"))
    logs = machine.client.logs(job.id, follow=True)
    seen = next(logs)[1]
    machine.kill_supervisor(job)
    expected = b"".join(b"%d\n" % number for number in range(1, 2001))
    while len(seen) < len(expected):
        seen += next(logs)[1]
    assert seen == expected


def test_an_adopted_job_can_be_stopped(machine: World) -> None:
    job = machine.submit()
    machine.until_running(job)
    machine.kill_supervisor(job)
    assert another(machine).stop(job.id, grace_seconds=5).exit_code == 143


def test_the_next_command_recovers_a_job_without_a_supervisor(machine: World) -> None:
    job = machine.submit()
    machine.until_running(job)
    kill(machine.until_supervised(job))
    kill_job(machine, job.id)
    until(lambda: another(machine).jobs(include_final=False) == [])
    until(lambda: another(machine).gpus()[0].granted_bytes == 0)  # the lease is released after the end


def test_a_queue_continues_after_its_agent_died_when_a_job_ends(machine: World) -> None:
    first, second, third = machine.submit(gib=6), machine.submit(gib=6), machine.submit(gib=6)
    machine.until_running(first)
    machine.kill_agent()
    machine.client.stop(first.id, grace_seconds=0)
    started = machine.until_one_of([second, third], JobState.RUNNING)
    assert {machine.state(job) for job in (second, third) if job.id != started.id} == {JobState.WAITING}


def test_a_user_competes_from_its_first_to_its_last_waiting_job_whatever_dies(machine: World) -> None:
    """Else what others have meanwhile would be a lead of a user that waits for nothing, or be lost by one that waits."""

    def competes() -> bool:
        with machine.engine.ledger.view() as view:
            time = view.precedence(machine.engine.settings.gpu_model).time
            return time.contenders == {(machine.client.caller.uid, 0): True}

    machine.until_running(machine.submit(gib=6))
    waits = machine.submit(gib=6)
    until(competes)
    machine.kill_agent()
    machine.client.stop(waits.id, grace_seconds=0)
    until(lambda: not competes())


def test_a_queue_continues_with_the_next_command_after_all_its_processes_died(machine: World) -> None:
    jobs = [machine.submit(gib=6) for _ in range(4)]
    machine.until_running(jobs[0])
    supervisor, agent = machine.until_supervised(jobs[0]), machine.until_kept()
    for process in (agent, supervisor):
        os.kill(process.pid, signal.SIGSTOP)
    for process in (agent, supervisor):
        kill(process)
    kill_job(machine, jobs[0].id)
    another(machine).jobs(include_final=True)
    machine.until_one_of(jobs[1:], JobState.RUNNING)
    assert machine.entry(jobs[0]).job.exit_code == 137
    assert [machine.state(job) for job in jobs[1:]].count(JobState.WAITING) == 2


@pytest.mark.parametrize("point", ["before-announce", "after-announce"])
def test_a_job_is_started_exactly_once_if_its_agent_dies_during_the_start(machine: World, point: str) -> None:
    (machine.root / f"die-{point}").touch()
    job = machine.submit(("sh", "-c", f"echo once >> {machine.root}/starts; sleep 600"))
    until((machine.root / f"died-{point}-{job.id}").exists)
    dead = machine.entry(job).supervisor
    assert dead is not None
    until(lambda: not is_alive(dead))
    recover(machine.engine)
    starts = machine.root / "starts"
    # After the announcement the ledger has its holder, which is gone; the record shows that it never ran.
    until(starts.exists)
    machine.until_running(job)
    assert starts.read_text() == "once\n"


def test_a_job_accepted_by_a_command_that_was_killed_at_once_is_run(machine: World) -> None:
    code = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        "from tests.fakes.machine import make_client, make_engine; from pgpu.model import JobSpec, Request;"
        "make_client(make_engine(Path(sys.argv[2]))).submit(JobSpec(('sleep', '600'), 'process',"
        "working_directory='/'), Request(1 << 30), wait_timeout_seconds=None); os.kill(os.getpid(), signal.SIGKILL)"
    )
    repository = str(Path(__file__).parents[2])
    command = subprocess.run([sys.executable, "-c", code, repository, str(machine.root)], check=False, cwd=repository)
    assert command.returncode == -signal.SIGKILL
    (report,) = machine.client.jobs(include_final=True)
    machine.until_running(report.job)


def test_an_agent_inherits_no_descriptor_and_no_terminal_of_the_command_that_started_it(machine: World) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    job = machine.submit()
    os.close(writer)
    supervisor = machine.until_supervised(job)
    assert os.getsid(supervisor.pid) != os.getsid(0)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b""


def test_after_a_power_loss_running_jobs_are_lost_and_waiting_ones_go_on(machine: World) -> None:
    running, waiting = machine.submit(gib=6), machine.submit(gib=6)
    holder = machine.until_running(running).holder
    processes = [machine.until_supervised(running), machine.until_kept()]
    assert isinstance(holder, ProcessHolder)
    for process in (*processes, holder):
        os.kill(process.pid, signal.SIGSTOP)
    for process in (*processes, holder):
        kill(process)
    with machine.engine.ledger.decision() as decision:
        for entry in decision.live():
            before = replace(processes[0], boot_id="before", pid=os.getpid())
            if entry.job.holder is not None:
                decision.put(replace(entry, supervisor=before, job=replace(entry.job, holder=before)))
    shutil.rmtree(machine.root / "run")
    shutil.rmtree(machine.root / "slices")
    another(machine).jobs(include_final=False)
    assert machine.until_free(running).error == LOST
    machine.until_running(waiting)


def test_a_long_queue_is_served_in_order(machine: World) -> None:
    first = machine.submit(gib=10)
    starts = machine.root / "starts"
    jobs = [machine.submit(("sh", "-c", f"echo {number} >> {starts}"), gib=10) for number in range(30)]
    machine.client.stop(first.id, grace_seconds=0)
    for job in jobs:
        machine.until_free(job)
    assert starts.read_text() == "".join(f"{number}\n" for number in range(30))


def test_random_kills_of_agents_and_jobs_lose_nothing_and_never_grant_too_much(machine: World) -> None:
    jobs = [machine.submit(("sleep", "0.2"), gib=3) for _ in range(12)]
    stop = threading.Event()
    most_held: list[int] = []

    def watch() -> None:
        while not stop.wait(0.01):
            entries = machine.engine.ledger.entries(include_final=False)
            most_held.append(sum(entry.is_lease_held for entry in entries))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    for number, job in enumerate(jobs):
        supervisor = machine.entry(job).supervisor
        if number % 2 and supervisor is not None:
            kill(supervisor)
    until(lambda: not machine.client.jobs(include_final=False) and not any(machine.entry(job).is_live for job in jobs))
    stop.set()
    thread.join()
    assert max(most_held) <= 3
    assert {machine.entry(job).job.state for job in jobs} <= {JobState.EXITED, JobState.FAILED}
    assert machine.client.gpus()[0].granted_bytes == 0


def test_an_exception_in_a_policy_of_a_job_ends_neither_the_job_nor_its_supervision(machine: World) -> None:
    command = ("sh", "-c", f"while [ ! -e {machine.root}/go ]; do sleep 0.01; done; echo out; exit 3")
    job = machine.until_running(machine.submit(command, oversubscribes=True))
    agent = machine.until_supervised(job)
    (machine.root / "has-bug").touch()
    until(lambda: "ZeroDivisionError" in machine.words_of(job))
    (machine.root / "go").touch()
    ended, stdout, _ = machine.attach(job)
    assert (ended.exit_code, ended.error, stdout) == (3, None, b"out\n")
    assert is_alive(agent)


def test_an_end_that_cannot_be_written_yet_is_written_later(machine: World) -> None:
    job = machine.submit(("sh", "-c", f"while [ ! -e {machine.root}/go ]; do sleep 0.01; done; exit 3"))
    machine.until_running(job)
    blocker = sqlite3.connect(machine.engine.ledger.path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    (machine.root / "go").touch()
    holder = machine.engine.ledger.job(job.id).holder
    assert isinstance(holder, ProcessHolder)
    until(lambda: not Path(f"/proc/{holder.pid}").exists())
    assert machine.state(job) is JobState.RUNNING
    blocker.execute("ROLLBACK")
    blocker.close()
    assert machine.until_free(job).exit_code == 3


def test_a_ledger_that_is_full_for_a_while_loses_no_waiting_job(machine: World) -> None:
    """The disk is filled by proxy: a trigger makes every write fail as a full disk would."""
    first, second = machine.submit(gib=6), machine.submit(gib=6)
    machine.until_running(first)
    damage = sqlite3.connect(machine.engine.ledger.path, isolation_level=None, timeout=10)
    damage.execute("CREATE TRIGGER full BEFORE UPDATE ON jobs BEGIN SELECT RAISE(ABORT, 'full'); END")
    kill_job(machine, first.id)
    until(lambda: "full" in machine.words_of(first))
    machine.until_kept()
    assert machine.state(second) is JobState.WAITING
    damage.execute("DROP TRIGGER full")
    damage.close()
    machine.until_running(second)
    assert machine.until_free(first).exit_code == 137


def test_a_job_from_the_queue_has_the_umask_and_the_limits_of_its_submitter(machine: World) -> None:
    holder = machine.submit(gib=10)
    machine.until_running(holder)
    with _umask_and_open_files(0o027, 777):
        job = machine.submit(("sh", "-c", "umask; ulimit -Sn"), gib=10)
    machine.client.stop(holder.id, grace_seconds=1)
    assert machine.attach(job)[1] == b"0027\n777\n"


def test_a_job_gets_a_sigterm_that_was_blocked_where_its_agent_was_started(machine: World) -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        job = machine.submit()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    holder = machine.until_running(job).holder
    assert isinstance(holder, ProcessHolder)
    os.kill(holder.pid, signal.SIGTERM)
    assert machine.until_state(job, JobState.EXITED).exit_code == 128 + signal.SIGTERM


@contextmanager
def _umask_and_open_files(umask: int, most_open_files: int) -> Iterator[None]:
    """Give this process an umask and limits for the block."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    umask = os.umask(umask)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_open_files, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.umask(umask)


def test_live_files_that_an_agent_left_after_a_release_are_removed(machine: World) -> None:
    running = machine.until_running(machine.submit())
    left, kept = machine.engine.places("0" * 12), machine.engine.places(running.id)
    left.make()
    recover(machine.engine)
    assert not left.live.exists()
    assert kept.live.exists()


def test_an_agent_ends_with_its_job_once_its_state_directory_is_removed_and_creates_no_file(machine: World) -> None:
    job = machine.submit(gib=6)
    holder = machine.until_running(job).holder
    supervisor = machine.until_supervised(job)
    assert isinstance(holder, ProcessHolder)
    with (machine.root / "state" / "agent.log").open() as words:
        shutil.rmtree(machine.root / "state")
        until(lambda: not is_alive(supervisor))
        assert "is gone" in words.read()
    assert not is_alive(holder)
    assert not (machine.root / "state").exists()


def test_a_job_ends_once_its_agent_finds_another_ledger_in_place_of_its_own(machine: World) -> None:
    job = machine.submit(gib=6)
    holder = machine.until_running(job).holder
    assert isinstance(holder, ProcessHolder)
    other = Ledger(machine.root / "other" / "ledger.db")
    other.facts.put("key", "value")
    other.close()
    for path in (machine.root / "state").glob("ledger.db-*"):
        path.unlink()
    other.path.rename(machine.root / "state" / "ledger.db")
    until(lambda: not is_alive(holder))


def output(machine: World, job: Job) -> bytes:
    return b"".join(data for _, data in machine.client.logs(job.id, follow=False))


LINES = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo $i; done"


def test_a_killed_agent_costs_neither_output_nor_exit_code(machine: World) -> None:
    job = machine.submit(("sh", "-c", f"while [ ! -e {machine.root}/go ]; do sleep 0.01; done; {LINES}; exit 3"))
    machine.until_running(job)
    supervisor = machine.until_supervised(job)
    os.kill(supervisor.pid, signal.SIGKILL)
    (machine.root / "go").touch()
    until(lambda: another(machine).jobs(include_final=False) == [])  # any command recovers jobs, and calls an agent
    ended = machine.until_free(job)
    assert (ended.state, ended.exit_code) == (JobState.EXITED, 3)
    assert output(machine, job) == b"".join(b"%d\n" % number for number in range(1, 3001))


def held_at_its_first_line(machine: World) -> Job:
    """Start a job that has written `0` and waits to write 3,000 more lines and exit with 3."""
    job = machine.submit(
        ("sh", "-c", f"echo 0; while [ ! -e {machine.root}/go ]; do sleep 0.01; done; {LINES}; exit 3")
    )
    machine.until_running(job)
    until(lambda: output(machine, job) == b"0\n")
    return job


def release_and_expect_all(machine: World, job: Job) -> None:
    """Let it continue; the last output of a monitor that replaced another may follow the end in the ledger."""
    (machine.root / "go").touch()
    ended = machine.until_free(job)
    assert (ended.state, ended.exit_code) == (JobState.EXITED, 3)
    until(lambda: output(machine, job) == b"".join(b"%d\n" % number for number in range(3001)))


def test_a_killed_monitor_costs_neither_output_nor_exit_code(machine: World) -> None:
    job = held_at_its_first_line(machine)
    (record,) = machine.engine.places(job.id).records()
    fields = dict(line.split("=", 1) for line in record.read_text().rstrip("\0").splitlines()[1:])
    os.kill(int(fields["monitor"]), signal.SIGKILL)
    release_and_expect_all(machine, job)


def test_a_monitor_that_replaced_a_killed_one_is_replaced_too(machine: World) -> None:
    job = held_at_its_first_line(machine)
    places = machine.engine.places(job.id)
    agent = machine.until_supervised(job)
    killed: set[int] = set()
    for _ in range(3):
        (monitor,) = until(lambda: set(children_of(agent.pid)) - killed)
        with connect(places.attach_socket) as client:  # it was started
            client.sendall(encode_hello(Hello(0, holds_back=False, owns_stdin=False)))
            assert client.recv(1)
        os.kill(monitor, signal.SIGKILL)
        killed.add(monitor)
    release_and_expect_all(machine, job)


def test_a_job_whose_monitor_and_then_agent_were_killed_ends_with_its_output_and_exit_code(machine: World) -> None:
    job = held_at_its_first_line(machine)
    places = machine.engine.places(job.id)
    monitor = monitor_of(places.records()[0])
    assert monitor is not None
    os.kill(monitor, signal.SIGKILL)
    agent = machine.until_supervised(job)
    until(lambda: set(children_of(agent.pid)) - {monitor})  # it was replaced
    kill(agent)
    until(lambda: machine.entry(job).supervisor not in {agent, None})
    release_and_expect_all(machine, job)


def _kill_both_while_the_guard_is_stopped(machine: World, job: Job) -> ProcessHolder:
    """Kill a job's monitor and its agent, of which the guard starts the next one once it goes on; return the guard."""
    agent = machine.until_supervised(job)
    (monitor,) = until(lambda: children_of(agent.pid))
    status = read_status(agent.pid)
    assert status is not None
    guard = identify_running(status.parent_pid)
    assert guard is not None
    os.kill(guard.pid, signal.SIGSTOP)
    until(lambda: state_of(guard.pid) == "T")
    for pid in (agent.pid, monitor):
        os.kill(pid, signal.SIGKILL)
    until(lambda: state_of(agent.pid) == "Z" == state_of(monitor))
    return guard


def test_what_is_in_the_pipes_survives_agent_and_monitor_killed_together(machine: World) -> None:
    job = held_at_its_first_line(machine)
    holder = machine.entry(job).job.holder
    assert isinstance(holder, ProcessHolder)
    guard = _kill_both_while_the_guard_is_stopped(machine, job)
    (machine.root / "go").touch()
    until(lambda: state_of(holder.pid) == "Z")  # no process but the guard has its pipes open
    os.kill(guard.pid, signal.SIGCONT)
    release_and_expect_all(machine, job)


def test_a_terminal_survives_agent_and_monitor_killed_together(machine: World) -> None:
    script = f"echo 0; while [ ! -e {machine.root}/go ]; do sleep 0.01; done; echo 1; read line; echo $line; exit 3"
    job = machine.submit(("sh", "-c", script), wants_tty=True, wants_stdin=True)
    machine.until_running(job)
    until(lambda: output(machine, job) == b"0\r\n")
    for _ in range(2):  # the second time, the agent has it from the guard
        agent = machine.until_supervised(job)
        guard = _kill_both_while_the_guard_is_stopped(machine, job)
        os.kill(guard.pid, signal.SIGCONT)
        machine.until_supervised_by_another(job, agent)
    (machine.root / "go").touch()
    until(lambda: output(machine, job) == b"0\r\n1\r\n")  # a terminal shows what is typed at once
    ended, stdout, _ = machine.attach(job, b"typed\n")
    assert (ended.exit_code, stdout) == (3, b"0\r\n1\r\ntyped\r\ntyped\r\n")


@pytest.mark.soak
@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_agent_killed_at_any_commit_of_a_job_s_life_costs_neither_output_nor_exit_code(moment: str) -> None:
    for number in itertools.count(1):
        with world() as machine:
            order = machine.root / DIE_AT_COMMIT
            order.write_text(f"{moment} {number}")
            job = machine.submit(("sh", "-c", f"echo {number} >> {machine.root}/ran; echo out; exit 3"))
            ended, stdout, _ = machine.attach(job)
            assert (number, ended.exit_code, stdout) == (number, 3, b"out\n")
            machine.until_free(job)
            assert (machine.root / "ran").read_text() == f"{number}\n"
            if order.exists():  # the job has ended before so many commits
                assert number > 3
                return
