"""The native monitor: it starts a job, carries its streams, serves clients, and leaves one record of the end."""

import array
import contextlib
import ctypes
import fcntl
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.monitored import JOB, Monitored
from tests.waiting import until

from pgpu.engine.streams.frames import Hello, Kind, decode_gap, encode_frame, encode_hello
from pgpu.errors import CommandNotFoundError, RuntimeUnavailableError
from pgpu.host.file_lock import open_lock_file, try_flock
from pgpu.host.process_identity import identify_unreaped
from pgpu.libraries import MONITOR, library_path
from pgpu.runtimes.job_monitor import read_record
from pgpu.runtimes.launcher import spawn

Make = Callable[..., Monitored]

_PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Monitored] = []

    def make_one(**options: object) -> Monitored:
        made.append(Monitored(tmp_path, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make_one
    for each in made:
        each.close()


def test_a_command_s_output_code_and_record_are_there(make: Make) -> None:
    job = make().start("sh", "-c", "echo out; echo err >&2; exit 3")
    record = job.end()
    assert (record.has_run, record.exit_code, record.dropped_bytes) == (True, 3, 0)
    assert (job.output("stdout"), job.output("stderr")) == (b"out\n", b"err\n")
    job.order("finish")
    assert job.wait() == 0
    assert [path.name for path in job.spool.iterdir()] == [job.ended.name]


def test_a_signal_is_recorded_as_one(make: Make) -> None:
    job = make().start("sleep", "600")
    job.order("signal 15")
    assert job.end().exit_code == 128 + 15


def test_the_environment_is_the_job_s_alone(make: Make) -> None:
    job = make().start("env", environment={"PATH": os.environ["PATH"], "ONE": "1"})
    job.end()
    assert sorted(job.output().split()) == sorted([b"PATH=" + os.fsencode(os.environ["PATH"]), b"ONE=1"])


def test_a_command_that_is_missing_is_refused_and_recorded_as_not_run(make: Make) -> None:
    job = make()
    with pytest.raises(CommandNotFoundError):
        job.start("no-such-command")
    assert job.end().exit_code == 125


def test_a_launcher_that_is_never_let_go_has_not_run(make: Make) -> None:
    job = make()
    launch = job.start_held("touch", str(job.directory / "ran"))
    launch.hand_over({})
    until(job.started.exists)
    assert not read_record(job.started).has_run
    job.close()  # the control pipe ends
    record = job.end()
    assert (record.has_run, record.exit_code) == (False, 125)
    assert not (job.directory / "ran").exists()


def test_a_start_that_was_recorded_is_never_repeated(make: Make) -> None:
    make().start("true").end()
    again = make()
    (again.spool / f"started-{JOB}.1").touch()
    with pytest.raises(RuntimeUnavailableError, match="File exists"):
        again.start("touch", str(again.directory / "twice"))
    assert again.wait() == 125
    assert not (again.directory / "twice").exists()


def test_a_full_disk_refuses_the_start_and_leaves_nothing(make: Make, tmp_path: Path, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * ((2 << 20) - 8192))
    spool = small_disk / "spool"
    job = make(spool=spool)
    with contextlib.suppress(OSError), (small_disk / "more").open("wb") as file:
        while True:
            file.write(b"x" * 512)
            file.flush()
    with pytest.raises(RuntimeUnavailableError, match="No space"):
        job.start("touch", str(tmp_path / "ran"))
    assert list(spool.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=False, capture_output=True
    ).returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_on_a_disk_that_fills_up_the_job_goes_on_and_its_end_is_whole(make: Make, small_disk: Path) -> None:
    job = make(cap_bytes=64 << 20, spool=small_disk / "spool")
    job.log = small_disk / "log"
    job.start(sys.executable, "-c", "import sys; sys.stdout.buffer.write(b'x' * (24 << 20)); sys.exit(4)")
    record = job.end()
    assert record.exit_code == 4
    assert record.dropped_bytes > 8 << 20
    kept = job.output()
    assert 1 << 20 < len(kept) < 2 << 20
    assert set(kept) == {ord("x")}


def test_a_job_s_daemon_does_not_hold_up_its_end(make: Make) -> None:
    job = make().start("sh", "-c", "sleep 600 & echo $!; exit 2")
    assert job.end().exit_code == 2
    job.order("finish")
    assert job.wait() == 0
    os.kill(int(job.output()), signal.SIGKILL)


def test_small_pieces_in_a_pipe_at_the_end_are_all_in_the_log(make: Make) -> None:
    # Packets, in a log that is kept in memory: each is a record of its own, whose header is longer than it.
    job = make()
    (job.directory / "file").touch()
    job.log = job.directory / "file" / "log"
    _print_and_end_while_the_monitor_stands_still(
        job, "fcntl.fcntl(1, fcntl.F_SETFL, os.O_DIRECT); [os.write(1, b'p') for _ in range(15)]"
    )
    client = job.attach()
    job.order("finish")
    assert client.output() == b"p" * 15


def _print_and_end_while_the_monitor_stands_still(job: Monitored, statement: str, *, tty: bool = False) -> None:
    gate = job.directory / "gate"
    os.mkfifo(gate)
    program = f"import fcntl, os, sys; open(sys.argv[1]).read(); {statement}"
    job.start(sys.executable, "-c", program, str(gate), tty=tty)
    main = read_record(job.started).holder
    os.kill(job.pid, signal.SIGSTOP)
    until(lambda: _state(job.pid) == "T")
    gate.write_bytes(b"")
    until(lambda: _state(main.pid) == "Z")
    os.kill(job.pid, signal.SIGCONT)


def test_a_main_process_is_reaped_once_its_end_is_recorded(make: Make) -> None:
    for _ in range(20):
        job = make(number=_next_number()).start("sh", "-c", "read line; seq 10000; exit 3", stdin=True)
        main = read_record(job.started).holder.pid
        job.attach().send(b"\n")
        while Path(f"/proc/{main}").exists():
            pass
        assert job.ended.exists()


def test_a_monitor_that_cannot_record_the_end_leaves_the_exit_code_to_its_parent(make: Make) -> None:
    prctl = ctypes.CDLL(None).prctl
    assert prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        job = make().start("sh", "-c", "read line; exit 9", stdin=True)
        main = read_record(job.started).holder.pid
        shutil.rmtree(job.spool)
        job.attach().send(b"\n")
        assert job.wait() == 1
        assert os.waitstatus_to_exitcode(os.waitpid(main, 0)[1]) == 9
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def test_a_monitor_without_free_descriptors_hangs_up_on_clients(make: Make) -> None:
    job = make().start("sh", "-c", "echo ready; exec sleep 600")
    served = job.attach()
    next(served.frames())  # from here on the monitor opens and closes nothing of its own
    taken = {int(path.name) for path in _descriptors(job.pid)}
    limit = max(taken) + 1
    free = limit - len(taken)
    resource.prlimit(job.pid, resource.RLIMIT_NOFILE, (limit, limit))
    clients = [socket.socket(socket.AF_UNIX) for _ in range(free + 2)]
    for client in clients:
        client.connect(str(job.attach_path))
    assert [client.recv(1) for client in clients[free:]] == [b"", b""]
    for client in clients:
        client.close()
    until(lambda: len(_descriptors(job.pid)) == len(taken))
    job.order("signal 9")
    job.order("finish")
    assert served.output() == b""


def test_orphans_are_reaped_by_the_monitor(make: Make) -> None:
    job = make().start("sh", "-c", "(sh -c 'sleep 0.05' & echo $! ) ; sleep 600")
    until(lambda: job.output().endswith(b"\n"))
    orphan = int(job.output())
    until(lambda: identify_unreaped(orphan) is None)
    job.order("signal 9")
    job.end()


def test_many_orphans_that_ended_at_once_are_all_reaped(make: Make) -> None:
    job = make()
    gate = job.directory / "gate"
    os.mkfifo(gate)
    job.start("sh", "-c", "read line < $1; for i in $(seq 150); do (true &); done; sleep 600", "sh", str(gate))
    main = read_record(job.started).holder.pid
    os.kill(job.pid, signal.SIGSTOP)
    until(lambda: _state(job.pid) == "T")
    gate.write_bytes(b"\n")
    until(lambda: len(_children(job.pid)) == 151)
    os.kill(job.pid, signal.SIGCONT)
    until(lambda: _children(job.pid) == [main])
    job.order("signal 9")
    job.end()


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


def test_the_log_keeps_its_cap_and_whole_records(make: Make) -> None:
    job = make(cap_bytes=200_000).start(sys.executable, "-c", "for i in range(50_000): print(f'{i:06}')")
    job.end()
    lines = job.output().split()
    assert sum(path.stat().st_size for path in job.directory.glob("log*")) <= 200_000 + (1 << 17)
    assert [int(line) for line in lines[1:]] == list(range(50_000 - len(lines) + 1, 50_000))


def test_a_client_reads_everything_and_the_end_once_the_job_is_final(make: Make) -> None:
    job = make().start("sh", "-c", "read line; echo got $line", stdin=True)
    client = job.attach(owns_stdin=True)
    client.send(b"this\n")
    job.end()
    job.order("finish")
    assert client.output() == b"got this\n"
    assert job.wait() == 0


def test_input_ends_with_the_client_that_owns_it(make: Make) -> None:
    job = make().start("cat", stdin=True)
    client = job.attach(owns_stdin=True)
    client.send(b"all of it")
    until(lambda: job.output() == b"all of it")
    client.close()
    assert job.end().exit_code == 0


def test_input_is_read_though_its_client_disconnected_without_reading(make: Make) -> None:
    job = make().start("sh", "-c", "seq 100000; read line; exit 4", stdin=True)
    until(lambda: job.output().endswith(b"100000\n"))
    client = job.attach()
    until(lambda: _queued(client.socket, termios.FIONREAD) > 1 << 16)
    os.kill(job.pid, signal.SIGSTOP)
    until(lambda: _state(job.pid) == "T")
    client.send(b"line\n")
    client.close()
    os.kill(job.pid, signal.SIGCONT)
    assert job.end().exit_code == 4


def _queued(connection: socket.socket, request: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(connection, request, count)
    return count[0]


def test_a_large_input_arrives_whole(make: Make) -> None:
    job = make(cap_bytes=16 << 20).start("sh", "-c", "sleep 0.2; sha256sum", stdin=True)
    client = job.attach(owns_stdin=True)
    client.send(b"y" * (1 << 20))
    client.send(b"y" * (1 << 20))
    client.end_input()
    job.end()
    expected = subprocess.run(["sha256sum"], input=b"y" * (2 << 20), capture_output=True, check=True).stdout
    assert job.output() == expected


def test_a_client_of_an_empty_log_costs_no_cpu(make: Make) -> None:
    job = make().start("sleep", "600")
    clients = [job.attach(0), job.attach(5000)]
    until(lambda: _state(job.pid) == "S")
    before = _cpu_ticks(job.pid)
    threading.Event().wait(0.5)
    assert _cpu_ticks(job.pid) - before < 5
    job.order("signal 9")
    job.end()
    for client in clients:
        client.close()


def test_input_that_a_terminal_does_not_take_costs_no_cpu(make: Make) -> None:
    hung_up = make().start("sh", "-c", "exec <&- >&- 2>&-; exec sleep 600", tty=True, stdin=True)
    left_behind = make(number=2).start("sh", "-c", "trap '' HUP; sleep 600 & exit 0", tty=True, stdin=True)
    full = make(number=3).start("sleep", "600", tty=True, stdin=True)
    left_behind.end()
    jobs = (hung_up, left_behind, full)
    clients = [job.attach() for job in jobs]
    for client in clients:
        client.send(b"a\n" * 20_000)
        client.end_input()
    until(lambda: not any(_queued(client.socket, termios.TIOCOUTQ) for client in clients))
    before = [_cpu_ticks(job.pid) for job in jobs]
    threading.Event().wait(0.5)
    assert all(_cpu_ticks(job.pid) - ticks < 5 for job, ticks in zip(jobs, before, strict=True))
    hung_up.order("signal 9")
    full.order("signal 9")
    for client in clients:
        client.close()


def _descriptors(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/fd").iterdir())


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_hundred_clients_get_the_same(make: Make) -> None:
    job = make(cap_bytes=16 << 20).start("sh", "-c", "read line; seq 200000", stdin=True)
    clients = [job.attach() for _ in range(100)]
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda each=each: found.append(each.output())) for each in clients]
    for thread in threads:
        thread.start()
    job.attach().send(b"\n")
    job.end()
    job.order("finish")
    for thread in threads:
        thread.join()
    assert set(found) == {job.output()}
    assert len(found) == 100


def test_a_client_that_reads_nothing_holds_the_job_only_if_it_requested_that(make: Make) -> None:
    noisy = (sys.executable, "-c", "import sys; sys.stdout.buffer.write(b'z' * (12 << 20))")
    job = make(cap_bytes=64 << 20).start(*noisy)
    idle = job.attach()
    assert job.end().exit_code == 0
    idle.close()


def test_a_client_that_holds_back_gets_every_byte(make: Make) -> None:
    noisy = (sys.executable, "-c", "import sys; sys.stdout.buffer.write(b'z' * (12 << 20))")
    job = make(cap_bytes=64 << 20)
    launch = job.start_held(*noisy)
    launch.hand_over(os.environ)
    client = job.attach(holds_back=True)
    launch.let_go()
    until(lambda: _log_bytes(job) > 4 << 20 and _state(read_record(job.started).holder.pid) == "S")
    assert _log_bytes(job) < 6 << 20
    assert not job.ended.exists()
    threading.Thread(target=_finish, args=[job]).start()
    assert len(client.output()) == 12 << 20


def _finish(job: Monitored) -> None:
    job.end()
    job.order("finish")


def _log_bytes(job: Monitored) -> int:
    return sum(path.stat().st_size for path in job.directory.glob("log*"))


def test_a_client_behind_the_oldest_record_gets_the_gap(make: Make) -> None:
    job = make(cap_bytes=20_000).start("sh", "-c", "seq 200000; read line", stdin=True)
    until(lambda: job.output().endswith(b"200000\n"))
    client = job.attach(0)
    first = next(client.frames())
    assert first.kind is Kind.GAP
    assert decode_gap(first.payload) > 0
    client.close()
    job.order("signal 9")
    job.end()


def test_a_terminal_has_its_size_and_its_end(make: Make) -> None:
    job = make().start("sh", "-c", "read line; stty size; test -t 0 && echo terminal $line", tty=True, stdin=True)
    client = job.attach()
    job.order("window 90 30")
    client.send(b"typed\n")
    job.end()
    assert job.output().replace(b"\r", b"") == b"typed\n30 90\nterminal typed\n"


def test_the_end_of_a_terminal_s_input_is_its_control_character(make: Make) -> None:
    job = make().start("cat", tty=True, stdin=True)
    client = job.attach()
    client.send(b"line\n")
    client.end_input()
    assert job.end().exit_code == 0


def test_a_terminal_s_output_is_whole_though_its_monitor_stood_still_at_the_end(make: Make) -> None:
    job = make()
    _print_and_end_while_the_monitor_stands_still(job, "os.write(1, b'v' * 10_000)", tty=True)
    job.end()
    assert job.output() == b"v" * 10_000


def test_the_end_of_a_terminal_s_input_ends_an_unfinished_line_too(make: Make) -> None:
    job = make().start("cat", tty=True, stdin=True)
    client = job.attach()
    client.send(b"no newline")
    client.end_input()
    assert job.end().exit_code == 0


@pytest.mark.parametrize(
    "greeting",
    [
        b"",
        b"\x01\x00\x00\x00\x02{}",
        b"\x01\x00\x10\x00\x01",
        b"\x09\x00\x00\x00\x00",
        b"\x04\x00\x00\x00\x01x",
        encode_frame(Kind.HELLO, b'{"offset": 99999999999999999999, "holds_back": true, "owns_stdin": true}'),
        encode_frame(Kind.HELLO, b'{"offset": -1, "holds_back": true, "owns_stdin": true}'),
        encode_frame(Kind.HELLO, b'{"offset": 1, "holds_back": true}'),
        encode_frame(Kind.HELLO, b"x" * 600),
    ],
)
def test_what_is_no_greeting_is_hung_up_on(make: Make, greeting: bytes) -> None:
    job = make().start("sleep", "600")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(job.attach_path))
        client.sendall(greeting)
        if greeting:
            assert client.recv(1) == b""
    job.order("signal 9")
    assert job.end().exit_code == 137


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=40), max_size=20))
def test_nothing_that_a_client_or_a_word_holds_stops_the_job(make: Make, pieces: list[bytes]) -> None:
    job = make(number=_next_number()).start("sh", "-c", "read line; exit 7", stdin=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, contextlib.suppress(OSError):
        client.connect(str(job.attach_path))
        for piece in pieces:
            client.sendall(piece)
    for piece in pieces:
        job.order(piece.decode("latin1").replace("signal", "").replace("finish", ""))
    job.attach().send(b"\n")
    assert job.end().exit_code == 7
    job.order("finish")
    assert job.wait() == 0


_numbers = iter(range(1, 1 << 20))


def _next_number() -> int:
    return next(_numbers)


def test_frames_that_arrive_byte_by_byte_are_read(make: Make) -> None:
    job = make().start("cat", stdin=True)
    frames = encode_hello(Hello(0, holds_back=True, owns_stdin=True))
    frames += encode_frame(Kind.STDIN, b"some ") + encode_frame(Kind.STDIN, b"") + encode_frame(Kind.STDIN, b"input")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(job.attach_path))
        for place in range(len(frames)):
            client.sendall(frames[place : place + 1])
        until(lambda: job.output() == b"some input")
        for byte in encode_frame(Kind.STDIN_END):
            client.sendall(bytes([byte]))
        assert job.end().exit_code == 0


