"""Starts the launcher and controls it by two pipes: pass the environment, wait for its setup, release it.

The launcher (native/launcher) replaces itself with the job's command by execve, so its PID is the job's.
"""

import contextlib
import errno
import os
import signal
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pgpu.errors import (
    CommandNotExecutableError,
    CommandNotFoundError,
    PgpuError,
    RequestError,
    RuntimeUnavailableError,
)
from pgpu.host.thread_turns import pause
from pgpu.libraries import LAUNCHER, library_path
from pgpu.runtimes import Stdio
from pgpu.structs import Struct

_REPORT_FD = 4
"""Standard streams, then control (3) and report (4): native/launcher/report.h."""

_READY = "ready"
_LET_GO = b"G"

# Python ignores SIGPIPE and SIGXFSZ, and a shell or `nohup` others; an ignored signal stays ignored over execve.
_SIGNALS_TO_RESTORE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


class Launch(Struct):
    """One start of the launcher. As a context manager it ensures that a job that was not released has exited."""

    pid: int
    _control: int
    _report: int
    _buffer: bytes = b""
    _is_let_go: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close both pipes; a launcher that still waits exits when its control pipe is closed. Then reap it."""
        # The control pipe first: a launcher that still waits for its release reads end of file and exits, so waitpid returns.
        self.close()
        if error is not None or not self._is_let_go:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)

    def close(self) -> None:
        """Close both pipes."""
        os.close(self._control)
        os.close(self._report)

    def await_start(self) -> None:
        """Wait until the monitor has started the launcher and recorded it, and take its PID.

        Raises:
            RuntimeUnavailableError: It could not; both pipes are closed.
        """
        try:
            line = self._read_line()
        except BaseException:
            self.close()
            raise
        word, _, pid = line.partition("\t")
        if word != "started":
            self.close()
            raise failure_of(line)
        self.pid = int(pid)

    def hand_over(self, environment: Mapping[str, str]) -> None:
        """Send the environment and wait until the job's setup is complete.

        Raises:
            RequestError: Its working directory cannot be entered.
            RuntimeUnavailableError: The kernel rejected a step.
        """
        # Sent through the pipe and not passed by execve: a variable such as LD_PRELOAD must not apply to the launcher itself.
        block = os.fsencode("".join([f"{name}={value}\0" for name, value in environment.items()]))
        with contextlib.suppress(BrokenPipeError):  # the launcher's report has the reason
            _write_all(self._control, struct.pack("<Q", len(block)) + block)
        line = self._read_line()
        if line != _READY:
            raise failure_of(line)

    def let_go(self) -> None:
        """Release the command and wait until it started.

        Raises:
            CommandNotFoundError: There is no such command.
            CommandNotExecutableError: It cannot be executed.
            RuntimeUnavailableError: The launcher died.
        """
        with contextlib.suppress(BrokenPipeError):
            _write_all(self._control, _LET_GO)
        # The report pipe is close-on-exec: end of file without a line means that execve succeeded.
        line = self._read_line()
        if line:
            raise failure_of(line)
        self._is_let_go = True

    def _read_line(self) -> str:
        """Return the next line of the report; empty at end of file."""
        while b"\n" not in self._buffer:
            with pause():
                chunk = os.read(self._report, 4096)
            if not chunk:
                break
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return os.fsdecode(line)


def launch(words: Sequence[str], stdio: Stdio) -> Launch:
    """Start the launcher, held back.

    Args:
        words: Its options and the command, without its own name.
        stdio: The job's standard streams.

    Raises:
        NodeError: The launcher is missing from this installation.
        RuntimeUnavailableError: The kernel could not create a process.
    """
    program = library_path(LAUNCHER)
    control_end, control = os.pipe()
    report, report_end = os.pipe()
    try:
        if stdio.monitor is None:
            pid = spawn(program, words, (stdio.stdin, stdio.stdout, stdio.stderr, control_end, report_end))
        else:
            pid = 0
            stdio.monitor.start_launcher(words, control_end, report_end)
    except PgpuError:
        os.close(control)
        os.close(report)
        raise
    except OSError as exc:
        os.close(control)
        os.close(report)
        raise RuntimeUnavailableError(f"no process can be started: {exc.strerror}") from exc
    finally:
        # With a copy of the launcher's ends open here, its death would not be seen as the end of the report.
        os.close(control_end)
        os.close(report_end)
    launched = Launch(pid, control, report)
    if stdio.monitor is not None:
        launched.await_start()
    return launched


def spawn(
    program: Path, words: Sequence[str], descriptors: Sequence[int], environment: Mapping[str, str] | None = None
) -> int:
    """Start one of pgpu's programs.

    Args:
        program: Its path.
        words: Its arguments, without its own name.
        descriptors: Of this process; they become its 0, 1, 2 and so on, and it inherits no other.
        environment: Empty by default.
    """
    # Duplicated twice, first to numbers above all of them: a direct dup2 could overwrite a source that is still needed.
    above = max(*descriptors, _REPORT_FD) + 1
    moves = [(os.POSIX_SPAWN_DUP2, number, above + place) for place, number in enumerate(descriptors)]
    moves += [(os.POSIX_SPAWN_DUP2, above + place, place) for place in range(len(descriptors))]
    closings = [(os.POSIX_SPAWN_CLOSE, above + place) for place in range(len(descriptors))]
    # Not fork: this process has threads, whose locks would stay locked in the child for ever.
    return os.posix_spawn(
        program,
        [str(program), *words],
        environment or {},
        file_actions=[*moves, *closings],
        # A signal mask survives execve; the job must not inherit the signals that this thread blocks.
        setsigmask=(),
        setsigdef=_SIGNALS_TO_RESTORE,
    )


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def failure_of(line: str) -> PgpuError:
    """Return the error that the launcher reported in a line; without one, it was ended."""
    number_text, _, rest = line.partition("\t")
    stage, _, detail = rest.partition("\t")
    if not number_text.isdecimal():
        return RuntimeUnavailableError("the launcher ended without a word", hint="is it being killed? see `dmesg`")
    number = int(number_text)
    reason = os.strerror(number)
    if stage == "command":
        if number in {errno.ENOENT, errno.ENOTDIR}:
            return CommandNotFoundError(f"{detail}: command not found")
        return CommandNotExecutableError(f"{detail}: {reason}")
    if stage == "directory":
        return RequestError(f"working directory {detail}: {reason}", hint="name a directory that exists")
    if stage == "seccomp":
        return RuntimeUnavailableError(
            f"the kernel refuses the monitor's seccomp filter: {reason}",
            hint="a container's seccomp profile must allow prctl(PR_SET_SECCOMP)",
        )
    return RuntimeUnavailableError(f"the job's view cannot be made ({stage}, {detail}): {reason}")
