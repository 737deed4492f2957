"""Jobs of attached commands: the command starts the monitor, so the job keeps what the kernel passes from parent to child."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forked_commands import PGPU
from tests.system.conftest import Place
from tests.waiting import DEADLINE_SECONDS, until

from pgpu.engine.agent.monitor_offers import MonitorOffers
from pgpu.engine.event_loop import EventLoop
from pgpu.engine.leases.recovery import LOST
from pgpu.host.process_identity import identify_running, myself, reaped_status
from pgpu.model import ProcessHolder
from pgpu.runtimes.job_monitor import OfferedMonitor, start_idle_monitor

JOB = "0123456789ab"
SURROUNDINGS = "nice; grep Cpus_allowed_list /proc/self/status; readlink /proc/self/ns/uts"


@pytest.fixture
def place_with_agent(place: Place) -> Place:
    """A place whose agent was started by a command with this process's own niceness."""
    assert place.run("run", "--memory", "1GiB", "--", "true").returncode == 0
    return place


def start(place: Place, *words: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start `pgpu run` after other words, such as `nice -n 5`."""
    process = subprocess.Popen(
        [*before, PGPU, "run", *words],
        env=place.environment,
        cwd=place.path,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    place.started.append(process)
    return process


def shown_by(*before: str) -> str:
    return subprocess.run([*before, "sh", "-c", SURROUNDINGS], capture_output=True, text=True, check=True).stdout


def parent_of(pid: int) -> int:
    """Return the PID of a process's parent."""
    words = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return int(words[1])


def running(place: Place, name: str) -> tuple[int, int]:
    """Wait until a job runs; return the PIDs of its main process and its monitor."""
    until(lambda: (place.job(name) or {}).get("state") == "running")
    record = next((Path(place.environment["PGPU_STATE_DIR"]) / "spool").glob("started-*"))
    pid = int(record.read_text("ascii").split("pid=")[1].split()[0])
    return pid, parent_of(pid)


CALLERS: list[tuple[str, ...]] = [("nice", "-n", "7", "taskset", "-c", "0")]
if os.geteuid() == 0:
    CALLERS.append(("unshare", "--uts", "nice", "-n", "3"))


@pytest.mark.parametrize("before", CALLERS, ids=lambda words: words[0])
def test_a_job_keeps_the_niceness_affinity_and_namespaces_of_its_command(
    place_with_agent: Place, before: tuple[str, ...]
) -> None:
    done = start(place_with_agent, "--memory", "1GiB", "--", "sh", "-c", SURROUNDINGS, before=before)
    stdout, stderr = done.communicate(timeout=DEADLINE_SECONDS)
    assert done.returncode == 0, stderr
    shown = shown_by(*before).splitlines()
    assert stdout.splitlines()[:2] == shown[:2]
    is_own_namespace = "unshare" in before
    assert (stdout.splitlines()[2] != shown_by().splitlines()[2]) == is_own_namespace


def test_a_job_that_waited_keeps_the_niceness_of_its_command(place_with_agent: Place) -> None:
    place = place_with_agent
    place.detach("holder", "20GiB", ["sleep", "600"])
    done = start(place, "--memory", "20GiB", "--name", "late", "--", "nice", before=("nice", "-n", "7"))
    until(lambda: (place.job("late") or {}).get("state") == "waiting")
    place.run("stop", "--time", "0", "holder")
    assert done.communicate(timeout=DEADLINE_SECONDS)[0] == "7\n"


def test_the_first_command_of_a_queue_starts_its_job_too(place: Place) -> None:
    asker = start(place, "--memory", "1GiB", "--name", "first", "--", "sleep", "600")
    _, monitor = running(place, "first")
    assert parent_of(monitor) == asker.pid


def test_another_agent_is_offered_another_monitor(place_with_agent: Place) -> None:
    place = place_with_agent
    place.detach("holder", "20GiB", ["sleep", "600"])
    done = start(place, "--memory", "20GiB", "--name", "late", "--", "nice", before=("nice", "-n", "7"))
    until(lambda: (place.job("late") or {}).get("state") == "waiting")
    os.kill(agent_of(place), signal.SIGKILL)
    place.run("stop", "--time", "0", "holder")
    assert done.communicate(timeout=DEADLINE_SECONDS)[0] == "7\n"


def agent_of(place: Place) -> int:
    """Return the PID of the agent."""
    [lock] = [path for path in place.path.rglob("*.lock") if "process" in path.read_text("utf-8", errors="replace")]
    return int(json.loads(lock.read_text("utf-8"))["process"]["pid"])


def test_a_job_outlives_its_killed_command_and_its_code_is_kept(place_with_agent: Place) -> None:
    place = place_with_agent
    script = f"while [ ! -e {place.path}/go ]; do sleep 0.01; done; echo late; exit 5"
    asker = start(place, "--memory", "1GiB", "--name", "heir", "--", "sh", "-c", script)
    _, monitor = running(place, "heir")
    assert parent_of(monitor) == asker.pid
    assert os.getsid(monitor) == monitor
    asker.kill()
    asker.wait()
    (place.path / "go").touch()
    until(lambda: place.job("heir")["state"] == "exited")
    assert place.job("heir")["exit_code"] == 5
    assert place.run("logs", "heir").stdout == "late\n"


def keeps_codes() -> bool:
    """Whether the kernel keeps the exit status of a reaped process for its pidfds: Linux 6.15."""
    pid = os.posix_spawn("/bin/true", ["true"], {})
    pidfd = os.pidfd_open(pid)
    try:
        os.waitpid(pid, 0)
        return reaped_status(pidfd) is not None
    finally:
        os.close(pidfd)


def test_after_the_kill_of_its_monitor_a_job_s_code_is_what_the_kernel_kept(place_with_agent: Place) -> None:
    place = place_with_agent
    script = f"while [ ! -e {place.path}/go ]; do sleep 0.01; done; echo late; exit 5"
    asker = start(place, "--memory", "1GiB", "--name", "orphan", "--", "sh", "-c", script)
    main, monitor = running(place, "orphan")
    os.kill(monitor, signal.SIGKILL)
    until(lambda: parent_of(main) != monitor)
    (place.path / "go").touch()
    stdout, stderr = asker.communicate(timeout=DEADLINE_SECONDS)
    job = place.job("orphan")
    assert stdout == "late\n"
    if keeps_codes():
        assert (job["state"], job["exit_code"], asker.returncode) == ("exited", 5, 5), stderr
    else:
        assert (job["state"], job["error"]) == ("failed", LOST)


def test_a_command_that_stopped_before_its_offer_has_its_job_started_by_the_agent(place_with_agent: Place) -> None:
    place = place_with_agent
    program = """
import os, signal, sys
from pgpu.client.monitor_offer import MonitorOffer
MonitorOffer.renew = lambda self: os.kill(os.getpid(), signal.SIGSTOP)
from pgpu.cli.main import main
sys.argv = ["pgpu", "run", "--memory", "1GiB", "--name", "stuck", "--", "sh", "-c", "exit 6"]
main()
"""
    asker = subprocess.Popen(
        [sys.executable, "-c", program], env=place.environment, cwd=place.path, stdin=subprocess.DEVNULL
    )
    try:
        until(lambda: (place.job("stuck") or {}).get("state") == "exited")
        assert place.job("stuck")["exit_code"] == 6
    finally:
        asker.kill()
        asker.wait()


@pytest.fixture
def offers() -> Iterator[MonitorOffers]:
    loop = EventLoop()
    made = MonitorOffers(loop)
    yield made
    made.close()
    loop.close()


def offered() -> tuple[socket.socket, socket.socket, list[int], int]:
    """Start a monitor as a command does; return the agent's and the command's connection, the descriptors and the PID."""
    ours, theirs = socket.socketpair()
    pid, order = start_idle_monitor()
    return ours, theirs, [order.detach(), os.pidfd_open(pid)], pid


def test_an_offer_is_taken_once_and_its_command_is_informed(offers: MonitorOffers) -> None:
    ours, theirs, descriptors, pid = offered()
    offers.add(JOB, ours, descriptors)
    monitor = offers.take(JOB, myself())
    assert isinstance(monitor, OfferedMonitor)
    assert theirs.recv(10) == b"+"
    assert theirs.recv(10) == b""
    offers._loop.turn()  # closes the agent's end
    monitor.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    theirs.close()


def test_an_offer_ends_with_its_command(offers: MonitorOffers) -> None:
    ours, theirs, descriptors, pid = offered()
    offers.add(JOB, ours, descriptors)
    theirs.close()
    offers._loop.run_until(lambda: not offers._offers)  # the monitor holds a copy of `theirs` until its exec
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    gone = ProcessHolder(pid, 1, myself().boot_id)
    assert offers.take(JOB, gone) is None


def test_a_thread_waits_for_an_offer_that_is_to_come(offers: MonitorOffers) -> None:
    taken: list[OfferedMonitor | None] = []
    thread = threading.Thread(target=lambda: taken.append(offers.take(JOB, myself())))
    thread.start()
    until(lambda: JOB in offers._awaited)
    ours, theirs, descriptors, pid = offered()
    offers.add(JOB, ours, descriptors)
    thread.join()
    [monitor] = taken
    assert monitor is not None
    offers._loop.turn()
    monitor.close()
    os.waitpid(pid, 0)
    theirs.close()


def test_a_command_that_ends_without_an_offer_is_not_waited_for(offers: MonitorOffers) -> None:
    child = subprocess.Popen(["sleep", "600"])
    starter = identify_running(child.pid)
    assert starter is not None
    taken: list[OfferedMonitor | None] = []
    offers._patience_seconds = 600.0
    thread = threading.Thread(target=lambda: taken.append(offers.take(JOB, starter)))
    thread.start()
    until(lambda: JOB in offers._awaited)
    child.kill()
    thread.join()
    child.wait()
    assert taken == [None]


def test_a_process_under_another_root_is_refused(offers: MonitorOffers, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may change its root directory")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "door"))
    listener.listen()
    program = "import os, socket, sys; s = socket.socket(socket.AF_UNIX); os.chroot(sys.argv[1]); s.connect('/door'); s.recv(1)"
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    connection, _ = listener.accept()
    *unused, descriptors, pid = offered()
    for end in unused:
        end.close()
    offers.add(JOB, connection, descriptors)
    assert offers.take(JOB, myself()) is None
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    child.kill()
    child.wait()
    listener.close()


@pytest.mark.parametrize(
    ("limit", "hard", "may"), [("NOFILE", 64, False), ("NOFILE", 256, True), ("FSIZE", 1 << 30, False)]
)
def test_a_process_whose_limits_would_cut_a_log_offers_no_monitor(limit: str, hard: int, may: bool) -> None:
    program = (
        "import resource; from pgpu.client.monitor_offer import may_offer;"
        f"resource.setrlimit(resource.RLIMIT_{limit}, ({hard}, {hard})); print(may_offer())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{may}\n"
