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
from tests.terminal_screen import TerminalScreen
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
        self.screen = TerminalScreen(160, 40)
        self.sent = b""

    def wait_for(self, text: str) -> None:
        """Read until the terminal shows a text."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while text not in self.screen.text:
            assert time.monotonic() < deadline, self.screen.text
            if select.select([self.master], [], [], 0.1)[0]:
                self._take(os.read(self.master, 65536))

    def _take(self, piece: bytes) -> None:
        self.sent += piece
        self.screen.feed(piece)

    def press(self, keys: bytes) -> None:
        """Send keys in one piece."""
        os.write(self.master, keys)

    def close(self) -> int:
        """Read to the end, as a terminal does, and return the exit code."""
        try:
            while piece := os.read(self.master, 65536):
                self._take(piece)
        except OSError:
            pass  # Linux says EIO where the last user of the other side is gone.
        os.close(self.master)
        return self.process.wait(DEADLINE_SECONDS)


def test_it_draws_again_sorts_stops_a_job_and_ends_with_q(place: Place) -> None:
    place.detach("trainer", "2GiB", ["sleep", "600"])
    terminal = Terminal(place, "top")
    terminal.wait_for("trainer")
    terminal.wait_for("by GPU")
    terminal.wait_for("simulated GPUs")
    terminal.press(b"n")
    terminal.wait_for("by name")
    terminal.press(b"x")
    terminal.wait_for("Stop job")
    terminal.press(b"y")
    terminal.wait_for("is being stopped")
    terminal.press(b"q")
    assert terminal.close() == 0
    assert place.run("wait", "trainer").returncode == 0


def test_letters_that_come_in_one_piece_with_the_slash_are_the_filters(place: Place) -> None:
    place.detach("trainer", "2GiB", ["sleep", "600"])
    terminal = Terminal(place, "top")
    terminal.wait_for("trainer")
    terminal.press(b"/abc\n")
    terminal.wait_for("by GPU · /abc")
    assert "trainer" not in terminal.screen.text
    terminal.press(b"/\x15train\n")
    terminal.wait_for("by GPU · /train")
    terminal.wait_for("trainer")
    terminal.press(b"q")
    assert terminal.close() == 0


def test_ctrl_l_draws_everything_anew(place: Place) -> None:
    terminal = Terminal(place, "top")
    terminal.wait_for("quit")
    terminal.screen.feed(b"\x1b[H\x1b[Jsome other program")
    terminal.press(b"\x0c")
    terminal.wait_for("quit")
    terminal.wait_for("pgpu top")
    assert "other program" not in terminal.screen.text
    terminal.press(b"q")
    assert terminal.close() == 0


def test_it_ends_with_its_terminal(place: Place) -> None:
    terminal = Terminal(place, "top")
    terminal.wait_for("pgpu top")
    os.close(terminal.master)
    assert terminal.process.wait(DEADLINE_SECONDS) == -signal.SIGHUP


def test_sigterm_leaves_the_terminal_as_it_was(place: Place) -> None:
    terminal = Terminal(place, "top")
    terminal.wait_for("quit")
    terminal.process.terminate()
    assert terminal.close() == 143
    assert b"\x1b[?1049l" in terminal.sent


def test_into_a_pipe_it_prints_once(place: Place) -> None:
    place.detach("trainer", "2GiB", ["sleep", "600"])
    done = place.run("top")
    assert done.returncode == 0
    assert done.stdout.count("trainer") == 1
    assert done.stdout.count("simulated GPUs") == 2
    assert "\033[" not in done.stdout
