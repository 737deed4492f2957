"""Slow, dead and late clients: none loses output that it holds the job back for, none stops the job."""

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.system.engine_worlds import World, world
from tests.waiting import until

from pgpu.client.following import Follower
from pgpu.client.terminal import _forward_signals
from pgpu.engine.agent.agents import Agents
from pgpu.engine.event_loop import READABLE, EventLoop
from pgpu.engine.settings import JobPaths
from pgpu.engine.streams.carrier import PATIENCE_SECONDS, Carrier
from pgpu.engine.streams.frames import FrameDecoder, Hello, Kind, encode_hello
from pgpu.engine.streams.log import stored
from pgpu.engine.streams.records import RecordDecoder
from pgpu.engine.unix_sockets import bind, connect
from pgpu.host.file_lock import open_lock_file, try_flock
from pgpu.model import JobSpec, JobState
from pgpu.runtimes.job_monitor import has_monitor

PIECE = b"x" * 65536
PIECES = 400
MOST_LAG_BYTES = 4 << 20
"""Of a client that holds the job back: native/monitor/followers.c."""


class Desk:
    """A carrier on a loop of its own thread, and the pipe that a job would write to."""

    def __init__(
        self, directory: Path, *, wants_stdin: bool = False, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self.places = JobPaths(directory / "jobs" / "0123456789ab", directory / "live" / ("long" * 20) / ("path" * 20))
        self.places.make()
        self.loop = EventLoop()
        spec = JobSpec((), "process", wants_stdin=wants_stdin)
        self.carrier = Carrier(self.loop, "0123456789ab", spec, self.places, 1 << 30, patience_seconds=patience_seconds)
        stdio = self.carrier.open()
        self.stdout = os.dup(stdio.stdout)
        self.stdin = os.dup(stdio.stdin)
        self.carrier.started()
        self.has_ended = threading.Event()
        self.calls: list[str] = []
        self._again()
        self.thread = threading.Thread(target=self.loop.run_until, args=(self.has_ended.is_set,))
        self.thread.start()

    def _again(self) -> None:
        if "finish" in self.calls:
            self.calls.clear()
            self.carrier.drain()
            self.carrier.finish()
        self.loop.call_later(0.01, self._again)

    def write(self, pieces: int) -> threading.Thread:
        """Write as a job would, in a thread of its own, which blocks when the job would."""

        def work() -> None:
            for _ in range(pieces):
                os.write(self.stdout, PIECE)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def follow(self, *, holds_back: bool, offset: int = 0, owns_stdin: bool = False) -> socket.socket:
        connection = connect(self.places.attach_socket)
        connection.sendall(encode_hello(Hello(offset, holds_back, owns_stdin)))
        return connection

    def log_end(self) -> int:
        return max((offset + len(data) for offset, data in stored(self.places.log)), default=0)

    def close(self) -> None:
        self.has_ended.set()
        self.thread.join()
        self.carrier.close()
        os.close(self.stdout)
        os.close(self.stdin)


def read_output(connection: socket.socket, least_bytes: int) -> int:
    """Read until so much output came, or the end; return how much did."""
    frames, records, seen = FrameDecoder(), RecordDecoder(), 0
    while seen < least_bytes and (data := connection.recv(1 << 16)):
        for frame in frames.feed(data):
            if frame.kind is Kind.END:
                return seen
            if frame.kind is Kind.OUTPUT:
                seen += sum(len(record.payload) for record in records.feed(frame.payload))
    return seen


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pgpu-desk-", dir="/dev/shm") as made:
        yield Path(made)


@pytest.fixture
def desk(directory: Path) -> Iterator[Desk]:
    made = Desk(directory)
    yield made
    made.close()


def test_a_client_that_lags_holds_the_job_back_and_then_gets_everything(desk: Desk) -> None:
    connection = desk.follow(holds_back=True)
    writer = desk.write(PIECES)
    until(lambda: desk.log_end() > MOST_LAG_BYTES)
    assert desk.log_end() < MOST_LAG_BYTES * 2 < PIECES * len(PIECE)
    assert writer.is_alive()
    assert read_output(connection, PIECES * len(PIECE)) == PIECES * len(PIECE)
    writer.join()
    connection.close()


def test_a_client_that_hangs_stops_holding_the_job_back(directory: Path) -> None:
    desk = Desk(directory, patience_seconds=0.2)
    connection = desk.follow(holds_back=True)
    desk.write(PIECES).join()
    until(lambda: desk.log_end() > PIECES * len(PIECE))
    connection.close()
    desk.close()


def test_a_client_that_may_lose_output_never_holds_the_job_back(desk: Desk) -> None:
    connection = desk.follow(holds_back=False)
    desk.write(PIECES).join()
    until(lambda: desk.log_end() > PIECES * len(PIECE))
    connection.close()


def test_a_client_that_dies_while_the_job_is_held_back_lets_it_go_on(desk: Desk) -> None:
    connection = desk.follow(holds_back=True)
    writer = desk.write(PIECES)
    until(lambda: desk.log_end() > MOST_LAG_BYTES)
    connection.close()
    writer.join()


def test_each_client_gets_everything_from_its_own_offset(desk: Desk) -> None:
    desk.write(10).join()
    until(lambda: desk.log_end() >= 10 * len(PIECE))
    first, second = desk.follow(holds_back=True), desk.follow(holds_back=False)
    assert [read_output(each, 10 * len(PIECE)) for each in (first, second)] == [10 * len(PIECE)] * 2
    late = desk.follow(holds_back=False, offset=1 << 62)
    desk.calls.append("finish")
    assert [read_output(each, 1) for each in (first, second, late)] == [0, 0, 0]
    for each in (first, second, late):
        each.close()


def test_a_client_that_talks_nonsense_is_hung_up_on(desk: Desk) -> None:
    connection = connect(desk.places.attach_socket)
    connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert connection.recv(1) == b""
    connection.close()


@contextmanager
def killed_monitor(
    directory: Path, held: Callable[[], tuple[int, ...]] = tuple
) -> Iterator[tuple[Carrier, EventLoop, int]]:
    """Give the carrier of a job whose monitor and main process were killed, its loop, and the lock that is still held."""
    # The kernel closes the files of a killed process in any order.
    places = JobPaths(directory / "jobs" / "0123456789ab", directory / "live")
    places.make()
    os.mkfifo(places.done)
    places.spool.mkdir()
    record = "pgpu-record 1 R\npid=1\nstart=1\nboot=of another boot\nmonitor=1\n"
    (places.spool / "started-0123456789ab.1").write_text(record, "ascii")
    lock = open_lock_file(places.monitor_lock)
    assert try_flock(lock)
    loop = EventLoop()
    carrier = Carrier(loop, "0123456789ab", JobSpec((), "process"), places, 1 << 30, held)
    carrier.reopen()
    carrier.started()
    yield carrier, loop, lock
    assert has_monitor(places.monitor_lock)
    loop.forget(carrier.end_event)
    carrier.finish()
    carrier.close()


def test_a_monitor_that_was_killed_and_still_has_its_lock_is_replaced(directory: Path) -> None:
    with killed_monitor(directory) as (carrier, loop, lock):
        ended: list[int] = []
        loop.watch(carrier.end_event, READABLE, ended.append)
        release = threading.Thread(target=os.close, args=[lock])
        release.start()
        loop.run_until(lambda: bool(ended))
        release.join()


def test_a_monitor_that_cannot_be_replaced_for_want_of_descriptors_is_replaced_later(directory: Path) -> None:
    with killed_monitor(directory) as (_, loop, lock):
        os.close(lock)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            loop.turn()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert not has_monitor(directory / "live" / "monitor.lock")
        loop.run_until(lambda: has_monitor(directory / "live" / "monitor.lock"))


def test_a_monitor_that_could_not_be_started_is_started_once_and_after_a_pause(directory: Path) -> None:
    starts: list[bool] = []

    def held() -> tuple[int, ...]:
        starts.append(len(starts) == 1)
        if not starts[-1]:
            raise BlockingIOError
        return ()

    with killed_monitor(directory, held) as (_, loop, lock):
        os.close(lock)
        for _ in range(10):
            loop.turn()
        assert starts == [False]
        loop.run_until(lambda: len(starts) > 1)
        assert starts == [False, True]


def test_the_end_of_the_output_completes_a_replacement_that_failed(directory: Path) -> None:
    with killed_monitor(directory) as (carrier, loop, lock):
        os.close(lock)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            loop.turn()
            with pytest.raises(OSError, match="Too many open files"):
                carrier.finish()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        carrier.finish()
        assert has_monitor(directory / "live" / "monitor.lock")


def test_clients_get_the_end_though_the_monitor_was_killed_before_it(directory: Path) -> None:
    desk = Desk(directory)
    monitor = desk.carrier._monitor
    assert monitor is not None
    desk.write(1).join()
    monitor.kill()
    until(lambda: monitor.has_ended)
    # Connected before the end: a monitor without clients leaves at once.
    with closing(desk.follow(holds_back=True)) as connection:
        desk.calls.append("finish")
        assert read_output(connection, 2 * len(PIECE)) == len(PIECE)
    desk.close()


def test_the_jobs_input_ends_when_the_client_that_brings_it_goes(directory: Path) -> None:
    desk = Desk(directory, wants_stdin=True)
    desk.follow(holds_back=True, owns_stdin=True).close()
    assert os.read(desk.stdin, 1) == b""
    desk.close()


COMMAND = """
import sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.fakes.machine import make_client, make_engine
from pgpu.errors import CancelledError
client = make_client(make_engine(Path(sys.argv[2])))
print("attaching", file=sys.stderr, flush=True)
try:
    job = client.attach(sys.argv[3], None, sys.stdout.buffer, sys.stderr.buffer)
    sys.exit(job.exit_code)
except CancelledError:
    sys.exit(130)
"""


@pytest.fixture
def machine() -> Iterator[World]:
    with world() as made:
        yield made


def attached(machine: World, job_id: str) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-c", COMMAND, str(Path(__file__).parents[2]), str(machine.root), job_id]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_ctrl_c_is_the_jobs_while_it_runs(machine: World) -> None:
    job = machine.submit(("sh", "-c", "trap 'echo int; exit 5' INT; echo ready; while :; do sleep 0.01; done"))
    with attached(machine, job.id) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"ready\n"
        command.send_signal(signal.SIGINT)
        assert command.communicate()[0] == b"int\n"
        assert command.returncode == 5


def test_ctrl_c_cancels_a_job_that_waits(machine: World) -> None:
    machine.submit(gib=6)
    job = machine.submit(gib=6)
    with attached(machine, job.id) as command:
        assert command.stderr is not None
        assert command.stderr.readline() == b"attaching\n"
        until(lambda: command.poll() is not None or _interrupt(command))
        assert command.wait() == 130
    assert machine.state(job) is JobState.CANCELLED


def test_ctrl_c_while_a_granted_job_is_being_started_is_not_lost(machine: World) -> None:
    machine.engine.agents = Agents(machine.engine.settings, ("true",))
    job = machine.submit()
    assert machine.state(job) is JobState.STARTING
    _forward_signals(Follower(machine.engine, job), job.spec, [signal.SIGINT], has_output=False)
    assert machine.entry(job).stop_grace_seconds == 0.0


def test_ctrl_c_reaches_a_job_that_has_written_before_the_ledger_calls_it_running(machine: World) -> None:
    machine.engine.agents = Agents(machine.engine.settings, ("true",))
    job = machine.submit()
    places = machine.engine.places(job.id)
    places.make()
    with closing(bind(socket.SOCK_DGRAM, places.wake_socket)) as wake:
        _forward_signals(Follower(machine.engine, job), job.spec, [signal.SIGINT], has_output=True)
        assert wake.recv(64) == b"signal 2"
    assert machine.entry(job).stop_grace_seconds is None


def test_ctrl_c_cancels_a_job_that_has_written_and_waits_for_its_next_try(machine: World) -> None:
    machine.submit(gib=6)
    job = machine.submit(gib=6)
    _forward_signals(Follower(machine.engine, job), job.spec, [signal.SIGINT], has_output=True)
    assert machine.state(job) is JobState.CANCELLED


def _interrupt(command: "subprocess.Popen[bytes]") -> bool:
    """Press Ctrl-C once the command catches it."""
    caught = int(Path(f"/proc/{command.pid}/status").read_text().split("SigCgt:")[1].split()[0], 16)
    if caught & 1 << (signal.SIGUSR1 - 1):
        command.send_signal(signal.SIGINT)
        return True
    return False


def test_a_killed_client_leaves_the_job_running(machine: World) -> None:
    job = machine.submit(("sh", "-c", "echo ready; exec sleep 600"))
    with attached(machine, job.id) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"ready\n"
        command.kill()
        command.communicate()
    assert machine.state(job) is JobState.RUNNING
    assert next(machine.client.logs(job.id, follow=True)) == ("stdout", b"ready\n")
