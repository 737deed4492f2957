"""The native monitor: it starts a job, carries its streams, reaps what it leaves, and records its end."""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.monitored import JOB, Monitored, print_and_end_while_the_monitor_stands_still, state_of
from tests.waiting import until

from pgpu.errors import CommandNotFoundError, RuntimeUnavailableError
from pgpu.host.file_lock import open_lock_file, try_flock
from pgpu.host.process_identity import identify_unreaped
from pgpu.libraries import MONITOR, library_path
from pgpu.runtimes.job_monitor import read_record
from pgpu.runtimes.launcher import spawn
from pgpu.structs import replace

Make = Callable[..., Monitored]

_PR_SET_CHILD_SUBREAPER = 36


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
    held = read_record(job.started)
    assert not held.has_run
    assert held.shows_no_run_of(held.holder)
    job.close()  # the control pipe ends
    record = job.end()
    assert (record.has_run, record.exit_code) == (False, 125)
    assert not (job.directory / "ran").exists()


def test_a_record_of_an_earlier_boot_does_not_show_that_its_command_never_ran(make: Make) -> None:
    job = make()
    job.start_held("true")
    until(job.started.exists)
    held = read_record(job.started)
    earlier = replace(held, holder=replace(held.holder, boot_id="00000000-0000-0000-0000-000000000000"))
    assert not earlier.shows_no_run_of(earlier.holder)


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
    print_and_end_while_the_monitor_stands_still(
        job, "fcntl.fcntl(1, fcntl.F_SETFL, os.O_DIRECT); [os.write(1, b'p') for _ in range(15)]"
    )
    client = job.attach()
    job.order("finish")
    assert client.output() == b"p" * 15


def test_a_main_process_is_reaped_once_its_end_is_recorded(make: Make) -> None:
    for number in range(1, 21):
        job = make(number=number).start("sh", "-c", "read line; seq 10000; exit 3", stdin=True)
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
    until(lambda: state_of(job.pid) == "T")
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
    until(lambda: state_of(job.pid) == "T" and state_of(read_record(job.started).holder.pid) == "S")  # in a full pipe
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
