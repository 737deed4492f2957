"""The terminal of a job under the native monitor."""

import termios
import threading
from collections.abc import Callable

from tests.monitored import Monitored, cpu_ticks, print_and_end_while_the_monitor_stands_still, queued_bytes
from tests.waiting import until

Make = Callable[..., Monitored]


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
    until(lambda: not any(queued_bytes(client.socket, termios.TIOCOUTQ) for client in clients))
    before = [cpu_ticks(job.pid) for job in jobs]
    threading.Event().wait(0.5)
    assert all(cpu_ticks(job.pid) - ticks < 5 for job, ticks in zip(jobs, before, strict=True))
    hung_up.order("signal 9")
    full.order("signal 9")
    for client in clients:
        client.close()


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
    print_and_end_while_the_monitor_stands_still(job, "os.write(1, b'v' * 10_000)", tty=True)
    job.end()
    assert job.output() == b"v" * 10_000


def test_the_end_of_a_terminal_s_input_ends_an_unfinished_line_too(make: Make) -> None:
    job = make().start("cat", tty=True, stdin=True)
    client = job.attach()
    client.send(b"no newline")
    client.end_input()
    assert job.end().exit_code == 0
