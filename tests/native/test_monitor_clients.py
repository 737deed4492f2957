"""Clients of a native monitor: what they get, what they send, and how little they can do to the job."""

import contextlib
import itertools
import os
import resource
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.monitored import Monitored, cpu_ticks, queued_bytes, state_of
from tests.waiting import until

from pgpu.client.following import FROM_NOW_ON
from pgpu.engine.streams.frames import Hello, Kind, decode_gap, encode_frame, encode_hello
from pgpu.runtimes.job_monitor import read_record

Make = Callable[..., Monitored]

_NUMBERS = itertools.count(1)
"""Of starts: one is never repeated."""


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
    until(lambda: queued_bytes(client.socket, termios.FIONREAD) > 1 << 16)
    os.kill(job.pid, signal.SIGSTOP)
    until(lambda: state_of(job.pid) == "T")
    client.send(b"line\n")
    client.close()
    os.kill(job.pid, signal.SIGCONT)
    assert job.end().exit_code == 4


def test_a_large_input_arrives_whole(make: Make) -> None:
    job = make(cap_bytes=16 << 20).start("sh", "-c", "sleep 0.2; sha256sum", stdin=True)
    client = job.attach(owns_stdin=True)
    client.send(b"y" * (1 << 20))
    client.send(b"y" * (1 << 20))
    client.end_input()
    job.end()
    expected = subprocess.run(["sha256sum"], input=b"y" * (2 << 20), capture_output=True, check=True).stdout
    assert job.output() == expected


def test_a_client_of_the_end_alone_gets_no_output(make: Make) -> None:
    job = make().start("sh", "-c", "echo before; read line; echo after", stdin=True)
    until(lambda: b"before" in job.output())
    client = job.attach(FROM_NOW_ON, owns_stdin=True)
    client.send(b"\n")
    job.end()
    job.order("finish")
    assert [frame.kind for frame in client.frames()] == [Kind.END]


def test_a_client_of_an_empty_log_costs_no_cpu(make: Make) -> None:
    job = make().start("sleep", "600")
    clients = [job.attach(0), job.attach(5000)]
    until(lambda: state_of(job.pid) == "S")
    before = cpu_ticks(job.pid)
    threading.Event().wait(0.5)
    assert cpu_ticks(job.pid) - before < 5
    job.order("signal 9")
    job.end()
    for client in clients:
        client.close()


def _descriptors(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/fd").iterdir())


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
    until(lambda: _log_bytes(job) > 4 << 20 and state_of(read_record(job.started).holder.pid) == "S")
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


@pytest.mark.parametrize(
    "greeting",
    [
        b"",
        b"\x01\x00\x00\x00\x02{}",
        b"\x01\x00\x10\x00\x01",
        b"\x09\x00\x00\x00\x00",
        b"\x04\x00\x00\x00\x01x",
        encode_frame(Kind.HELLO, b'{"offset": 99999999999999999999, "holds_back": true, "owns_stdin": true}'),
        encode_frame(Kind.HELLO, b'{"offset": 9223372036854775808, "holds_back": true, "owns_stdin": true}'),
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
    job = make(number=next(_NUMBERS)).start("sh", "-c", "read line; exit 7", stdin=True)
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


def test_a_monitor_whose_directory_is_removed_at_the_end_serves_its_clients(make: Make) -> None:
    job = make()
    ends = job.carry()
    client = job.attach()
    os.kill(job.pid, signal.SIGSTOP)
    until(lambda: state_of(job.pid) == "T")
    os.write(ends[1], b"o" * 60_000)
    job.order("end")
    job.order("finish")
    (job.directory / "lock").unlink()
    os.kill(job.pid, signal.SIGCONT)
    assert client.output() == b"o" * 60_000
    assert job.wait() == 0
    for end in ends:
        os.close(end)
