"""The guard: it restarts an agent that fails, holds its lock meanwhile, and records the ends of orphans."""

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import monitored
from tests.waiting import until

from pgpu.host.file_lock import open_lock_file, try_flock
from pgpu.host.process_identity import identify_running, identify_unreaped
from pgpu.libraries import MONITOR, library_path
from pgpu.model import ProcessHolder
from pgpu.runtimes.job_monitor import read_reaped, read_record, remove_old_reaped, start_guard
from pgpu.structs import replace

assert monitored  # selects the build with sanitizers


class Guarded:
    """A guard whose agent is a shell script, in which `$1` is the directory."""

    def __init__(self, directory: Path, script: str) -> None:
        self.directory = directory
        self.spool = directory / "spool"
        self.spool.mkdir()
        self.starts = directory / "starts"
        self.starts.touch()
        lock = open_lock_file(directory / "lock")
        assert try_flock(lock)
        with (directory / "errors").open("wb") as errors:
            words = [
                "/bin/sh",
                "-c",
                f"echo $2 > $1/descriptor; echo $$ >> $1/starts; {script}",
                "agent",
                str(directory),
            ]
            self.pid = start_guard(lock, self.spool, words, errors.fileno())
        os.close(lock)
        self._is_reaped = False

    def agents(self) -> list[int]:
        """Return the PIDs of all agents so far."""
        return [int(line) for line in self.starts.read_text("ascii").splitlines()]

    def await_agent(self, number: int) -> int:
        """Return the PID of the agent of this number, from 1, once it was started."""
        return until(lambda: self.agents()[number - 1 :])[0]

    def is_locked(self) -> bool:
        lock = open_lock_file(self.directory / "lock")
        try:
            return not try_flock(lock)
        finally:
            os.close(lock)

    def number_in(self, name: str) -> int:
        """Return the number that the agent wrote into this file."""
        path = self.directory / name
        return int(until(lambda: path.exists() and path.read_text("ascii").strip()))

    def wait(self) -> int:
        """Reap the guard."""
        self._is_reaped = True
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        if not self._is_reaped:
            os.kill(self.pid, signal.SIGTERM)
            self.wait()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], Guarded]]:
    made: list[Guarded] = []

    def make_one(script: str) -> Guarded:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        made.append(Guarded(directory, script))
        return made[-1]

    yield make_one
    for each in made:
        each.close()


Make = Callable[[str], Guarded]

ONCE = "[ $(wc -l < $1/starts) -gt 1 ] && exec sleep 600"
"""What follows in a script is done by the first agent only."""


def test_an_agent_that_exits_with_0_is_not_restarted(make: Make) -> None:
    guarded = make("exit 0")
    assert guarded.wait() == 0
    assert len(guarded.agents()) == 1
    assert not guarded.is_locked()


def test_an_agent_has_a_session_an_environment_and_the_lock(make: Make) -> None:
    script = "{ pwd; cut -d' ' -f6 /proc/$$/stat; env; ls -l /proc/$$/fd/; } > $1/seen; exit 0"
    guarded = make(script)
    guarded.wait()
    directory, session, *rest = (guarded.directory / "seen").read_text("utf-8").splitlines()
    assert (directory, int(session)) == ("/", guarded.pid)
    assert f"PATH={os.environ['PATH']}" in rest
    files = {line.split()[-3]: line.split()[-1] for line in rest if " -> " in line}
    assert {name: files[name] for name in "023"} == {
        "0": "/dev/null",
        "2": str(guarded.directory / "errors"),
        "3": str(guarded.directory / "lock"),
    }
    assert guarded.directory.joinpath("descriptor").read_text("ascii") == "3\n"


def test_an_agent_blocks_no_signal(tmp_path: Path) -> None:
    # Not of a shell, which clears its mask itself.
    copy = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(pathlib.Path('/proc/self/status').read_text())"
    lock = open_lock_file(tmp_path / "lock")
    guard = start_guard(lock, tmp_path, [sys.executable, "-I", "-S", "-c", copy, str(tmp_path / "status")], 2)
    os.close(lock)
    assert os.waitstatus_to_exitcode(os.waitpid(guard, 0)[1]) == 0
    status = dict(line.partition(":\t")[::2] for line in (tmp_path / "status").read_text("ascii").splitlines())
    assert int(status["SigBlk"], 16) == 0