def test_a_storm_of_words_delays_neither_output_nor_end(make: Make) -> None:
    job = make(cap_bytes=16 << 20).start("sh", "-c", "read line; seq 100000; exit 5", stdin=True)
    is_over = threading.Event()
    senders = [threading.Thread(target=_storm, args=[job, is_over]) for _ in range(4)]
    for sender in senders:
        sender.start()
    job.attach().send(b"\n")
    try:
        assert job.end().exit_code == 5
        assert job.output().endswith(b"100000\n")
    finally:
        is_over.set()
        for sender in senders:
            sender.join()


def _storm(job: Monitored, is_over: threading.Event) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(job.control_path))
        while not is_over.is_set():
            with contextlib.suppress(BlockingIOError):
                sender.send(b"window 80 25", socket.MSG_DONTWAIT)


def test_a_monitor_that_stands_still_costs_no_output(make: Make) -> None:
    job = make(cap_bytes=64 << 20).start(
        sys.executable, "-c", "import sys; sys.stdout.buffer.write(b'w' * (4 << 20)); sys.exit(6)"
    )
    os.kill(job.pid, signal.SIGSTOP)
    until(lambda: _state(job.pid) == "T" and _state(read_record(job.started).holder.pid) == "S")  # in a full pipe
    os.kill(job.pid, signal.SIGCONT)
    assert job.end().exit_code == 6
    assert len(job.output()) == 4 << 20


