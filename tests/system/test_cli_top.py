"""`pgpu top`: a screen in a terminal, one table into a pipe."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

from tests.forked_commands import PGPU
from tests.system.conftest import Place
from tests.waiting import DEADLINE_SECONDS


class Terminal:
    """A terminal with a program in it."""

    def __init__(self, place: Place, *words: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
        self.process = subprocess.Popen(
            [str(PGPU), *words],
            env={**place.environment, "TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.text = b""

    def wait_for(self, text: bytes) -> None:
        """Read until a text appears that was not there at the last call."""
        start, deadline = len(self.text), time.monotonic() + DEADLINE_SECONDS
        while text not in self.text[start:]:
            assert time.monotonic() < deadline, self.text
            if select.select([self.master], [], [], 0.1)[0]:
                self.text += os.read(self.master, 65536)

    def press(self, key: bytes) -> None:
        os.write(self.master, key)

    def close(self) -> int:
        """Read to the end, as a terminal does, and return the exit code."""
        try:
            while piece := os.read(self.master, 65536):
                self.text += piece
        except OSError:
            pass  # Linux says EIO where the last user of the other side is gone.
        os.close(self.master)
        return self.process.wait(DEADLINE_SECONDS)


def test_it_draws_again_sorts_stops_a_job_and_ends_with_q(place: Place) -> None:
    place.detach("trainer", "2GiB", ["sleep", "600"])
    terminal = Terminal(place, "top")
    terminal.wait_for(b"trainer")
    assert b"by GPU" in terminal.text
    assert b"simulated GPUs" in terminal.text
    terminal.press(b"n")
    terminal.wait_for(b"by name")
    terminal.press(b"x")
    terminal.wait_for(b"Stop job")
    terminal.press(b"y")
    terminal.wait_for(b"is being stopped")
    terminal.press(b"q")
    assert terminal.close() == 0
    assert place.run("wait", "trainer").returncode == 0


def test_it_ends_with_its_terminal(place: Place) -> None:
    terminal = Terminal(place, "top")
    terminal.wait_for(b"pgpu top")
    os.close(terminal.master)
    assert terminal.process.wait(DEADLINE_SECONDS) == -signal.SIGHUP


def test_sigterm_leaves_the_terminal_as_it_was(place: Place) -> None:
    terminal = Terminal(place, "top")
    terminal.wait_for(b"quit")
    terminal.process.terminate()
    assert terminal.close() == 143
    assert b"\x1b[?1049l" in terminal.text


def test_into_a_pipe_it_prints_once(place: Place) -> None:
    place.detach("trainer", "2GiB", ["sleep", "600"])
    done = place.run("top")
    assert done.returncode == 0
    assert done.stdout.count("trainer") == 1
    assert done.stdout.count("simulated GPUs") == 2
    assert "\033[" not in done.stdout