def test_the_lock_is_never_free_while_agents_are_killed(make: Make) -> None:
    all_guarded = [make("exec sleep 600") for _ in range(10)]
    kills = 5
    for number in range(1, kills + 1):
        for guarded in all_guarded:
            os.kill(guarded.await_agent(number), signal.SIGKILL)
        while not all(len(guarded.agents()) > number for guarded in all_guarded):
            assert all(guarded.is_locked() for guarded in all_guarded)
    assert [len(set(guarded.agents())) for guarded in all_guarded] == [kills + 1] * 10


def test_pauses_between_short_lived_agents_double(make: Make) -> None:
    guarded = make("cut -d' ' -f1 /proc/uptime >> $1/times; exit 1")
    guarded.await_agent(7)
    lines = (guarded.directory / "times").read_text("ascii").splitlines()
    times = [float(line) for line in lines]
    # An agent's own time is before its end, and its successor's is behind the pause: each gap is a pause at least.
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert all(gap > pause - 0.02 for gap, pause in zip(gaps, [0, 0.1, 0.2, 0.4, 0.8], strict=False))


def test_sigterm_ends_the_agent_and_its_guard(make: Make) -> None:
    guarded = make("trap 'echo 1 > $1/terminated; exit 3' TERM; echo 1 > $1/ready; while :; do sleep 0.01; done")
    guarded.number_in("ready")
    os.kill(guarded.pid, signal.SIGTERM)
    assert guarded.wait() == 0
    assert guarded.number_in("terminated") == 1
    assert len(guarded.agents()) == 1


def test_sigterm_ends_a_guard_between_two_agents(make: Make) -> None:
    guarded = make("exit 1")
    guarded.await_agent(5)
    os.kill(guarded.pid, signal.SIGTERM)
    assert guarded.wait() == 0


def test_a_command_that_cannot_be_executed_is_tried_again(make: Make) -> None:
    guarded = make("exec /no/such/agent")
    guarded.await_agent(3)
    assert guarded.is_locked()


def _orphan(make: Make, ending: str) -> tuple[Guarded, ProcessHolder]:
    """Return a guard and a process whose agent was killed; it ends once the guard's file "go" is there."""
    job = f"echo $$ > $1/job; until [ -e $1/go ]; do sleep 0.01; done; {ending}"
    guarded = make(f"{ONCE}; sh -c '{job}' job $1 3>&- & wait")
    orphan = identify_running(guarded.number_in("job"))
    assert orphan is not None
    os.kill(guarded.await_agent(1), signal.SIGKILL)
    guarded.await_agent(2)
    assert read_reaped(guarded.spool, orphan) is None
    (guarded.directory / "go").touch()
    until(lambda: identify_unreaped(orphan.pid) is None)
    return guarded, orphan


@pytest.mark.parametrize(("ending", "code"), [("exit 7", 7), ("exit 0", 0), ("kill -KILL $$", 137)])
def test_the_exit_code_of_an_orphan_is_recorded(make: Make, ending: str, code: int) -> None:
    guarded, orphan = _orphan(make, ending)
    assert read_reaped(guarded.spool, orphan) == code
    assert read_reaped(guarded.spool, replace(orphan, start_time_ticks=orphan.start_time_ticks + 1)) is None
    assert read_reaped(guarded.spool, replace(orphan, boot_id="of another boot")) is None
    assert read_reaped(guarded.spool, replace(orphan, pid=orphan.pid + 1)) is None
    record = read_record(guarded.spool / f"reaped-{orphan.pid}")
    assert record.ended_at_ns is not None
    assert f"reaped-{orphan.pid}" in {path.name for path in guarded.spool.iterdir()}
    assert not list(guarded.spool.glob(".*"))


def test_a_spool_that_is_gone_stops_neither_reaping_nor_restarts(make: Make) -> None:
    guarded, orphan = _orphan(make, "rm -r $1/spool; exit 7")
    assert read_reaped(guarded.spool, orphan) is None
    assert "spool: errno 2" in (guarded.directory / "errors").read_text("ascii")
    os.kill(guarded.await_agent(2), signal.SIGKILL)
    guarded.await_agent(3)