def test_the_streams_of_a_job_that_runs_elsewhere_are_carried(make: Make) -> None:
    job = make()
    stdin, stdout, stderr = job.carry()
    client = job.attach(owns_stdin=True)
    client.send(b"input")
    client.end_input()
    with os.fdopen(stdin, "rb") as reading:
        assert reading.read() == b"input"
    os.write(stdout, b"out")
    os.write(stderr, b"err")
    job.order("end")
    job.order("finish")
    assert sorted((client.output()[:3], job.output("stderr"))) == [b"err", b"out"]
    assert job.wait() == 0
    assert list(job.spool.iterdir()) == []
    os.close(stdout)
    os.close(stderr)


@pytest.mark.parametrize("count", [1, 64])
def test_a_lock_that_a_monitor_holds_is_free_once_it_ends_and_never_the_job_s(make: Make, count: int) -> None:
    job = make()
    paths = [job.directory / f"gpu{number}" for number in range(count)]
    locks = [open_lock_file(path) for path in paths]
    assert all(map(try_flock, locks))
    job.start("sh", "-c", "ls -l /proc/self/fd/ /proc/$$/fd/; read line", stdin=True, held=locks)
    for lock in locks:
        os.close(lock)
    until(lambda: b"self" in job.output() and job.output().count(b"total") == 2)
    assert b"gpu" not in job.output()
    assert not any(map(_is_free, paths))
    job.order("signal 9")
    job.end()
    assert not any(map(_is_free, paths))
    job.order("finish")
    assert job.wait() == 0
    assert all(map(_is_free, paths))


