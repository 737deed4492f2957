"""Starts commands of pgpu out of a process that has imported pgpu already, since four fifths of a short command are imports.

A server process for each process of pytest imports the package and forks a child for each command. The child gets the
arguments, environment, working directory and standard streams of the caller and runs `pgpu.cli.main` like the installed
script; it shares no state with the test or with other commands. An environment that the interpreter or the loader reads at
its start (`PYTHON…`, `LD_…`) needs a new process, so such a command is executed. Tests that are about the script, its
process group or its command line execute it as well (`Place.start`).
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol

from tests.waiting import DEADLINE_SECONDS

PGPU = Path(sys.executable).parent / "pgpu"

_LONGEST_REQUEST_BYTES = 1 << 20
_MOST_DESCRIPTORS = 1 << 16
_MODULES = ("uvicorn.protocols.http.h11_impl",)
_PACKAGES = ("pgpu.cli", "pgpu.client", "pgpu.engine", "pgpu.gpu", "pgpu.server", "pgpu.kubernetes", "pgpu.app")


class Process(Protocol):
    """What a forked command and `subprocess.Popen` have in common."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def kill(self) -> None: ...


class ForkedCommand:
    """A command of pgpu that runs in a child of the server; used like `subprocess.Popen`, without pipes."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], directory: Path, streams: list[int]
    ) -> None:
        """Start it; `streams` are the descriptors of its standard input, output and error output."""
        self.args = command
        self.returncode: int | None = None
        self._status, far = socket.socketpair()
        with far:
            request = json.dumps([list(command), dict(environment), str(directory)]).encode()
            socket.send_fds(_server(), [request], [*streams, far.fileno()])
        self.pid = struct.unpack("i", self._status.recv(4))[0]

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = struct.unpack("i", self._status.recv(4))[0]
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_command(
    words: Sequence[str],
    environment: Mapping[str, str],
    directory: Path = Path("/"),
    *,
    stdin: int | IO[Any] = subprocess.DEVNULL,
    stdout: int | IO[Any],
    stderr: int | IO[Any],
) -> Process:
    """Start one command line of pgpu, like `subprocess.Popen([PGPU, *words], …)`."""
    command = [str(PGPU), *words]
    if any(name.startswith(("LD_", "PYTHON")) and os.environ.get(name) != environment[name] for name in environment):
        return subprocess.Popen(command, env=environment, cwd=directory, stdin=stdin, stdout=stdout, stderr=stderr)
    with open(os.devnull, "r+b") as nothing:  # noqa: PTH123 - for its descriptor
        chosen = [nothing if stream == subprocess.DEVNULL else stream for stream in (stdin, stdout, stderr)]
        streams = [stream if isinstance(stream, int) else stream.fileno() for stream in chosen]
        return ForkedCommand(command, environment, directory, streams)


def run_command(
    words: Sequence[str],
    environment: Mapping[str, str],
    directory: Path = Path("/"),
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run one command line of pgpu to its end, like `subprocess.run([PGPU, *words], …)`."""
    with contextlib.ExitStack() as stack:
        given, *outputs = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3))
        given.write(stdin)
        given.seek(0)
        process = start_command(words, environment, directory, stdin=given, stdout=outputs[0], stderr=outputs[1])
        try:
            code = process.wait(DEADLINE_SECONDS)
        finally:
            process.kill()
        for stream in outputs:
            stream.seek(0)
        return subprocess.CompletedProcess([str(PGPU), *words], code, *(stream.read() for stream in outputs))


_CLIENT = """#!{python} -IS
import json, os, signal, socket, struct, sys
near, far = socket.socketpair()
request = json.dumps([["{pgpu}", *sys.argv[1:]], dict(os.environ), os.getcwd()]).encode()
server = socket.socket(fileno={descriptor})
socket.send_fds(server, [request], [0, 1, 2, far.fileno()])
server.detach()
far.close()
pid = struct.unpack("i", near.recv(4))[0]
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = struct.unpack("i", near.recv(4))[0]
sys.exit(code if code >= 0 else 128 - code)
"""


@contextlib.contextmanager
def shell_command() -> Iterator[tuple[Path, int]]:
    """Make a directory for PATH whose `pgpu` is forked as well; yields it and the descriptor that the shell must inherit."""
    descriptor = _server().fileno()
    with tempfile.TemporaryDirectory() as directory:
        client = Path(directory) / "pgpu"
        client.write_text(_CLIENT.format(python=sys.executable, pgpu=PGPU, descriptor=descriptor))
        client.chmod(0o755)
        yield Path(directory), descriptor


@functools.cache
def _server() -> socket.socket:
    """Start the server of this process, which ends when the other end of its socket is closed."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LONGEST_REQUEST_BYTES)
    with far:
        words = [sys.executable, "-m", "tests.forked_commands", str(far.fileno())]
        process = subprocess.Popen(words, pass_fds=[far.fileno()], cwd=Path(__file__).parents[1])
    atexit.register(process.wait)
    atexit.register(near.close)
    return near


def _serve(requests: socket.socket) -> None:
    """Fork a child for each request; send its PID at once and its exit code when it has ended."""
    callers: dict[int, tuple[int, socket.socket]] = {}  # by pidfd: PID and where its caller waits
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != requests.fileno():
                poll.unregister(descriptor)
                pid, caller = callers.pop(descriptor)
                os.close(descriptor)
                with contextlib.suppress(BrokenPipeError), caller:
                    caller.send(struct.pack("i", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
                continue
            request, streams, _, _ = socket.recv_fds(requests, _LONGEST_REQUEST_BYTES, 4)
            if not request:
                return
            pid = os.fork()
            if pid == 0:
                # Without their numbers, which `_become` closes: at the child's exit they would close those of the command.
                for each in (requests, *(caller for _, caller in callers.values())):
                    each.detach()
                command, environment, directory = json.loads(request)
                _become(command, environment, directory, streams[:3])
            for stream in streams[:3]:
                os.close(stream)
            caller = socket.socket(fileno=streams[3])
            caller.send(struct.pack("i", pid))
            pidfd = os.pidfd_open(pid)
            callers[pidfd] = (pid, caller)
            poll.register(pidfd, select.POLLIN)


def _become(command: list[str], environment: dict[str, str], directory: str, streams: Sequence[int]) -> NoReturn:
    """Run the command in this child, and end as the interpreter does: threads are waited for, and what is registered is run.

    Its modules are not taken down, since that would copy 55 MB of pages of the server: 80 ms. A command that raises ends in full.
    """
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, _MOST_DESCRIPTORS)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 - for the whole process
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115 - likewise
    sys.argv, sys.path = command, sys.path[1:]  # without the folder of this module
    code = sys.modules["pgpu.cli.main"].main()
    threading._shutdown()  # type: ignore[attr-defined] # as each child of multiprocessing does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _import_everything() -> None:
    for name in _MODULES:
        importlib.import_module(name)
    for name in _PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    gc.collect()
    gc.freeze()  # children do not copy the pages of what is imported


if __name__ == "__main__":
    _import_everything()
    _serve(socket.socket(fileno=int(sys.argv[1])))