def test_nothing_is_recorded_of_a_monitor(make: Make) -> None:
    monitor = f"{library_path(MONITOR)} guard 3 $1/spool -- /bin/sleep"
    guarded = make(f"{ONCE}; {monitor} 600 & echo $! > $1/monitor; wait")
    pid = guarded.number_in("monitor")
    # The shell has forked it, and may not have executed it yet.
    until(lambda: Path(f"/proc/{pid}/exe").samefile(library_path(MONITOR)))
    os.kill(guarded.await_agent(1), signal.SIGKILL)
    guarded.await_agent(2)
    os.kill(pid, signal.SIGKILL)
    until(lambda: identify_unreaped(pid) is None)
    assert not (guarded.spool / f"reaped-{pid}").exists()


def test_behind_an_agent_that_exited_with_0_orphans_are_recorded_without_the_lock(make: Make) -> None:
    guarded = make("sleep 600 3>&- & echo $! > $1/job; exit 0")
    orphan = identify_running(guarded.number_in("job"))
    assert orphan is not None
    until(lambda: not guarded.is_locked())
    os.kill(orphan.pid, signal.SIGKILL)
    assert guarded.wait() == 0
    assert read_reaped(guarded.spool, orphan) == 137


def test_a_caller_that_ignores_sigchld_has_a_guard_that_does_not(make: Make) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        guarded = make("while [ ! -e $1/go ]; do sleep 0.01; done; exit 0")
    finally:
        signal.signal(signal.SIGCHLD, before)
    # Not before: this process, which ignored the signal, would not have been left a child to wait for.
    (guarded.directory / "go").touch()
    assert guarded.wait() == 0


def beats(number: int | str) -> str:
    """Return the command that sets the time of the lock's file as an agent does while jobs wait or run."""
    return f"touch -d @$((1000000 + {number})) $1/lock"


def test_a_silent_agent_is_replaced_and_no_other_one(make: Make) -> None:
    others = [
        make(f"n=0; while :; do n=$((n + 1)); {beats('n')}; sleep 0.5; done"),
        # A long round, which computes a tenth of the time: it leaves the cores to other tests.
        make(f"{beats(1)}; while :; do n=0; while [ $n -lt 3000 ]; do n=$((n + 1)); done; sleep 0.1; done"),
        make("exec sleep 600"),  # of a release without a heartbeat
    ]
    stopped = make(
        f"n=0; while :; do n=$((n + 1)); {beats('n')}; echo $n >> $1/beats; echo 1 > $1/beaten; sleep 0.1; done"
    )
    stopped.number_in("beaten")
    both = (stopped.pid, stopped.await_agent(1))
    for pid in both:
        os.kill(pid, signal.SIGSTOP)
    for each in others:
        each.await_agent(1)
    silent = make(f"{ONCE}; {beats(1)}; exec sleep 600")
    silent.await_agent(2)
    assert "silent" in (silent.directory / "errors").read_text("ascii")
    assert silent.is_locked()
    for pid in reversed(both):
        os.kill(pid, signal.SIGCONT)
    before = len((stopped.directory / "beats").read_text("ascii").splitlines())
    until(lambda: len((stopped.directory / "beats").read_text("ascii").splitlines()) > before + 20)
    assert [len(each.agents()) for each in (*others, stopped)] == [1, 1, 1, 1]


def test_an_agent_that_is_silent_before_its_first_beat_is_not_judged_by_the_last_ones(make: Make) -> None:
    guarded = make(f"{beats(1)}; echo 1 > $1/beaten; exec sleep 600")
    guarded.number_in("beaten")
    os.kill(guarded.await_agent(1), signal.SIGKILL)
    # The second agent sets the time that is set already, so to its guard it never beats.
    other = make(f"{ONCE}; {beats(1)}; exec sleep 600")
    guarded.await_agent(2)
    other.await_agent(2)
    assert len(guarded.agents()) == 2


def test_records_of_orphans_are_removed_after_an_hour(tmp_path: Path) -> None:
    for name, age_seconds in (("reaped-1", 4000), ("reaped-2", 60), ("started-a.1", 4000)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age_seconds,) * 2)
    remove_old_reaped(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reaped-2", "started-a.1"]