def _is_free(path: Path) -> bool:
    lock = open_lock_file(path)
    try:
        return try_flock(lock)
    finally:
        os.close(lock)


def test_more_descriptors_than_a_monitor_holds_are_no_order(make: Make) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    job = make()
    with pytest.raises(RuntimeUnavailableError):
        job.start("true", held=[nothing] * 65)
    assert job.wait() == 2
    os.close(nothing)


def test_a_caller_that_ignores_sigchld_has_a_monitor_that_does_not(make: Make) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        job = make().start("sh", "-c", "exit 3")
        assert job.end().exit_code == 3
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_what_is_no_order_starts_nothing() -> None:
    for message in (b"", b"x"):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            pid = spawn(library_path(MONITOR), ("run", "3"), (0, 1, 2, theirs.fileno()))
            theirs.close()
            if message:
                ours.send(message)
            ours.close()
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2


def test_a_monitor_that_only_carries_streams_ends_once_its_directory_is_gone(make: Make) -> None:
    job = make()
    job.carry()
    (job.directory / "lock").unlink()
    job.order("window 80 24")  # it looks at each word, and once a minute
    assert job.wait() == 0


def test_a_monitor_whose_directory_is_removed_at_the_end_serves_its_clients(make: Make) -> None:
    job = make()
    ends = job.carry()
    client = job.attach()
    os.kill(job.pid, signal.SIGSTOP)
    until(lambda: _state(job.pid) == "T")
    os.write(ends[1], b"o" * 60_000)
    job.order("end")
    job.order("finish")
    (job.directory / "lock").unlink()
    os.kill(job.pid, signal.SIGCONT)
    assert client.output() == b"o" * 60_000
    assert job.wait() == 0
    for end in ends:
        os.close(end)
