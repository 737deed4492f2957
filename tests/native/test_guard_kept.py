"""What a guard keeps for its agents' jobs: given to the next agent, dropped at the end, and bounded."""

import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests import monitored
from tests.waiting import until

from pgpu.host.file_lock import open_lock_file, try_flock
from pgpu.runtimes.job_monitor import start_guard

assert monitored  # selects the build with sanitizers

AGENT = """
import os, socket, sys
from pgpu.runtimes import kept_descriptors
kept_descriptors.use_guard(int(sys.argv[-1]))
names = {"os": os, "kept": kept_descriptors, "guard": int(sys.argv[-1]), "socket": socket}
with socket.socket(socket.AF_UNIX) as test:
    test.connect(sys.argv[1])
    while text := test.recv(1 << 16):
        exec(text, names)
        test.send(repr(names.get("result")).encode())
"""
"""Executes what the test sends, and answers with the variable `result`."""

MOST_JOBS = 5
RESERVED = 64
"""Descriptors of a guard that are for other use: native/monitor/kept.c."""


class Agent:
    """One agent of the guard."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid = int(self.do("result = os.getpid()"))

    def do(self, text: str) -> str:
        self._connection.send(text.encode())
        return self._connection.recv(1 << 16).decode()


class Guarded:
    """A guard with agents that the test directs."""

    def __init__(self, stack: ExitStack) -> None:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._stack = stack
        self._listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.bind(str(directory / "test"))
        self._listener.listen()
        lock = open_lock_file(directory / "lock")
        assert try_flock(lock)
        words = [sys.executable, "-c", AGENT, str(directory / "test")]
        self.pid = start_guard(lock, directory, words, 2)
        os.close(lock)
        stack.callback(self._end)

    def agent(self) -> Agent:
        """Wait for the next agent."""
        connection, _ = self._listener.accept()
        return Agent(self._stack.enter_context(connection))

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def _end(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        os.kill(self.pid, signal.SIGCONT)
        os.waitpid(self.pid, 0)


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with ExitStack() as stack:
        yield Guarded(stack)


def test_the_next_agent_gets_what_a_killed_one_gave_directly_before(guarded: Guarded) -> None:
    agent = guarded.agent()
    os.kill(guarded.pid, signal.SIGSTOP)
    agent.do("read, write = os.pipe(); os.write(write, b'left'); kept.keep('a', [read])")
    os.kill(agent.pid, signal.SIGKILL)
    os.kill(guarded.pid, signal.SIGCONT)
    agent = guarded.agent()
    assert agent.do("(read,) = kept.take('a'); result = os.read(read, 10)") == "b'left'"
    assert agent.do("result = len(kept.take('a')), len(kept.take('b')), os.get_inheritable(read)") == "(1, 0, False)"


def test_what_is_dropped_is_closed(guarded: Guarded) -> None:
    agent = guarded.agent()
    before = guarded.descriptors()
    agent.do("reads = os.pipe(), os.pipe(); kept.keep('a', [end for end, _ in reads])")
    until(lambda: guarded.descriptors() == before + 2)
    agent.do("kept.keep('a', [reads[0][0]])")
    until(lambda: guarded.descriptors() == before + 1)
    agent.do("kept.drop('b'); kept.drop('a')")
    until(lambda: guarded.descriptors() == before)


def test_what_is_no_request_leaves_no_descriptor(guarded: Guarded) -> None:
    agent = guarded.agent()
    before = guarded.descriptors()
    agent.do("""
with socket.socket(fileno=os.dup(guard)) as requests:
    ends = list(os.pipe())
    for words in (b"keep", b"keep ", b"hold a", b"drop", b"take a", b"keep " + b"x" * 33, b"keep a" + b"\\0" * 60):
        socket.send_fds(requests, [words], ends)
    socket.send_fds(requests, [b"take a"], [])
    socket.send_fds(requests, [b"keep a"], [])
    socket.send_fds(requests, [b"keep a"], ends * 2)
    socket.send_fds(requests, [b"keep " + b"x" * 4000], ends)
""")
    assert agent.do("result = kept.take('a')") == "[]"
    until(lambda: guarded.descriptors() == before)  # the socket of an answer is closed after the answer


def test_no_more_is_kept_than_the_limit_allows_and_the_next_agent_starts(guarded: Guarded) -> None:
    agent = guarded.agent()
    most = min(1024, (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - RESERVED) // 2)
    agent.do("ends = os.pipe()")
    for number in range(most + 100):
        # Its answer comes after what was sent before: a busy guard's full socket drops none.
        agent.do(f"kept.keep('{number}', ends); kept.take('none')")
    assert agent.do(f"result = len(kept.take('{most - 1}')), len(kept.take('{most}'))") == "(2, 0)"
    os.kill(agent.pid, signal.SIGKILL)
    assert guarded.agent().do("result = len(kept.take('0'))") == "2"


def test_a_guard_that_is_stopped_stops_no_agent(guarded: Guarded) -> None:
    agent = guarded.agent()
    before = guarded.descriptors()
    agent.do("read, _ = os.pipe(); kept.keep('first', [read])")
    assert agent.do("result = len(kept.take('first'))") == "1"
    os.kill(guarded.pid, signal.SIGSTOP)
    agent.do("for number in range(3000): kept.keep(f'{number}', [read])")
    agent.do("kept.drop('first')")
    assert agent.do("result = kept.take('first')") == "[]"
    os.kill(guarded.pid, signal.SIGCONT)
    agent.do("for number in range(3000): kept.drop(f'{number}')")
    until(lambda: agent.do("kept.drop('none')") and guarded.descriptors() == before)
